"""Two stages: gather faces into windows, then run the networks on them.

The networks have their own threads, so that a GPU never waits for a picture to be converted or encoded. Where they can
run side by side, a window is encoded and another one decoded while the one between them is denoised.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.runtime.sessions.pool import Stage
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.jobs import FrameJob, Target
from latentsync_trt.sync.threads import StageClock, spread
from latentsync_trt.sync.windows import Window, WindowPlanner
from latentsync_trt.types import Float32Array, Frame, UInt8Array, UInt16Array

T = TypeVar("T")

Sight = tuple[Frame, Target]
"""A face in one frame."""

Batch = tuple[Sequence[Window[Sight]], Sequence[Float32Array]]
"""Windows to paint together, and the audio features of each, float32 `(F, S, D)`."""

AudioWindows = Callable[[int, Sequence[Frame]], Float32Array]
"""Audio features `(n, S, D)` float32 of a speaker, by number, at these frames."""

# For each of several devices: the batch that it paints, and one that waits, while the oldest is still being painted.
# Where stages run side by side: the batches that are encoded and denoised, while the oldest is decoded.
_BATCHES_AHEAD = 2

_STAGES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The next job (None after the last one), and the windows to paint now."""

    job: FrameJob | None
    windows: Sequence[Window[Sight]] = ()


@dataclass(slots=True, eq=False)
class PaintDevice:
    """A device that paints, and what it has painted so far.

    `inpainter`: runs its networks on windows. `run(action)` runs all that it does for a batch, and
    inside that `stage(name, action)` what "encode", "denoise" or "decode" does; both return the
    action's result. `side_by_side`: stages of several batches run at the same time.
    """

    inpainter: Inpainter
    run: Callable[[Callable[[], Any]], Any] = lambda action: action()
    stage: Callable[[Stage, Callable[[], Any]], Any] = lambda _, action: action()
    side_by_side: bool = False
    windows: int = 0
    busy_s: float = 0.0
    busy_until_s: float = 0.0


