"""Who speaks when, from RTTM files, as diarization tools write them."""

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from pathlib import Path

from latentsync_trt.errors import InputError
from latentsync_trt.paths import read_text

MARGIN_S = Fraction(1, 5)
"""A face is painted from this long before its turn until this long after: lips open before the
first sound is heard, and a frame attends to 0.1 s of sound around it."""

_TURN = "SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>"


@dataclass(frozen=True, slots=True)
class SpeakerTurns:
    """When one speaker is painted: starts and ends, ascending and apart."""

    spans_s: tuple[tuple[Fraction, Fraction], ...]

    def __contains__(self, time_s: Fraction) -> bool:
        position = bisect(self.spans_s, time_s, key=itemgetter(0)) - 1
        return position >= 0 and time_s < self.spans_s[position][1]

    def later(self, by_s: Fraction) -> "SpeakerTurns":
        """The same, `by_s` later."""
        return SpeakerTurns(tuple((start_s + by_s, end_s + by_s) for start_s, end_s in self.spans_s))


def read_turns(path: Path, at_s: Fraction = Fraction(0)) -> dict[str, SpeakerTurns]:
    """The turns of every speaker, by name, in the order of their first turns, longer by `MARGIN_S` at both ends.

    Lines look like `SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>`; those of other types are ignored.

    Args:
        at_s: when the recording begins in the output.

    Raises:
        InputError: it is no text, a line is damaged, no line is a turn, or several recordings are described.
    """
    lines = read_text(path).splitlines()
    turns, recordings = dict[str, list[tuple[Fraction, Fraction]]](), dict[str, None]()
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        try:
            recording, start_s, duration_s, name = fields[1], _seconds(fields[3]), _seconds(fields[4]), fields[7]
        except (ValueError, IndexError):
            where = f"{path}: line {number} is damaged"
            raise InputError(f"{where}: {line.strip()!r} is not {_TURN!r}", usage=False) from None
        recordings[recording] = None
        turns.setdefault(name, []).append((at_s + start_s, at_s + start_s + duration_s))
    if not turns:
        raise InputError(f"{path}: has no line that begins with SPEAKER; give an RTTM file", usage=False)
    if len(recordings) > 1:
        names = ", ".join(recordings)
        raise InputError(f"{path}: describes several recordings ({names}); keep the lines of one", usage=False)
    return {name: _merged(turns[name]) for name in sorted(turns, key=lambda name: min(turns[name]))}


def _seconds(text: str) -> Fraction:
    """Raises `ValueError` for what is no number from 0 on; through float, as 1e999999999 would fill the memory."""
    value = Fraction(repr(float(text)))
    if value < 0:
        raise ValueError(text)
    return value


def _merged(turns: Iterable[tuple[Fraction, Fraction]]) -> SpeakerTurns:
    merged: list[tuple[Fraction, Fraction]] = []
    for turn_start_s, turn_end_s in sorted(turns):
        start_s, end_s = turn_start_s - MARGIN_S, turn_end_s + MARGIN_S
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
        else:
            merged.append((start_s, end_s))
    return SpeakerTurns(tuple(merged))
