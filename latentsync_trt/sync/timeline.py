"""What of the output is synced, how the video is played for it, and what is heard. Times are exact
seconds.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.playback import Playback, notices_of_length, short_number
from latentsync_trt.media.sound_pieces import SoundPiece, splice
from latentsync_trt.spans import NO_END_S, FramesToDo, Span
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.sound import Sound
from latentsync_trt.sync.speech import OpenSpeech
from latentsync_trt.types import Frame

_NOTABLE_CUT_S = Fraction(1, 10)
"""Seconds of speech whose cut needs a notice."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What of the output is synced, and how the video is played for it."""

    span: Span
    """The part of the output that is synced."""
    playback: Playback
    frames_per_s: Fraction | None
    """The rate of the output; None where the source does not state it."""
    notices: tuple[str, ...]

    @property
    def frames(self) -> range:
        """The approximate indices of the frames that are synced."""
        rate = self.assumed_fps
        start = ceil(self.span.start_s * rate)
        end = ceil(self.span.end_s * rate)
        return range(start, end)

    @property
    def assumed_fps(self) -> Fraction:
        return self.frames_per_s or Fraction(MODEL_FPS)

    def is_searched(self, todo: FramesToDo, frame: Frame) -> bool:
        """Returns whether faces are searched in a frame."""
        return frame.time_s in self.span and frame.index in todo.search


def timeline_of(inputs: Inputs, speech: OpenSpeech) -> Timeline:
    """Returns the timeline of a run; raises `InputError` if options do not fit the lengths of the
    files.
    """
    options = inputs.options
    sound = inputs.sound
    span = span_of(options, sound, inputs.video, speech.end_s)
    heard_until_s = _heard_until_s(sound, span, speech.end_s)
    fps = None if options.fps == "source" else Fraction(options.fps)
    extends = options.output_length in ("audio", "longest")
    playback = Playback(
        fps,
        _end_s(inputs, heard_until_s),
        options.extend if extends else None,
        sound.picture_delay_s,
    )
    notices = [*speech.notices]
    if options.preview_s is None:  # of which a notice tells
        notices += notices_of_cuts(span, sound, inputs.video, speech.end_s)
        notices += notices_of_length(inputs.info, heard_until_s, options)
    return Timeline(span, playback, fps or inputs.info.frames_per_s, tuple(notices))


def span_of(options: SyncOptions, speech: Sound, video: Path, speech_end_s: Fraction) -> Span:
    """Returns what `options` say; speech from another file that begins inside the clip also ends
    there. Raises `InputError` if no speech is in it.
    """
    end_s = options.end
    if end_s is None and options.start is not None and not speech.is_of(video):
        end_s = speech_end_s
    span = Span(options.start or Fraction(0), NO_END_S if end_s is None else end_s)
    if min(span.end_s, speech_end_s) <= max(span.start_s, speech.starts_s):
        spoken = f"from {Span(speech.starts_s, speech_end_s)} s of the output"
        raise InputError(
            f"no speech in the part that is synced: the speech goes {spoken}; "
            "change --start, --end or --offset"
        )
    return span


def _heard_until_s(sound: Sound, span: Span, speech_end_s: Fraction) -> Fraction:
    """Returns when the recordings, or the mix instead, end in the output."""
    end_s = speech_end_s
    if sound.mix is not None:
        end_s = sound.mix.at_s + audio_duration_s(sound.mix.path)
    return min(end_s, span.end_s)


def _end_s(inputs: Inputs, heard_until_s: Fraction) -> Fraction | None:
    """Returns the time before which the output's frames begin; None for the end of the video."""
    options = inputs.options
    video_s = inputs.info.duration_s
    end_s: Fraction | None = heard_until_s
    if options.output_length == "video":
        end_s = None
    elif options.output_length == "longest":
        if video_s is None:
            problem = "--length longest: the video's file does not state how long it is"
            cure = "use --length audio or video, or write the file anew"
            command = "ffmpeg -i VIDEO -c copy NEW.mp4"
            raise InputError(f"{problem}; {cure}: {command}", usage=False)
        end_s = max(video_s, heard_until_s)
    if options.preview_s is None:
        return end_s
    preview_s = Fraction(str(options.preview_s))
    return min(preview_s, end_s or preview_s)


def notices_of_cuts(span: Span, speech: Sound, video: Path, speech_end_s: Fraction) -> list[str]:
    """Returns where `span` cuts speech of another file than the video."""
    if speech.is_of(video):  # which is heard before and after the part
        return []
    starts_s = speech.starts_s
    ends_s = min(span.end_s, speech_end_s)
    notices = []
    before_s = span.start_s - starts_s
    if before_s > _NOTABLE_CUT_S:
        cut = f"the first {short_number(before_s)} s of the speech are cut"
        notices.append(f"{cut}, before {short_number(span.start_s)} s (--start)")
    if speech_end_s - ends_s > _NOTABLE_CUT_S:
        rest = f"{short_number(ends_s - starts_s)} of its {short_number(speech_end_s - starts_s)} s"
        notices.append(f"the speech is cut after {rest}, at {short_number(ends_s)} s (--end)")
    return notices


def soundtrack_of(sound: Sound, span: Span) -> tuple[SoundPiece, ...]:
    """Returns what is heard: the recordings, or `mix` instead, within `span`, around it the video's
    own sound.
    """
    if sound.mix is None:
        speech = tuple(dict.fromkeys(sound.recordings))
    else:
        speech = (sound.mix,)
    if speech == (sound.video_sound,) or span == Span():
        return speech
    end_s = None if span.end_s == NO_END_S else span.end_s
    return splice(sound.video_sound, speech, span.start_s, end_s)
