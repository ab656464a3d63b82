"""Spans of time, in exact seconds, and the frames of an output that a run works on."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter

NO_END_S = Fraction(sys.maxsize)
"""The end of a span that goes on to the end of the output, whenever that is."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A part of the output or of a source, in exact seconds."""

    start_s: Fraction = Fraction(0)
    end_s: Fraction = NO_END_S

    def __contains__(self, time_s: Fraction) -> bool:
        return self.start_s <= time_s < self.end_s

    def __str__(self) -> str:
        return f"{float(self.start_s):.2f} to {float(self.end_s):.2f}"


def joined(spans: Iterable[Span], gap_s: Fraction) -> tuple[Span, ...]:
    """Returns the spans in order; those that are apart by at most `gap_s` become one."""
    ascending = list[Span]()
    for span in sorted(spans):
        if ascending and span.start_s - ascending[-1].end_s <= gap_s:
            before = ascending.pop()
            span = Span(before.start_s, max(before.end_s, span.end_s))
        ascending.append(span)
    return tuple(ascending)


@dataclass(frozen=True, slots=True)
class FrameRanges:
    """Some frames of an output, by their indices."""

    ranges: tuple[range, ...] = (range(sys.maxsize),)
    """Ascending, not empty, and apart from each other."""

    def __contains__(self, index: int) -> bool:
        return any(index in each for each in self.ranges)

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def between(self, start: int, stop: int) -> int:
        """Returns how many of them are from `start` to before `stop`."""
        total = 0
        for span in self.ranges:
            total += len(range(max(span.start, start), min(span.stop, stop)))
        return total

    @property
    def start(self) -> int:
        return self.ranges[0].start if self.ranges else 0

    @property
    def stop(self) -> int:
        return self.ranges[-1].stop if self.ranges else 0


ALL_FRAMES = FrameRanges()


@dataclass(frozen=True, slots=True)
class FramesToDo:
    """The frames of an output that a run works on."""

    write: FrameRanges = ALL_FRAMES
    """Those that the file lacks."""
    paint: FrameRanges = ALL_FRAMES
    """Those, and some before them, so that what carries over between frames has forgotten how it
    began.
    """
    search: FrameRanges = ALL_FRAMES
    """Those in which faces are searched; none after them is read."""
    counted: FrameRanges = ALL_FRAMES
    """Those of which the report and the progress tell."""


def frames_from(index: int) -> FrameRanges:
    """Returns all frames from one on."""
    return FrameRanges((range(index, sys.maxsize),))


def without(frames: range, left_out: Iterable[range]) -> list[range]:
    """Returns what is left of some frames, if anything."""
    left = [frames]
    for each in left_out:
        before = [range(part.start, min(part.stop, each.start)) for part in left]
        after = [range(max(part.start, each.stop), part.stop) for part in left]
        left = [part for part in (*before, *after) if part]
    return left


def merged_ranges(ranges: Iterable[range]) -> FrameRanges:
    """Returns the frames that are in any of the ranges, none of which is empty."""
    merged = list[range]()
    for each in sorted(ranges, key=attrgetter("start")):
        if merged and each.start <= merged[-1].stop:
            before = merged.pop()
            each = range(before.start, max(before.stop, each.stop))
        merged.append(each)
    return FrameRanges(tuple(merged))
