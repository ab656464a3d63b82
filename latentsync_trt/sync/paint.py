"""Paints windows of faces: encode, denoise and decode, each a stage of its own.

The networks have their own threads, so that a GPU never waits for a picture to be converted or encoded.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.runtime.stages import Stage
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.threads import ClipStages, StageClock
from latentsync_trt.sync.windows import FaceView, Group, Window, in_groups
from latentsync_trt.types import Float32Array, Frame, UInt8Array, UInt16Array

R = TypeVar("R")

# With one network at a time on the device, each processes this many windows before the next is loaded.
_LOW_MEMORY_WINDOWS = 4

Encoded = tuple[Group, list[Float32Array], list[Float32Array]]
"""With what the denoiser knows of each window, and its audio features."""

Painted = dict[tuple[int, int], UInt16Array]
"""New faces, uint16 `(H, H, 3)`, by the frame's index and the track."""


@dataclass(slots=True)
class Pace:
    """When windows were painted, and frames written.

    Times are on the scale of `now`. `frames_done`: those that an earlier run wrote; `from_s`: when the first
    one after them begins in the output. `part`: the frames that may be painted; `window_frames`: at once. `begun_s`:
    when painting began. `first`, `last`: when the first and newest windows were painted, and the index after them.
    """

    opened_s: float
    frames_done: int
    part: range = range(sys.maxsize)
    window_frames: int = 1
    from_s: Fraction = Fraction(0)
    windows: int = 0
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    begun_s: float = 0.0
    written_s: float = 0.0
    now: Callable[[], float] = perf_counter

    def painted(self, windows: int, end: int) -> None:
        """Adds windows that were painted now; `end`: the index after their last frame."""
        self.last = self.now(), end
        self.windows, self.first = self.windows + windows, self.first or self.last

    def written(self, frame: Frame) -> None:
        """Adds a frame that was written now."""
        if frame.index == self.frames_done:
            self.from_s = frame.time_s
        self.written_s = self.now()

    def frames_per_s(self, count: int) -> float:
        """The pace of painting since all networks were open, where `count` frames were written; 0 before it begins."""
        time_s, end = self._reached(count)
        since_s = self.begun_s if 0 < self.begun_s < time_s else self.opened_s
        return max(end - max(self.part.start, self.frames_done), 0) / (time_s - since_s)

    def seconds_left(self, count: int, expected: int) -> float | None:
        """Until the last of `expected` frames, where `count` were written; None before a window is painted.

        A window takes as long for one frame as for all, and a frame that is not painted a tenth.
        """
        pace = self.frames_per_s(count)
        if not pace:
            return None
        time_s, end = self._reached(count)
        stop = min(self.part.stop, expected)
        windows = ceil(max(stop - end, 0) / self.window_frames)
        frames = windows * self.window_frames + (expected - max(stop, count)) / 10
        return max(frames / pace - (self.now() - time_s if windows else 0.0), 0.0)

    def _reached(self, count: int) -> tuple[float, int]:
        """When the newest frame that may be painted was painted or written, and the index after it."""
        count = min(count, self.part.stop)
        return self.last if self.last is not None and self.last[1] >= count else (self.written_s, count)

    def under_way(self, count: int) -> tuple[float, int]:
        """When the first windows were painted, and the index after their frames; `count`: of all frames."""
        time_s, end = self.first or (self.opened_s, count)
        if count - end < end - self.frames_done:  # a window takes as long for one frame as for all
            return self.opened_s, self.frames_done
        return time_s, end


