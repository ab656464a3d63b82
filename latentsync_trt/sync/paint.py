"""Frames on their way through the stages, and the two stages that paint them: gathering windows, running networks.

The networks' thread does nothing else, so that a GPU never waits for a picture to be converted or encoded.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.job import Job
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.sync.windows import Window, WindowPlanner
from latentsync_trt.types import Float32Array, UInt8Array

Gathered = tuple[Window[Job], UInt8Array]
"""A window, and its faces `(F, H, W, 3)`."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A frame, if one is left, and the windows that are to be painted now that it is there."""

    job: Job | None
    windows: Sequence[Gathered] = ()


class Painter:
    """Paints the mouths of a clip.

    Args:
        inpainter: what paints.
        frames: F, the length of a window.
        listen: what frames hear by their numbers: `(n, S, D)` float32. Runs a network, so the painting thread asks.
        clock: takes the times.
        at_once: for how many windows to wait before painting; asked anew each time.
        before: called before each turn of painting.
    """

    def __init__(
        self,
        inpainter: Inpainter,
        frames: int,
        listen: Callable[[list[int]], Float32Array],
        clock: StageClock,
        *,
        at_once: Callable[[], int],
        before: Callable[[], None],
    ) -> None:
        self._inpainter, self._frames, self._listen = inpainter, frames, listen
        self._clock, self._at_once, self._before = clock, at_once, before
        self.windows = 0
        """Painted so far."""

    def gather(self, jobs: Generator[Job, None, None]) -> Generator[Turn, None, None]:
        """Every job in its order, and the windows it completes, its faces side by side."""
        planner: WindowPlanner[Job] = WindowPlanner(self._frames)
        waiting: list[Gathered] = []
        with closing(jobs):
            for job in jobs:
                job.done = job.track_id is None
                waiting += self._gathered(planner.push(job, job.track_id))
                if waiting and len(waiting) >= self._at_once():
                    yield Turn(job, waiting)
                    waiting = []
                else:
                    yield Turn(job)
        waiting += self._gathered(planner.finish())
        if waiting:
            yield Turn(None, waiting)

    def paint(self, turns: Generator[Turn, None, None]) -> Generator[Job, None, None]:
        """Jobs in their order, each when its window was painted; those without a face as soon as it is their turn."""
        queue: deque[Job] = deque()
        with closing(turns):
            for turn in turns:
                if turn.job is not None:
                    queue.append(turn.job)
                if turn.windows:
                    self._paint(turn.windows)
                while queue and queue[0].done:
                    yield queue.popleft()

    def _gathered(self, windows: Sequence[Window[Job]]) -> list[Gathered]:
        if not windows:
            return []
        with self._clock.measure("gather", frames=sum(window.count_new for window in windows)):
            return [(window, _faces(window)) for window in windows]

    def _paint(self, windows: Sequence[Gathered]) -> None:
        self._before()
        with self._clock.measure("paint", frames=sum(window.count_new for window, _ in windows)):
            inputs = [(faces, self._listen([job.frame.index for job in window.items])) for window, faces in windows]
            results = self._inpainter.paint(inputs)
        self.windows += len(windows)
        for (window, _), painted in zip(windows, results, strict=True):
            for position in window.used:
                window.items[position].painted = painted[position]
                window.items[position].done = True


def _faces(window: Window[Job]) -> UInt8Array:
    return np.stack([job.face.image for job in window.items if job.face is not None])
