"""Paints windows of a session in threads, ahead of the frames that are shown."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from latentsync_trt.live.frame import FRAME_S, Counts
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.types import Float32Array, Patch, UInt16Array, YuvPlanes

if TYPE_CHECKING:
    from latentsync_trt.live.painter import SessionPainter

_HEADROOM = 1.1
"""How much longer painting may take than the slowest of the last windows did."""
_REMEMBERED_WINDOWS = 8
"""Windows of which it is known how long they took."""


class WindowCanceled(Exception):
    """The window is not wanted any more."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadyFrame:
    """A painted frame that waits to be shown."""

    planned: PlannedFrame
    planes: YuvPlanes
    patch: Patch


class PaintedAhead:
    """The windows of a session that are being painted, and the frames that are ready.

    Args:
        executors: of painting and of compositing; each runs its tasks in order, one at a time. None
            for threads of its own.
        now: the session's clock, in seconds.
        paint_s: how long it takes until the first frames of a window are ready, as measured.
        counts: gets `windows` and `painting_s`.
        on_painted: called when a window is painted, with `changed` held.
    """

    def __init__(
        self,
        painter: "SessionPainter",
        executors: tuple[Executor, Executor] | None,
        now: Callable[[], float],
        paint_s: float,
        counts: Counts,
        on_painted: Callable[[], None],
    ) -> None:
        self.changed = threading.RLock()
        """Held by who reads or changes the state of the session."""
        self.ready = deque[ReadyFrame]()
        """The first of the planned frames."""
        self.is_painting = False
        self.error: BaseException | None = None
        """What painting raised."""
        self._painter = painter
        self._executors = executors or (
            ThreadPoolExecutor(1, "live paint"),
            ThreadPoolExecutor(1, "live compose"),
        )
        self._now = now
        self._took_s = deque([paint_s], maxlen=_REMEMBERED_WINDOWS)
        self._counts = counts
        self._on_painted = on_painted
        self._generation = 0

    @property
    def paint_frames(self) -> int:
        """How many frames pass while the first ones of a window are painted."""
        return ceil(_HEADROOM * max(self._took_s) / FRAME_S)

    def paint(self, planned: Sequence[PlannedFrame], ahead: Float32Array) -> None:
        """Begins to paint a window; `ahead`: as for `SessionPainter.latents`."""
        self.is_painting = True
        task = partial(self._paint, self._generation, planned, ahead, self._now())
        painting, _ = self._executors
        painting.submit(task).add_done_callback(self._after_painting)

    def cancel(self) -> None:
        """Stops what is being painted; the step under way is the last."""
        self._generation += 1

    def close(self) -> None:
        for executor in self._executors:
            executor.shutdown()

    # In the threads of the executors.

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise WindowCanceled

    def _paint(
        self, generation: int, planned: Sequence[PlannedFrame], ahead: Float32Array, begun_s: float
    ) -> None:
        check = partial(self._check, generation)
        latents = self._painter.latents(planned, ahead, check)
        _, composing = self._executors
        first_s: float | None = begun_s
        for frame, painted in zip(planned, self._painter.decoded(latents), strict=True):
            check()
            task = partial(self._compose, generation, frame, painted, first_s)
            composing.submit(task).add_done_callback(self._keep_error)
            first_s = None
        self._counts.windows += 1
        self._counts.painting_s += self._now() - begun_s

    def _compose(
        self, generation: int, planned: PlannedFrame, painted: UInt16Array, begun_s: float | None
    ) -> None:
        """Makes a frame ready; `begun_s`: when its window was begun, for the first frame of one."""
        self._check(generation)
        patch = self._painter.patch(planned.position, painted, begins=planned.begins)
        planes = self._painter.picture(planned.position, patch, planned.opacity)
        with self.changed:
            if generation == self._generation:
                self.ready.append(ReadyFrame(planned, planes, patch))
                if begun_s is not None:
                    self._took_s.append(self._now() - begun_s)

    def _after_painting(self, done: Future[None]) -> None:
        with self.changed:
            self.is_painting = False
            self._keep_error(done)
            self._on_painted()

    def _keep_error(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, WindowCanceled):
            with self.changed:
                self.error = self.error or error