class Painter:
    """Paints the mouths of a clip.

    Args:
        devices: each takes the next windows when it is free; may be set until `paint`.
        frames: F, the length of a window.
        audio_windows: runs a network, so it is called in one thread.
        streams: see `WindowPlanner`.
        at_once: how many windows to paint together; called for every frame.
        failures: errors that leave a device out and give its windows to others, except for the last device.
        on_failure: called with the position of such a device and its error, in a thread of its own.
    """

    def __init__(
        self,
        devices: Sequence[PaintDevice],
        frames: int,
        audio_windows: AudioWindows,
        clock: StageClock,
        *,
        streams: int = 1,
        at_once: Callable[[], int] = lambda: 1,
        failures: tuple[type[Exception], ...] = (),
        on_failure: Callable[[int, Exception], object] = lambda *_: None,
    ) -> None:
        self.devices, self._frames, self._audio_windows = tuple(devices), frames, audio_windows
        self.first: tuple[float, int] | None = None
        """When the first windows were painted, on `time.perf_counter`'s scale, and the index after their frames."""
        self._lock = threading.Lock()
        self.streams, self._frames_done = streams, 0
        self._clock, self._at_once = clock, at_once
        self._failures, self._on_failure = failures, on_failure

    def skip(self, frames_done: int) -> None:
        """Leaves out the frames before this one, which have been written already. Their windows are cut as usual."""
        self._frames_done = frames_done

    def gather(self, jobs: Generator[FrameJob, None, None]) -> Generator[Gathered, None, None]:
        """Every job in order, with windows as soon as `at_once` of them are complete, whoever's faces they show.

        Fewer once frames have waited for the duration of `at_once` windows: without faces no window
        completes, and frames would pile up. No frame is held back by more than (`at_once` +
        `streams`)·F frames after it. Each holds one crop for each of its faces.
        """
        planner: WindowPlanner[Sight] = WindowPlanner(self._frames, streams=self.streams)
        ready: list[Window[Sight]] = []
        waited = 0
        with closing(jobs):
            for job in jobs:
                waited = waited + 1 if ready else 0
                ready += self._wanted(planner.push({target.track_id: (job.frame, target) for target in job.targets}))
                at_once = self._at_once()
                if ready and (len(ready) >= at_once or waited >= at_once * self._frames):
                    yield Gathered(job, ready)
                    ready = []
                else:
                    yield Gathered(job)
        ready += self._wanted(planner.finish())
        if ready:
            yield Gathered(None, ready)

    def _wanted(self, windows: Sequence[Window[Sight]]) -> list[Window[Sight]]:
        """Those with a frame that has not been written yet."""
        return [window for window in windows if window.items[window.used[-1]][0].index >= self._frames_done]

    def paint(self, gathered: Generator[Gathered, None, None]) -> Generator[FrameJob, None, None]:
        """Every job in order, with its painted faces, as soon as their windows are done.

        Frames in memory: with one device whose stages run in turn, those that `gather` holds back.
        Several devices need windows to choose from, and finish them out of order, and so do stages
        that run side by side: for each device, up to 2·`at_once`·F frames more wait.
        """
        queue: deque[FrameJob] = deque()
        painted: dict[tuple[int, int], UInt16Array] = {}
        alone = len(self.devices) == 1
        workers = [partial(self._paint, device) for device in self.devices]
        results = spread(
            gathered,
            self._batches,
            workers * (_STAGES if alone and self.devices[0].side_by_side else 1),
            ahead=lambda: _BATCHES_AHEAD * len(self.devices) * self._at_once() * self._frames,
            failures=() if alone else self._failures,
            on_failure=self._on_failure,
        )
        with closing(results):
            for item, batches in results:
                if item.job is not None:
                    queue.append(item.job)
                for windows, faces in batches:
                    painted.update(self._used(windows, faces))
                while queue and (queue[0].frame.index < self._frames_done or _keys(queue[0]) <= painted.keys()):
                    yield _with_faces(queue.popleft(), painted)

    def _batches(self, item: Gathered) -> list[Batch]:
        if not item.windows:
            return []
        with self._clock.measure("encode audio", frames=0):
            audio = [
                self._audio_windows(window.items[0][1].speaker, [frame for frame, _ in window.items])
                for window in item.windows
            ]
        size = self._at_once()
        starts = range(0, len(item.windows), size)
        return [(item.windows[start : start + size], audio[start : start + size]) for start in starts]

    def _paint(self, device: PaintDevice, batch: Batch) -> tuple[Sequence[Window[Sight]], list[Sequence[UInt16Array]]]:
        windows, audio = batch
        count = sum(len(window.used) for window in windows)
        start_s, inpainter = perf_counter(), device.inpainter

        def timed(name: str, action: Callable[..., T], *given: object) -> T:
            with self._clock.measure(name, frames=count):
                return action(*given)

        def paint() -> Any:
            # Not where windows are gathered: a track of one frame makes a window of F faces, and as
            # many windows may wait in the queue as frames.
            stacked = timed("gather", lambda: [_faces(window) for window in windows])
            known = device.stage("encode", partial(timed, "encode faces", inpainter.encode, stacked))
            latents = device.stage("denoise", partial(timed, "denoise", inpainter.denoise, known, audio))
            return device.stage("decode", partial(timed, "decode faces", inpainter.decode, latents))

        results = device.run(paint)
        with self._lock:
            end_s = perf_counter()
            device.windows += len(windows)
            device.busy_s += end_s - max(start_s, device.busy_until_s)  # others may have been painted meanwhile
            device.busy_until_s = end_s
            if self.first is None:
                last = max(window.items[window.used[-1]][0].index for window in windows)
                self.first = end_s, last + 1
        return windows, results

    def _used(
        self, windows: Sequence[Window[Sight]], results: Sequence[Sequence[UInt16Array]]
    ) -> Iterator[tuple[tuple[int, int], UInt16Array]]:
        """The new faces of frames that have not been written yet, by the frame's index and the track."""
        for window, faces in zip(windows, results, strict=True):
            whole = len(window.used) == len(window.items)
            for position in window.used:
                frame, target = window.items[position]
                if frame.index >= self._frames_done:
                    # Copied from a window with unused results, which are part of the same array.
                    yield (frame.index, target.track_id), faces[position] if whole else faces[position].copy()


def _keys(job: FrameJob) -> set[tuple[int, int]]:
    return {(job.frame.index, target.track_id) for target in job.targets}


def _with_faces(job: FrameJob, painted: dict[tuple[int, int], UInt16Array]) -> FrameJob:
    """`job` with those of its faces that are painted, which are taken out."""
    targets = (replace(each, painted=painted.pop((job.frame.index, each.track_id), None)) for each in job.targets)
    return replace(job, targets=tuple(targets))


def _faces(window: Window[Sight]) -> UInt8Array:
    return np.stack([target.face.image for _, target in window.items if target.face is not None])
