"""How fast a clip is painted and written, and when it will be done."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from time import perf_counter

from latentsync_trt.spans import FramesToDo
from latentsync_trt.types import Frame

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
        todo: which frames are painted and written.
        synced: the frames in the part that is synced.
        frames: about how many the output has; None if unknown.
        window_frames: how many are painted at once.
    """

    def __init__(
        self,
        opened_s: float,
        todo: FramesToDo,
        synced: range,
        frames: int | None,
        window_frames: int,
    ) -> None:
        self.opened_s = opened_s
        self.painting: PaintingProgress | None = None
        """What the newest frame says."""
        self.written_s = opened_s
        """When the newest frame was written, on the scale of `perf_counter`; when the networks were
        open, where none was."""
        self.from_s: Fraction | None = None
        """When the first frame begins that this run has written."""
        self.end = todo.paint.start
        """The index after the newest frame that was painted and written."""
        self.total: int | None = None
        """About how many frames are counted."""
        self._stop: int | None = None
        if frames is not None:
            self.total = min(frames, len(todo.counted))
            self._stop = min(frames, todo.write.stop)
        self._todo = todo
        self._part = range(synced.start, min(synced.stop, todo.paint.stop))
        self._window_frames = window_frames

    def add(self, frame: Frame, painting: PaintingProgress | None) -> None:
        """Adds a frame that was written now."""
        if self.from_s is None:
            self.from_s = frame.time_s
        self.end = frame.index + 1
        self.painting = painting
        self.written_s = perf_counter()

    def frames_per_s(self) -> float:
        """Returns the pace of painting; 0 before any frame."""
        newest = self._newest()
        begun_s = self.opened_s
        if self.painting is not None and self.painting.begun_s < newest.time_s:
            begun_s = self.painting.begun_s
        painted = self._todo.paint.between(self._part.start, newest.end)
        return painted / (newest.time_s - begun_s)

    def left_s(self) -> float | None:
        """Returns the seconds until the last frame; None before one is painted, or if the
        last one is unknown.
        """
        pace = self.frames_per_s()
        if not pace or self._stop is None:
            return None
        expected = max(self._stop, self.end)
        newest = self._newest()
        stop = min(self._part.stop, expected)
        windows = ceil(self._todo.paint.between(newest.end, stop) / self._window_frames)
        # A window takes as long for one frame as for all.
        unpainted = expected - max(stop, self.end)
        frames = windows * self._window_frames + unpainted * _UNPAINTED_COST
        left_s = float(frames) / pace
        if windows:
            left_s -= perf_counter() - newest.time_s
        return max(left_s, 0.0)

    def steady_since(self) -> PaintedUntil:
        """Returns when the first windows were painted; or when the networks were open, where fewer
        frames follow the first windows than these have.
        """
        if self.painting is None:
            return PaintedUntil(self.opened_s, self.end)
        paint = self._todo.paint
        first = self.painting.first
        if paint.between(first.end, self.end) < paint.between(0, first.end):
            return PaintedUntil(self.opened_s, paint.start)
        return first

    def painted_per_s(self) -> float:
        """Returns how many frames were painted a second since `steady_since`."""
        steady = self.steady_since()
        painting_s = self.written_s - steady.time_s
        painted = self._todo.paint.between(steady.end, self.end)
        return painted / painting_s if painting_s else 0.0

    def _newest(self) -> PaintedUntil:
        """Returns when the newest frame that may be painted was painted or written."""
        reached = min(self.end, self._part.stop)
        if self.painting is not None and self.painting.last.end >= reached:
            return self.painting.last
        return PaintedUntil(self.written_s, reached)
