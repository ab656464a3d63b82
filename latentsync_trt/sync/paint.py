"""Two stages: gather faces into windows, then run the networks on them.

The networks have their own thread, so that a GPU never waits for a picture to be converted or encoded.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from latentsync_trt.sync.faces import Job
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.sync.windows import Window, WindowPlanner
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The next job (None after the last one), and the windows to paint now."""

    job: Job | None
    windows: Sequence[Window[Job]] = ()


class Painter:
    """Paints the mouths of a clip.

    Args:
        inpainter: runs the networks on windows.
        frames: F, the length of a window.
        audio_windows: audio features of frames by their index: `(n, S, D)` float32. Runs a network, so it is called in
            the painting thread.
        at_once: how many windows to paint together; called for every frame.
        before: called before windows are painted.
    """

    def __init__(
        self,
        inpainter: Inpainter,
        frames: int,
        audio_windows: Callable[[list[int]], Float32Array],
        clock: StageClock,
        *,
        at_once: Callable[[], int] = lambda: 1,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._inpainter, self._frames, self._audio_windows = inpainter, frames, audio_windows
        self._clock, self._at_once, self._before = clock, at_once, before
        self.windows = 0

    def gather(self, jobs: Generator[Job, None, None]) -> Generator[Gathered, None, None]:
        """Every job in order, with windows as soon as `at_once` of them are complete.

        Fewer once frames have waited for the duration of `at_once` windows: without faces no window completes, and
        frames would pile up. No frame is held back by more than (`at_once` + 1)·F frames after it.
        """
        planner: WindowPlanner[Job] = WindowPlanner(self._frames)
        ready: list[Window[Job]] = []
        waited = 0
        with closing(jobs):
            for job in jobs:
                waited = waited + 1 if ready else 0
                ready += planner.push(job, job.track_id)
                at_once = self._at_once()
                if ready and (len(ready) >= at_once or waited >= at_once * self._frames):
                    yield Gathered(job, ready)
                    ready = []
                else:
                    yield Gathered(job)
        ready += planner.finish()
        if ready:
            yield Gathered(None, ready)

    def paint(self, gathered: Generator[Gathered, None, None]) -> Generator[Job, None, None]:
        """Every job in order, with its painted face if it has one, as soon as its window is done."""
        queue: deque[Job] = deque()
        painted: dict[int, UInt16Array] = {}
        with closing(gathered):
            for item in gathered:
                if item.job is not None:
                    queue.append(item.job)
                if item.windows:
                    painted |= self._paint(item.windows)
                while queue and (queue[0].track_id is None or queue[0].frame.index in painted):
                    job = queue.popleft()
                    yield replace(job, painted=painted.pop(job.frame.index, None))

    def _paint(self, windows: Sequence[Window[Job]]) -> dict[int, UInt16Array]:
        """New faces by the index of their frame."""
        self._before()
        # Here, not where windows are gathered: a track of one frame makes a window of F faces, and as many windows may
        # wait in the queue as frames.
        with self._clock.measure("gather", frames=sum(window.count_new for window in windows)):
            stacked = [_faces(window) for window in windows]
        with self._clock.measure("paint", frames=sum(window.count_new for window in windows)):
            audio = [self._audio_windows(_indices(window)) for window in windows]
            results = self._inpainter.paint(list(zip(stacked, audio, strict=True)))
        self.windows += len(windows)
        painted: dict[int, UInt16Array] = {}
        for window, faces in zip(windows, results, strict=True):
            partial = window.count_new < self._frames
            for position in window.used:
                # Copied from a window with unused results, which are part of the same array.
                face = faces[position].copy() if partial else faces[position]
                painted[window.items[position].frame.index] = face
        return painted


def _indices(window: Window[Job]) -> list[int]:
    return [job.frame.index for job in window.items]


def _faces(window: Window[Job]) -> UInt8Array:
    return np.stack([job.face.image for job in window.items if job.face is not None])
