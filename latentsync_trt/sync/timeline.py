"""When a run syncs, how it plays the video, and what it tells about both."""

from dataclasses import dataclass

from latentsync_trt.config import SyncOptions
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.playback import Playback
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.length import playback_of
from latentsync_trt.sync.notices import notices_of_length, notices_of_mix
from latentsync_trt.sync.speakers import Span, span_of
from latentsync_trt.sync.speech import OpenVoices


@dataclass(frozen=True, slots=True)
class Timeline:
    """`span`: what is synced. `playback`: how the video is played. `notices`: about lengths that differ."""

    span: Span
    playback: Playback
    notices: tuple[str, ...]


def timeline_of(inputs: Inputs, options: SyncOptions, speech: OpenVoices) -> Timeline:
    """The timeline of a run; raises `InputError` where options do not fit the lengths of its files."""
    span, mix, notices = span_of(options, inputs.voices, inputs.video, speech.end_s), inputs.mix, list[str]()
    end_s = speech.end_s
    if mix is not None:
        mix_s = audio_duration_s(mix.path)
        notices += notices_of_mix(mix.path, mix_s, speech.end_s - mix.at_s)
        end_s = mix.at_s + mix_s
    end_s = end_s if span.end_s is None else min(end_s, span.end_s)
    notices += notices_of_length(inputs.info, end_s, options)
    playback = playback_of(options, inputs.info.duration_s, end_s, inputs.picture_delay_s)
    return Timeline(span, playback, (*speech.notices, *notices))
