"""When a run syncs, how it plays the video, and what it tells about both. All times are exact seconds."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.playback import LONGEST_PERIOD_S, Playback
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.notices import notices_of_length, notices_of_mix
from latentsync_trt.sync.speakers import Span, span_of
from latentsync_trt.sync.speech import OpenVoices
from latentsync_trt.types import VideoInfo


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


def playback_of(
    options: SyncOptions, video_s: Fraction | None, audio_s: Fraction, delay_s: Fraction = Fraction(0)
) -> Playback:
    """How the video is played.

    Args:
        video_s: when the video ends, None if its file does not state that. audio_s: when the speech ends, and the sound
            that is heard. delay_s: when the picture begins.

    Raises:
        InputError: the longer one is wanted, and `video_s` is unknown.
    """
    fps = None if options.fps == "source" else Fraction(options.fps)
    length = options.output_length
    if length == "video":
        return Playback(fps, delay_s=delay_s)
    if length == "shortest":
        return Playback(fps, audio_s, delay_s=delay_s)
    if length == "longest" and video_s is None:
        cure = "use --length audio or video, or write the file anew: ffmpeg -i VIDEO -c copy NEW.mp4"
        raise InputError(f"--length longest: the video's file does not state how long it is; {cure}", usage=False)
    duration_s = audio_s if length == "audio" or video_s is None else max(video_s, audio_s)
    return Playback(fps, duration_s, options.extend, delay_s)


def expected_frames(playback: Playback, info: VideoInfo) -> int | None:
    """About how many frames that gives; None where the file does not state enough."""
    fps = playback.fps or info.frames_per_s
    if fps is not None and fps * LONGEST_PERIOD_S < 1:
        fps = Fraction(MODEL_FPS)
    ends_s = (playback.duration_s, info.duration_s if playback.extend is None else None)
    known_s = [end_s for end_s in ends_s if end_s is not None]
    return ceil(min(known_s) * fps) if known_s and fps else None
