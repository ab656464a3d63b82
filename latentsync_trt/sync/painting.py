"""Paints windows of faces: encode, denoise and decode, each a stage of its own.

The networks have their own threads, so that a GPU never waits for a picture to be converted or
encoded.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter
from typing import Any

from latentsync_trt.runtime.model import Model
from latentsync_trt.spans import ALL_FRAMES, FrameRanges
from latentsync_trt.sync.faces import FrameJob, FrameJobs, Target
from latentsync_trt.sync.inpainter import Inpainter
from latentsync_trt.sync.pace import PaintedUntil, PaintingProgress
from latentsync_trt.sync.threads import ClipStages, StageClock
from latentsync_trt.sync.windows import GatheredJobs, Window, faces_of, in_groups
from latentsync_trt.types import Float32Array, UInt16Array

_LOW_MEMORY_WINDOWS = 4
"""Windows that a network processes before the next one is loaded, where the device holds only one
network at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedWindow:
    """A window of faces, ready to be denoised."""

    window: Window[Target]
    conditioning: Float32Array
    """What the denoiser knows of the faces, `(9, F, h, w)`."""
    audio: Float32Array
    """The audio features of each frame, `(F, S, D)`."""
    begun_s: float
    """When its encoding began, on the scale of `perf_counter`."""


@dataclass(frozen=True, slots=True, eq=False)
class DenoisedWindow:
    """A window of faces, ready to be decoded."""

    window: Window[Target]
    latents: Float32Array
    """The new faces, `(4, F, h, w)`."""
    begun_s: float
    """When its encoding began, on the scale of `perf_counter`."""


@dataclass(frozen=True, slots=True, eq=False)
class PaintedWindows:
    """The new faces of windows that were painted together."""

    faces: dict[Target, UInt16Array]
    """Pictures `(H, H, 3)`, 257 × the 8-bit level; none of frames that are not painted."""
    progress: PaintingProgress
    """How far painting is with these windows alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Painter:
    """The stages of painting; each method in one thread."""

    inpainter: Inpainter
    audio_windows: Callable[[int, Sequence[Fraction]], Float32Array]
    """Runs a network for the audio features `(n, S, D)` of a speaker, by number, at some times."""
    paint: FrameRanges
    """The frames that are painted."""
    clock: StageClock
    check: Callable[[], None]
    """Called after each step of denoising; raises to stop."""

    def encode(self, windows: Sequence[Window[Target]]) -> list[EncodedWindow]:
        begun_s = perf_counter()
        with self.clock.measure("encode audio", frames=0):
            audio = [self._audio_of(window) for window in windows]
        with self.clock.measure("gather", frames=0):
            faces = [faces_of(window) for window in windows]
        with self.clock.measure("encode faces", _new_frames(windows)):
            conditioning = self.inpainter.run_each("encode", self.inpainter.encode_faces, faces)
        return [
            EncodedWindow(*encoded, begun_s)
            for encoded in zip(windows, conditioning, audio, strict=True)
        ]

    def _audio_of(self, window: Window[Target]) -> Float32Array:
        times_s = [target.time_s for target in window.items]
        return self.audio_windows(window.items[0].speaker, times_s)

    def denoise(self, encoded: Sequence[EncodedWindow]) -> list[DenoisedWindow]:
        with self.clock.measure("denoise", _new_frames([each.window for each in encoded])):
            return self.inpainter.run_each("denoise", self._denoised, encoded)

    def _denoised(self, encoded: EncodedWindow) -> DenoisedWindow:
        latents = self.inpainter.denoise(encoded.conditioning, encoded.audio, self._after_step)
        return DenoisedWindow(encoded.window, latents, encoded.begun_s)

    def _after_step(self, *_: int) -> None:
        self.check()

    def decode(self, denoised: Sequence[DenoisedWindow]) -> PaintedWindows:
        windows = [each.window for each in denoised]
        latents = [each.latents for each in denoised]
        with self.clock.measure("decode faces", _new_frames(windows)):
            pictures = self.inpainter.run_each("decode", self.inpainter.decode_faces, latents)
        faces = dict[Target, UInt16Array]()
        for window, painted in zip(windows, pictures, strict=True):
            faces |= self._new_faces(window, painted)
        last_items = [window.items[window.used[-1]] for window in windows]
        end = 1 + max(item.index for item in last_items)
        until = PaintedUntil(perf_counter(), end)
        progress = PaintingProgress(denoised[0].begun_s, len(windows), until, until)
        return PaintedWindows(faces, progress)

    def _new_faces(
        self, window: Window[Target], painted: Sequence[UInt16Array]
    ) -> dict[Target, UInt16Array]:
        faces = dict[Target, UInt16Array]()
        uses_all = len(window.used) == len(window.items)
        for position in window.used:
            target = window.items[position]
            if target.index in self.paint:
                picture = painted[position]
                # Pictures of a window are parts of one array, which would stay in memory.
                faces[target] = picture if uses_all else picture.copy()
        return faces


def _new_frames(windows: Sequence[Window[Target]]) -> int:
    """Returns how many frames the results of these windows are used for."""
    return sum(len(window.used) for window in windows)


def paint_frames(
    gathered: GatheredJobs,
    painter: Painter,
    stages: ClipStages,
    model: Model,
) -> FrameJobs:
    """Yields every job in order with its painted faces: encode, denoise and decode, each in a
    thread of its own.
    """
    window_frames = model.bundle.manifest.frames
    most = 1
    if model.memory_plan.mode == "one network at a time":
        # Frames wait until so many windows are complete.
        most = max(1, min(stages.spare_frames // window_frames, _LOW_MEMORY_WINDOWS))

    stage = partial(stages.prefetch, depth=most * window_frames)
    groups = in_groups(gathered, most, window_frames)
    encoded = stage(groups, partial(_unless_frame, painter.encode), name="encode faces")
    denoised = stage(encoded, partial(_unless_frame, painter.denoise), name="denoise")
    decoded = stage(denoised, partial(_unless_frame, painter.decode), name="decode faces")
    return stages.prefetch(in_order(decoded, painter.paint), name="paint")


def _unless_frame(change: Callable[[Any], Any], item: Any) -> Any:
    """Changes windows, and passes frames on."""
    if isinstance(item, FrameJob):
        return item
    return change(item)


def in_order(
    items: Generator[FrameJob | PaintedWindows, None, None], paint: FrameRanges = ALL_FRAMES
) -> FrameJobs:
    """Yields every job in order, with its painted faces, as soon as these are there."""
    waiting: deque[FrameJob] = deque()
    painted = dict[Target, UInt16Array]()
    progress: PaintingProgress | None = None

    def is_ready(job: FrameJob) -> bool:
        if job.frame.index not in paint:
            return True
        return painted.keys() >= set(job.targets)

    with closing(items):
        for item in items:
            if isinstance(item, FrameJob):
                waiting.append(item)
            else:
                painted |= item.faces
                if progress is None:
                    progress = item.progress
                else:
                    progress = progress.then(item.progress)
            while waiting and is_ready(waiting[0]):
                job = waiting.popleft()
                faces = tuple(painted.pop(each) for each in job.targets if each in painted)
                yield replace(job, painted=faces, painting=progress)
