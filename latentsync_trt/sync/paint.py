"""Paints windows of faces: encode, denoise and decode, each a stage of its own.

The networks have their own threads, so that a GPU never waits for a picture to be converted or encoded. Where they can
run side by side, a window is encoded and another one decoded while the one between them is denoised.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter

import numpy as np

from latentsync_trt.sync.faces import FrameJob, PaintedAt
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.threads import ClipStages, StageClock
from latentsync_trt.sync.windows import FaceView, Gathered, Window, in_batches
from latentsync_trt.types import Float32Array, UInt8Array, UInt16Array

# With one network at a time on the device, each processes this many windows before the next is loaded.
_LOW_MEMORY_WINDOWS = 4

AudioWindows = Callable[[int, Sequence[Fraction]], Float32Array]
"""Audio features `(n, S, D)` float32 of a speaker, by number, at these times."""

Encoded = tuple[Gathered, Sequence[Float32Array]]
"""With a tensor for each window."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """`faces`: new ones, uint16 `(H, H, 3)`, by the frame's index and the track. `windows`: how many were painted now,
    at the time `at`; None if none."""

    job: FrameJob | None
    faces: dict[tuple[int, int], UInt16Array]
    windows: int = 0
    at: PaintedAt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Painter:
    """The stages of painting; each method in one thread.

    Args:
        audio_windows: runs a network. frames_done: frames before this one have been written already, and are left out.
        check: called after each step; raises to stop.
    """

    inpainter: Inpainter
    audio_windows: AudioWindows
    clock: StageClock
    frames_done: int = 0
    check: Callable[[], None] = lambda: None

    def encode(self, item: Gathered) -> Encoded:
        """What the denoiser knows of each window, from its faces."""
        if not item.windows:
            return item, ()
        with self.clock.measure("gather", frames=0):
            faces = [faces_of(window) for window in item.windows]
        with self.clock.measure("encode faces", item.used):
            return item, self.inpainter.encode(faces)

    def denoise(self, encoded: Encoded) -> Encoded:
        """The latents of each window."""
        item, conditioning = encoded
        if not item.windows:
            return item, ()
        with self.clock.measure("encode audio", frames=0):
            audio = [
                self.audio_windows(window.items[0].speaker, [view.time_s for view in window.items])
                for window in item.windows
            ]
        with self.clock.measure("denoise", item.used):
            return item, self.inpainter.denoise(conditioning, audio, lambda *_: self.check())

    def decode(self, denoised: Encoded) -> Decoded:
        """The new faces of frames that have not been written yet."""
        item, latents = denoised
        if not item.windows:
            return Decoded(item.job, {})
        with self.clock.measure("decode faces", item.used):
            painted = self.inpainter.decode(latents)
        faces: dict[tuple[int, int], UInt16Array] = {}
        for window, pictures in zip(item.windows, painted, strict=True):
            whole = len(window.used) == len(window.items)
            for position in window.used:
                view = window.items[position]
                if view.index >= self.frames_done:
                    # Copied from a window with unused results, which are part of the same array.
                    faces[view.index, view.track_id] = pictures[position] if whole else pictures[position].copy()
        end = 1 + max(window.items[window.used[-1]].index for window in item.windows)
        return Decoded(item.job, faces, len(item.windows), PaintedAt(perf_counter(), end))


def painted(
    gathered: Generator[Gathered, None, None], painter: Painter, stages: ClipStages, frames: int, *, in_turn: bool
) -> Generator[FrameJob, None, None]:
    """Every job in order with its painted faces: encode, denoise and decode, each in a thread of its own.

    Args:
        frames: F, the length of a window. in_turn: one network at a time is on the device.
    """
    at_once = max(painter.inpainter.windows_per_batch, _LOW_MEMORY_WINDOWS if in_turn else 1)
    at_once = max(1, min(at_once, stages.spare_frames // frames))  # frames wait until so many windows are complete
    stage = partial(stages.prefetch, depth=at_once * frames)
    encoded = stage(in_batches(gathered, at_once, frames), painter.encode, name="encode faces")
    denoised = stage(encoded, painter.denoise, name="denoise")
    decoded = stage(denoised, painter.decode, name="decode faces")
    return stages.prefetch(in_order(decoded, painter.frames_done), name="paint")


def in_order(decoded: Generator[Decoded, None, None], frames_done: int) -> Generator[FrameJob, None, None]:
    """Every job in order, with its painted faces, as soon as they are there."""
    queue: deque[FrameJob] = deque()
    painted: dict[tuple[int, int], UInt16Array] = {}
    windows, at = 0, None
    with closing(decoded):
        for item in decoded:
            if item.job is not None:
                queue.append(item.job)
            painted.update(item.faces)
            windows, at = windows + item.windows, item.at or at
            while queue:
                job, index = queue[0], queue[0].frame.index
                keys = [(index, target.track_id) for target in job.targets]
                if index >= frames_done and not painted.keys() >= set(keys):
                    break
                new = [painted.pop(key, None) for key in keys]
                targets = (replace(each, painted=face) for each, face in zip(job.targets, new, strict=True))
                queue.popleft()
                yield replace(job, targets=tuple(targets), windows=windows, painted_at=at)
                windows = 0


def faces_of(window: Window[FaceView]) -> UInt8Array:
    """The aligned faces of a window, uint8 `(F, H, H, 3)`."""
    return np.stack([view.image for view in window.items])
