"""How fast a clip is painted and written, and when it will be done."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from time import perf_counter

_UNPAINTED_COST = Fraction(1, 10)
"""A frame that is not painted takes about this part of the time of one that is."""


@dataclass(frozen=True, slots=True)
class PaintedUntil:
    """A moment, on the scale of `perf_counter`, and which frames were painted by then."""

    time_s: float
    end: int
    """The index after their last frame."""


@dataclass(frozen=True, slots=True)
class PaintingProgress:
    """How far painting was when a frame left it."""

    begun_s: float
    """When the first window began to be encoded, on the scale of `perf_counter`."""
    windows: int
    """How many windows were painted."""
    first: PaintedUntil
    """When the first of them were."""
    last: PaintedUntil
    """When the last of them were."""

    def then(self, later: "PaintingProgress") -> "PaintingProgress":
        """Returns how far painting is with the windows of both."""
        return replace(self, windows=self.windows + later.windows, last=later.last)


class Pace:
    """The pace of the thread that writes frames, and of painting, as frames tell it.

    Args:
        opened_s: when all networks were open, on the scale of `perf_counter`.
        frames_done: how many frames an earlier run has written, which are not painted.
        part: the frames that may be painted.
        window_frames: how many are painted at once.
    """

    def __init__(self, opened_s: float, frames_done: int, part: range, window_frames: int) -> None:
        self.opened_s = opened_s
        self.frames_done = frames_done
        self.painting: PaintingProgress | None = None
        """What the newest frame says."""
        self.written_s = opened_s
        """When the newest frame was written, on the scale of `perf_counter`; when the networks were
        open, where none was."""
        self.from_s: Fraction | None = None
        """When the first frame begins that this run has written."""
        self._part = part
        self._window_frames = window_frames

    def add(self, time_s: Fraction, painting: PaintingProgress | None) -> None:
        """Adds a frame that was written now, and begins at `time_s` of the output."""
        if self.from_s is None:
            self.from_s = time_s
        self.painting = painting
        self.written_s = perf_counter()

    def frames_per_s(self, count: int) -> float:
        """Returns the pace of painting, where `count` frames were written; 0 before any."""
        newest = self._newest(count)
        begun_s = self.opened_s
        if self.painting is not None and self.painting.begun_s < newest.time_s:
            begun_s = self.painting.begun_s
        painted = newest.end - max(self._part.start, self.frames_done)
        return max(painted, 0) / (newest.time_s - begun_s)

    def left_s(self, count: int, expected: int | None) -> float | None:
        """Returns the seconds until the last of `expected` frames, where `count` were written; None
        before one is painted.
        """
        pace = self.frames_per_s(count)
        if not pace or expected is None:
            return None
        newest = self._newest(count)
        stop = min(self._part.stop, expected)
        windows = ceil(max(stop - newest.end, 0) / self._window_frames)
        # A window takes as long for one frame as for all.
        frames = windows * self._window_frames + (expected - max(stop, count)) * _UNPAINTED_COST
        left_s = float(frames) / pace
        if windows:
            left_s -= perf_counter() - newest.time_s
        return max(left_s, 0.0)

    def steady_since(self, count: int) -> PaintedUntil:
        """Returns when the first windows were painted, of a clip of `count` frames; or when the
        networks were open, where fewer frames follow the first windows than these have.
        """
        opened = PaintedUntil(self.opened_s, self.frames_done)
        if self.painting is None:
            return PaintedUntil(self.opened_s, count)
        first = self.painting.first
        if count - first.end < first.end - self.frames_done:
            return opened
        return first

    def _newest(self, count: int) -> PaintedUntil:
        """Returns when the newest of `count` frames that may be painted was painted or written."""
        reached = min(count, self._part.stop)
        if self.painting is not None and self.painting.last.end >= reached:
            return self.painting.last
        return PaintedUntil(self.written_s, reached)
