"""Who speaks when, from an RTTM file as diarization tools write it."""

from bisect import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Self

from latentsync_trt.errors import InputError
from latentsync_trt.media.files import check_file, reading

MARGIN_S = Fraction(1, 5)
"""A face is painted from this long before its turn until this long after: lips open before the first sound is heard,
and a frame attends to 0.1 s of sound around it."""

_LEAST_FIELDS = 8


@dataclass(frozen=True, slots=True)
class Turns:
    """When one speaker is painted: starts and ends, ascending and apart."""

    spans_s: tuple[tuple[Fraction, Fraction], ...]

    def __contains__(self, time_s: Fraction) -> bool:
        position = bisect(self.spans_s, time_s, key=itemgetter(0)) - 1
        return position >= 0 and time_s < self.spans_s[position][1]

    def meet(self, start_s: Fraction, end_s: Fraction) -> bool:
        """Whether any of them is between these times, in part."""
        return any(turn_s < end_s and start_s < turn_end_s for turn_s, turn_end_s in self.spans_s)

    def later(self, by_s: Fraction) -> Self:
        """The same turns, `by_s` later."""
        return type(self)(tuple((start_s + by_s, end_s + by_s) for start_s, end_s in self.spans_s))


def read_turns(path: Path) -> dict[str, Turns]:
    """The turns of every speaker, by name, in the order of their first turns, longer by `MARGIN_S` at both ends.

    Lines look like `SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>`; those of other types are ignored.

    Raises:
        MediaError: the file cannot be read. InputError: a line is damaged, no line is a turn, or several recordings are
        described.
    """
    check_file(path)
    with reading(path):
        lines = path.read_bytes().decode("utf-8-sig", errors="replace").splitlines()
    turns, recordings = dict[str, list[tuple[Fraction, Fraction]]](), dict[str, None]()
    for recording, name, start_s, end_s in _spoken(path, lines):
        recordings[recording] = None
        turns.setdefault(name, []).append((start_s, end_s))
    if not turns:
        raise InputError(f"{path}: has no line that begins with SPEAKER; give an RTTM file", usage=False)
    if len(recordings) > 1:
        names = ", ".join(recordings)
        raise InputError(f"{path}: describes several recordings ({names}); keep the lines of one", usage=False)
    ordered = sorted(turns, key=lambda name: min(turns[name]))
    return {name: _merged(turns[name]) for name in ordered}


def _spoken(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, str, Fraction, Fraction]]:
    """Recording, speaker, start and end of each turn."""
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields[:1] != ["SPEAKER"]:
            continue
        times_s = tuple(map(_seconds, fields[3:5]))
        if len(fields) < _LEAST_FIELDS or None in times_s:
            wanted = "SPEAKER file 1 onset duration <NA> <NA> name <NA> <NA>"
            raise InputError(f"{path}: line {number} is damaged: {line.strip()!r} is not {wanted!r}", usage=False)
        start_s, duration_s = (time_s or Fraction(0) for time_s in times_s)
        yield fields[1], fields[7], start_s, start_s + duration_s


def _seconds(text: str) -> Fraction | None:
    """The number that `text` is, if it is one from 0 on."""
    try:
        value = float(text)
    except ValueError:
        return None
    return Fraction(repr(value)) if 0 <= value < float("inf") else None


def _merged(turns: Iterable[tuple[Fraction, Fraction]]) -> Turns:
    """Turns with their margins, those that meet joined."""
    merged: list[tuple[Fraction, Fraction]] = []
    for turn_start_s, turn_end_s in sorted(turns):
        start_s, end_s = turn_start_s - MARGIN_S, turn_end_s + MARGIN_S
        if merged and start_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
        else:
            merged.append((start_s, end_s))
    return Turns(tuple(merged))
