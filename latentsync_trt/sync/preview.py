"""A preview: the part of the output from the first speech on, as if the output began there."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.media.playback import short_number
from latentsync_trt.spans import Span
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.sound import Sound
from latentsync_trt.sync.speech import FindSpeech


def preview_of(inputs: Inputs, find_speech: FindSpeech) -> tuple[Inputs, str]:
    """Returns the inputs with all times moved so that the first speech is at 0, and a notice.

    They are moved by whole pictures, which stay the same.
    """
    options = inputs.options
    start_s = options.start or Fraction(0)
    until_s = _latest_s(inputs)
    speech_s = [
        time_s
        for time_s in _speech_from(inputs.sound, find_speech, start_s)
        if until_s is None or time_s < until_s
    ]
    begin_s = _preview_start_s(inputs, min(speech_s, default=start_s))
    where = "from the first speech on, at" if speech_s else "without speech, from"
    length = f"a preview of at most {options.preview_s:g} s"
    return _earlier(inputs, begin_s), f"{length} {where} {short_number(begin_s)} s (--preview)"


def _latest_s(inputs: Inputs) -> Fraction | None:
    """Returns the time of the output before which a preview begins; None where none is known."""
    ends_s = [inputs.options.end]
    if inputs.options.output_length in ("video", "shortest"):
        ends_s.append(inputs.info.duration_s)
    return min((time_s for time_s in ends_s if time_s is not None), default=None)


def _speech_from(sound: Sound, find_speech: FindSpeech, start_s: Fraction) -> Iterator[Fraction]:
    """Yields when somebody who is painted then begins to speak, or goes on at `start_s`, in times
    of the output.
    """
    for speaker, piece in enumerate(sound.recordings):
        turns: tuple[Span, ...] = (Span(start_s),)
        if sound.turns is not None:
            turns = sound.turns[speaker].spans
        for speech_start_s, speech_end_s in find_speech(piece.path).spans_s:
            end_s = piece.at_s + Fraction(speech_end_s)
            for turn in turns:
                from_s = max(piece.at_s + Fraction(speech_start_s), turn.start_s, start_s)
                if from_s < min(end_s, turn.end_s):
                    yield from_s


def _preview_start_s(inputs: Inputs, time_s: Fraction) -> Fraction:
    """Returns when the picture begins that is on screen at a time of the output."""
    first_s = Fraction(0)
    rate = Fraction(MODEL_FPS)
    if inputs.options.fps == "source":
        first_s = inputs.sound.picture_delay_s
        rate = inputs.info.frames_per_s or rate
    pictures = (time_s - first_s) * rate // 1
    return max(first_s + pictures / rate, Fraction(0))


def _earlier(inputs: Inputs, by_s: Fraction) -> Inputs:
    """Returns the inputs of an output that begins `by_s` later, so that all its times are less."""
    options = inputs.options
    info = inputs.info
    if options.start is not None:
        options = replace(options, start=max(options.start - by_s, Fraction(0)))
    if options.end is not None:
        options = replace(options, end=options.end - by_s)
    if info.duration_s is not None:
        info = replace(info, duration_s=info.duration_s - by_s)
    return replace(inputs, options=options, info=info, sound=inputs.sound.later(-by_s))