@dataclass(frozen=True, slots=True, eq=False)
class Painter:
    """The stages of painting; each method in one thread.

    `audio_windows` runs a network for the audio features `(n, S, D)` float32 of a speaker, by number, at some times.
    Frames before `pace.frames_done` are left out. `check` is called after each step; raises to stop.
    """

    inpainter: Inpainter
    audio_windows: Callable[[int, Sequence[Fraction]], Float32Array]
    clock: StageClock
    pace: Pace
    check: Callable[[], None] = lambda: None

    def encode(self, group: Group) -> Encoded:
        self.pace.begun_s = self.pace.begun_s or self.pace.now()
        with self.clock.measure("encode audio", frames=0):
            audio = [self.audio_windows(each.items[0].speaker, [view.time_s for view in each.items]) for each in group]
        with self.clock.measure("gather", frames=0):
            faces = list(map(faces_of, group))
        return group, self._of_each("encode", "encode faces", group, self.inpainter.encode, faces), audio

    def denoise(self, encoded: Encoded) -> tuple[Group, list[Float32Array]]:
        group, known, audio = encoded
        denoise = partial(self.inpainter.denoise, on_step=lambda *_: self.check())
        return group, self._of_each("denoise", "denoise", group, denoise, known, audio)

    def decode(self, denoised: tuple[Group, list[Float32Array]]) -> Painted:
        """The new faces of frames that have not been written yet."""
        group, latents = denoised
        faces: Painted = {}
        painted = self._of_each("decode", "decode faces", group, self.inpainter.decode, latents)
        for window, pictures in zip(group, painted, strict=True):
            whole = len(window.used) == len(window.items)
            for position in window.used:
                view = window.items[position]
                if view.index >= self.pace.frames_done:
                    # Copied from a window with unused results, which are part of the same array.
                    faces[view.index, view.track_id] = pictures[position] if whole else pictures[position].copy()
        self.pace.painted(len(group), 1 + max(window.items[window.used[-1]].index for window in group))
        return faces

    def _of_each(
        self, stage: Stage, name: str, group: Group, change: Callable[..., R], *given: Sequence[Any]
    ) -> list[R]:
        """`change` of what is `given` of each window, all in one turn of the network."""
        with self.clock.measure(name, sum(len(window.used) for window in group)):
            results: list[R] = self.inpainter.run(stage, lambda: list(map(change, *given)))
            return results


def painted(
    gathered: Generator[FrameJob | Window[FaceView], None, None],
    painter: Painter,
    stages: ClipStages,
    frames: int,
    *,
    in_turn: bool,
) -> Generator[FrameJob, None, None]:
    """Every job in order with its painted faces: encode, denoise and decode, each in a thread of its own.

    `frames`: F, the length of a window. `in_turn`: one network at a time is on the device.
    """
    most = _LOW_MEMORY_WINDOWS if in_turn else 1
    most = max(1, min(most, stages.spare_frames // frames))  # frames wait until so many windows are complete

    def stage(source: Generator[Any, None, None], change: Callable[[Any], Any], name: str) -> Any:
        def changed(item: Any) -> Any:
            return item if isinstance(item, FrameJob) else change(item)

        return stages.prefetch(source, changed, depth=most * frames, name=name)

    encoded = stage(in_groups(gathered, most, frames), painter.encode, "encode faces")
    decoded = stage(stage(encoded, painter.denoise, "denoise"), painter.decode, "decode faces")
    return stages.prefetch(in_order(decoded, painter.pace.frames_done), name="paint")


def in_order(items: Generator[FrameJob | Painted, None, None], frames_done: int) -> Generator[FrameJob, None, None]:
    """Every job in order, with its painted faces, as soon as they are there."""
    queue: deque[FrameJob] = deque()
    painted: Painted = {}
    with closing(items):
        for item in items:
            if isinstance(item, FrameJob):
                queue.append(item)
            else:
                painted.update(item)
            while queue:
                job, index = queue[0], queue[0].frame.index
                keys = [(index, target.track_id) for target in job.targets]
                if index >= frames_done and not painted.keys() >= set(keys):
                    break
                new = [painted.pop(key, None) for key in keys]
                targets = (replace(each, painted=face) for each, face in zip(job.targets, new, strict=True))
                queue.popleft()
                yield replace(job, targets=tuple(targets))


def faces_of(window: Window[FaceView]) -> UInt8Array:
    """The aligned faces of a window, uint8 `(F, H, H, 3)`."""
    return np.stack([view.image for view in window.items])
