"""What of the output is synced, how the video is played for it, and what is heard. Times are exact
seconds.

A preview is the part of the output from the first speech on, as if the output began there.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.playback import Playback, notices_of_length, short_number
from latentsync_trt.media.soundtrack import SoundPiece, spliced
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.sound import Sound
from latentsync_trt.sync.speech import OpenSpeech

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech

_HEARD_S = Fraction(1, 10)
"""Of speech: shorter cuts need no notice."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is synced of the output: from `start_s` to `end_s` (None = its end)."""

    start_s: Fraction = Fraction(0)
    end_s: Fraction | None = None

    def __contains__(self, time_s: Fraction) -> bool:
        return self.start_s <= time_s and (self.end_s is None or time_s < self.end_s)

    def frames(self, frames_per_s: Fraction) -> range:
        """About which frames it has."""
        end = sys.maxsize if self.end_s is None else ceil(self.end_s * frames_per_s)
        return range(ceil(self.start_s * frames_per_s), end)


def span_of(options: SyncOptions, speech: Sound, video: Path, speech_end_s: Fraction) -> Span:
    """What `options` say; speech from another file that begins inside the clip also ends there.
    Raises `InputError` if no speech is in it.
    """
    end_s = options.end
    if end_s is None and options.start is not None and not speech.is_of(video):
        end_s = speech_end_s
    span = Span(options.start or Fraction(0), end_s)
    from_s = max(span.start_s, speech.starts_s)
    to_s = speech_end_s if end_s is None else min(end_s, speech_end_s)
    if to_s <= from_s:
        spoken = (
            f"the speech goes from {float(speech.starts_s):.2f} "
            f"to {float(speech_end_s):.2f} s of the output"
        )
        raise InputError(
            f"no speech in the part that is synced: {spoken}; change --start, --end or --offset"
        )
    return span


def notices_of_cuts(span: Span, speech: Sound, video: Path, speech_end_s: Fraction) -> list[str]:
    """Where `span` cuts speech of another file than the video."""
    if speech.is_of(video):  # which is heard before and after the part
        return []
    starts_s = speech.starts_s
    ends_s = min(span.end_s or speech_end_s, speech_end_s)
    found = []
    if (before_s := span.start_s - starts_s) > _HEARD_S:
        found.append(
            f"the first {short_number(before_s)} s of the speech "
            f"are cut, before {short_number(span.start_s)} s (--start)"
        )
    if speech_end_s - ends_s > _HEARD_S:
        of = f"{short_number(ends_s - starts_s)} of its {short_number(speech_end_s - starts_s)} s"
        found.append(f"the speech is cut after {of}, at {short_number(ends_s)} s (--end)")
    return found


def soundtrack_of(sound: Sound, span: Span) -> tuple[SoundPiece, ...]:
    """What is heard: the recordings, or `mix` instead, within `span`, around it the video's `own`
    sound.
    """
    if sound.mix is None:
        speech = tuple(dict.fromkeys(sound.recordings))
    else:
        speech = (sound.mix,)
    if speech == (sound.video_sound,) or span == Span():
        return speech
    return spliced(sound.video_sound, speech, span.start_s, span.end_s)


def timeline_of(inputs: Inputs, speech: OpenSpeech) -> tuple[Span, Playback, list[str]]:
    """What is synced, how the video is played, and notices about that; raises `InputError` if
    options do not fit the lengths of the files.
    """
    options = inputs.options
    sound = inputs.sound
    video_s = inputs.info.duration_s
    length = options.output_length
    mix = sound.mix
    span = span_of(options, sound, inputs.video, speech.end_s)
    if mix is None:
        end_s = speech.end_s
    else:
        end_s = mix.at_s + audio_duration_s(mix.path)
    end_s = end_s if span.end_s is None else min(end_s, span.end_s)
    if length == "longest" and video_s is None:
        cure = (
            "use --length audio or video, or write the file anew: ffmpeg -i VIDEO -c copy NEW.mp4"
        )
        raise InputError(
            f"--length longest: the video's file does not state how long it is; {cure}", usage=False
        )
    ends_s = (
        None
        if length == "video"
        else max(video_s or end_s, end_s)
        if length == "longest"
        else end_s
    )
    if options.preview_s is not None:
        preview_s = Fraction(str(options.preview_s))
        ends_s = min(preview_s, ends_s or preview_s)
    playback = Playback(
        None if options.fps == "source" else Fraction(options.fps),
        ends_s,
        options.extend if length in ("audio", "longest") else None,
        sound.picture_delay_s,
    )
    notices = [*speech.notices]
    if options.preview_s is None:  # which is told
        notices += notices_of_cuts(span, sound, inputs.video, speech.end_s)
        notices += notices_of_length(inputs.info, end_s, options)
    return span, playback, notices


def preview_of(inputs: Inputs, speech_in: Callable[[Path], "Speech"]) -> tuple[Inputs, str]:
    """The inputs with all times moved so that the first speech is at 0, and what to tell about it.

    It is moved by whole pictures, which stay the same. `speech_in`: when somebody speaks in a
    recording.
    """
    options = inputs.options
    info = inputs.info
    sound = inputs.sound
    ends_s = [options.end] + (
        [info.duration_s] if options.output_length in ("video", "shortest") else []
    )
    until_s = min((time_s for time_s in ends_s if time_s is not None), default=None)
    least_s = options.start or Fraction(0)
    speech_s = [
        time_s
        for time_s in _speech_from(sound, speech_in, least_s)
        if until_s is None or time_s < until_s
    ]
    first_s = Fraction(0)
    rate = Fraction(MODEL_FPS)
    if options.fps == "source":
        first_s = sound.picture_delay_s
        rate = info.frames_per_s or rate
    begin_s = first_s + (min(speech_s, default=least_s) - first_s) * rate // 1 / rate
    begin_s = max(begin_s, Fraction(0))  # when the picture begins that is on screen then
    start_s = None if options.start is None else max(options.start - begin_s, Fraction(0))
    moved = replace(
        inputs,
        options=replace(
            options, start=start_s, end=None if options.end is None else options.end - begin_s
        ),
        sound=sound.later(-begin_s),
        info=replace(
            info, duration_s=None if info.duration_s is None else info.duration_s - begin_s
        ),
    )
    if speech_s:
        where = "from the first speech on, at"
    else:
        where = "without speech, from"
    return (
        moved,
        f"a preview of at most {options.preview_s:g} s {where} "
        f"{short_number(begin_s)} s (--preview)",
    )


def _speech_from(
    sound: Sound, speech_in: Callable[[Path], "Speech"], least_s: Fraction
) -> Iterator[Fraction]:
    """When somebody who is painted then begins to speak, or goes on at `least_s`, in times of the
    output.
    """
    spans_s = {piece: speech_in(piece.path).spans_s for piece in set(sound.recordings)}
    for number, piece in enumerate(sound.recordings):
        turns_s: Sequence[tuple[Fraction, Fraction | None]] = [(least_s, None)]
        if sound.turns is not None:
            turns_s = sound.turns[number].spans_s
        for start_s, end_s in spans_s[piece]:
            for turn_start_s, turn_end_s in turns_s:
                from_s = max(piece.at_s + Fraction(start_s), turn_start_s, least_s)
                if from_s < piece.at_s + Fraction(end_s) and (
                    turn_end_s is None or from_s < turn_end_s
                ):
                    yield from_s
