"""Turns: when each speaker of a recording is painted, as RTTM files say."""

from bisect import bisect
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from pathlib import Path

from latentsync_trt.errors import InputError
from latentsync_trt.paths import read_text
from latentsync_trt.spans import Span, joined

MARGIN_S = Fraction(1, 5)
"""A face is painted from this long before its turn until this long after: lips open before the
first sound is heard, and a frame attends to 0.1 s of sound around it."""

_TURN = "SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>"
"""What a line of an RTTM file looks like."""


@dataclass(frozen=True, slots=True)
class SpeakerTurns:
    """When one speaker is painted."""

    spans: tuple[Span, ...]
    """Ascending, and apart from each other."""

    def __contains__(self, time_s: Fraction) -> bool:
        position = bisect(self.spans, time_s, key=attrgetter("start_s")) - 1
        return position >= 0 and time_s in self.spans[position]

    def later(self, by_s: Fraction) -> "SpeakerTurns":
        """Returns the same turns, `by_s` later."""
        spans = (Span(span.start_s + by_s, span.end_s + by_s) for span in self.spans)
        return SpeakerTurns(tuple(spans))


def read_turns(path: Path, at_s: Fraction = Fraction(0)) -> dict[str, SpeakerTurns]:
    """Returns the turns of every speaker, by name, in the order of their first turns, longer by
    `MARGIN_S` at both ends.

    Lines look like `SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>`; those of other types
    are ignored.

    Args:
        at_s: when the recording begins in the output.

    Raises:
        InputError: the file is no text, a line is damaged, no line is a turn, or several recordings
            are described.
    """
    turns = dict[str, list[Span]]()
    recordings = dict[str, None]()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        try:
            start_s = at_s + _seconds(fields[3])
            end_s = start_s + _seconds(fields[4])
            span = Span(start_s - MARGIN_S, end_s + MARGIN_S)
            turns.setdefault(fields[7], []).append(span)
        except (ValueError, IndexError):
            problem = f"{path}: line {number} is damaged: {line.strip()!r} is not {_TURN!r}"
            raise InputError(problem, usage=False) from None
        recordings[fields[1]] = None
    if not turns:
        problem = f"{path}: has no line that begins with SPEAKER; give an RTTM file"
        raise InputError(problem, usage=False)
    if len(recordings) > 1:
        names = ", ".join(recordings)
        problem = f"{path}: describes several recordings ({names}); keep the lines of one"
        raise InputError(problem, usage=False)
    names_by_time = sorted(turns, key=lambda name: min(turns[name]))
    return {name: SpeakerTurns(joined(turns[name], Fraction(0))) for name in names_by_time}


def _seconds(text: str) -> Fraction:
    """Returns a number from 0 on; raises `ValueError` for any other text.

    It is read as a float, since 1e999999999 as a fraction would fill the memory.
    """
    value = Fraction(repr(float(text)))
    if value < 0:
        raise ValueError(text)
    return value
