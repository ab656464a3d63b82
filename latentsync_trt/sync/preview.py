"""A preview: the part of the output from the first speech on, as if the output began there."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.media.playback import short
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.speech import Sound

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech


def preview_of(inputs: Inputs, speech_in: Callable[[Path], "Speech"]) -> tuple[Inputs, str]:
    """The inputs with all times moved so that the first speech is at 0, and what to tell about it.

    It is moved by whole pictures, which stay the same. `speech_in`: when somebody speaks in a recording.
    """
    options, info, sound = inputs.options, inputs.info, inputs.sound
    ends_s = [options.end] + ([info.duration_s] if options.output_length in ("video", "shortest") else [])
    until_s = min((time_s for time_s in ends_s if time_s is not None), default=None)
    least_s = options.start or Fraction(0)
    speech_s = [time_s for time_s in _speech_from(sound, speech_in, least_s) if until_s is None or time_s < until_s]
    begin_s = _picture_at(min(speech_s, default=least_s), inputs)
    start_s = None if options.start is None else max(options.start - begin_s, Fraction(0))
    moved = replace(
        inputs,
        options=replace(options, start=start_s, end=None if options.end is None else options.end - begin_s),
        sound=sound.later(-begin_s),
        info=replace(info, duration_s=None if info.duration_s is None else info.duration_s - begin_s),
    )
    where = "from the first speech on, at" if speech_s else "without speech, from"
    return moved, f"a preview of at most {options.preview_s:g} s {where} {short(begin_s)} s (--preview)"


def _speech_from(sound: Sound, speech_in: Callable[[Path], "Speech"], least_s: Fraction) -> Iterator[Fraction]:
    """When somebody who is painted then begins to speak, or goes on at `least_s`, in times of the output."""
    spans_s = {piece: speech_in(piece.path).spans_s for piece in set(sound.recordings)}
    for number, piece in enumerate(sound.recordings):
        turns_s = [(least_s, None)] if sound.turns is None else sound.turns[number].spans_s
        for start_s, end_s in spans_s[piece]:
            for turn_start_s, turn_end_s in turns_s:
                from_s = max(piece.at_s + Fraction(start_s), turn_start_s, least_s)
                if from_s < piece.at_s + Fraction(end_s) and (turn_end_s is None or from_s < turn_end_s):
                    yield from_s


def _picture_at(time_s: Fraction, inputs: Inputs) -> Fraction:
    """When the picture begins that is on screen in the output at this time."""
    fps = inputs.options.fps
    from_s = inputs.sound.picture_delay_s if fps == "source" else Fraction(0)
    rate = Fraction((inputs.info.frames_per_s or MODEL_FPS) if fps == "source" else fps)
    return max(from_s + (time_s - from_s) * rate // 1 / rate, Fraction(0))
