"""Paints windows of faces: encode, denoise and decode, each a stage of its own; then painted faces
are analyzed, become patches of their frames, and are measured.

The networks have their own threads, so that a GPU never waits for a picture to be converted or
encoded.
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
from typing import Any, NamedTuple, TypeVar

import numpy as np

from latentsync_trt.compositing.blend import Blend, FaceBlender, InspectedFace
from latentsync_trt.compositing.enhancer import enhanced
from latentsync_trt.compositing.fading import PaintedPeople, faded
from latentsync_trt.compositing.paste import composite
from latentsync_trt.measure.quality import Pasted, Quality
from latentsync_trt.media.parts import part_of
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.threads import ClipStages, StageClock, prefetch
from latentsync_trt.sync.windows import Group, Inpainter, Window, faces_of, in_groups
from latentsync_trt.types import AlignedFace, Enhancer, Float32Array, Frame, Patch, UInt16Array

T = TypeVar("T")
R = TypeVar("R")

# With one network at a time on the device, each processes this many windows before the next is
# loaded.
_LOW_MEMORY_WINDOWS = 4

Encoded = tuple[Group, list[Float32Array], list[Float32Array]]
"""With what the denoiser knows of each window, and its audio features."""

Painted = dict[Target, UInt16Array]
"""New faces, uint16 `(H, H, 3)`."""


@dataclass(slots=True)
class Pace:
    """When windows were painted, and frames written.

    Times are on the scale of `perf_counter`. `frames_done`: those that are not painted, as an
    earlier run wrote them; `from_s`: when the first one after them begins in the output. `part`:
    the frames that may be painted; `window_frames`: at once. `begun_s`: when painting began.
    `first`, `last`: when the first and newest windows were painted, and the index after them.
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

    def painted(self, windows: int, end: int) -> None:
        """Adds windows that were painted now; `end`: the index after their last frame."""
        self.last = perf_counter(), end
        self.windows = self.windows + windows
        self.first = self.first or self.last

    def written(self, frame: Frame) -> None:
        """Adds a frame that was written now."""
        if frame.index == self.frames_done:
            self.from_s = frame.time_s
        self.written_s = perf_counter()

    def speed(self, count: int, expected: int | None) -> tuple[float, float | None]:
        """Where `count` frames were written: the frames per second since all networks were open, 0
        before one is painted; and the seconds until the last of `expected`, None before a window is
        painted.

        A window takes as long for one frame as for all, and a frame that is not painted a tenth.
        """
        reached = min(count, self.part.stop)
        # When the newest frame that may be painted was painted or written, and the index after it.
        time_s, end = (
            self.last
            if self.last is not None and self.last[1] >= reached
            else (self.written_s, reached)
        )
        since_s = self.begun_s if 0 < self.begun_s < time_s else self.opened_s
        pace = max(end - max(self.part.start, self.frames_done), 0) / (time_s - since_s)
        if not pace or expected is None:
            return pace, None
        stop = min(self.part.stop, expected)
        windows = ceil(max(stop - end, 0) / self.window_frames)
        frames = windows * self.window_frames + (expected - max(stop, count)) / 10
        return pace, max(frames / pace - (perf_counter() - time_s if windows else 0.0), 0.0)

    def under_way(self, count: int) -> tuple[float, int]:
        """When the first windows were painted, and the index after their frames; `count`: of all
        frames.
        """
        time_s, end = self.first or (self.opened_s, count)
        if count - end < end - self.frames_done:  # a window takes as long for one frame as for all
            return self.opened_s, self.frames_done
        return time_s, end


@dataclass(frozen=True, slots=True, eq=False)
class Painter:
    """The stages of painting; each method in one thread.

    `audio_windows` runs a network for the audio features `(n, S, D)` float32 of a speaker, by
    number, at some times. Frames before `pace.frames_done` are left out. `check` is called after
    each step; raises to stop.
    """

    inpainter: Inpainter
    audio_windows: Callable[[int, Sequence[Fraction]], Float32Array]
    clock: StageClock
    pace: Pace
    check: Callable[[], None] = lambda: None

    def encode(self, group: Group) -> Encoded:
        self.pace.begun_s = self.pace.begun_s or perf_counter()
        with self.clock.measure("encode audio", frames=0):
            audio = [
                self.audio_windows(each.items[0].speaker, [target.time_s for target in each.items])
                for each in group
            ]
        with self.clock.measure("gather", frames=0):
            faces = list(map(faces_of, group))
        return (
            group,
            self._of_each("encode", "encode faces", group, self.inpainter.encode, faces),
            audio,
        )

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
                target = window.items[position]
                if target.index >= self.pace.frames_done:
                    # Copied from a window with unused results, which are part of the same array.
                    faces[target] = pictures[position] if whole else pictures[position].copy()
        self.pace.painted(
            len(group), 1 + max(window.items[window.used[-1]].index for window in group)
        )
        return faces

    def _of_each(
        self, stage: Stage, name: str, group: Group, change: Callable[..., R], *given: Sequence[Any]
    ) -> list[R]:
        """`change` of what is `given` of each window, all in one turn of the network."""
        with self.clock.measure(name, sum(len(window.used) for window in group)):
            results: list[R] = self.inpainter.run(stage, lambda: list(map(change, *given)))
            return results


def painted(
    gathered: Generator[FrameJob | Window[Target], None, None],
    painter: Painter,
    stages: ClipStages,
    frames: int,
    *,
    in_turn: bool,
) -> Generator[FrameJob, None, None]:
    """Every job in order with its painted faces: encode, denoise and decode, each in a thread of
    its own.

    `frames`: F, the length of a window. `in_turn`: one network at a time is on the device.
    """
    most = _LOW_MEMORY_WINDOWS if in_turn else 1
    # frames wait until so many windows are complete
    most = max(1, min(most, stages.spare_frames // frames))

    def stage(source: Generator[Any, None, None], change: Callable[[Any], Any], name: str) -> Any:
        def changed(item: Any) -> Any:
            if isinstance(item, FrameJob):
                return item
            return change(item)

        return stages.prefetch(source, changed, depth=most * frames, name=name)

    encoded = stage(in_groups(gathered, most, frames), painter.encode, "encode faces")
    decoded = stage(stage(encoded, painter.denoise, "denoise"), painter.decode, "decode faces")
    return stages.prefetch(in_order(decoded, painter.pace.frames_done), name="paint")


def in_order(
    items: Generator[FrameJob | Painted, None, None], frames_done: int
) -> Generator[FrameJob, None, None]:
    """Every job in order, with its painted faces, as soon as they are there."""
    queue: deque[FrameJob] = deque()
    painted: Painted = {}
    with closing(items):
        for item in items:
            if isinstance(item, FrameJob):
                queue.append(item)
            else:
                painted.update(item)
            while queue and (
                queue[0].frame.index < frames_done or painted.keys() >= set(queue[0].targets)
            ):
                job = queue.popleft()
                yield replace(
                    job, painted=tuple(painted.pop(each) for each in job.targets if each in painted)
                )


_THREADS = 2
"""Of a stage whose frames do not depend on each other. Alone, it would wait for Python's lock half
of its time.
"""

Item = tuple[FrameJob, tuple[T, ...]]
"""A job, with what is known of each painted face."""
Items = Generator[Item[T], None, None]


class Shown(NamedTuple):
    """How a face was found, cut out and painted, and how much of it shows."""

    target: Target
    face: AlignedFace
    painted: UInt16Array
    share: Fraction


Analyzed = tuple[Shown, UInt16Array, InspectedFace]
"""With the face as an enhancer has improved it."""


@dataclass(frozen=True, slots=True, eq=False)
class Composer:
    """Pastes painted faces and measures them; begins anew at each part of the file, so that a
    resumed run is equal.
    """

    blender: FaceBlender
    enhancer: Enhancer | None
    quality: Quality
    clock: StageClock

    def stages(
        self,
        jobs: Generator[FrameJob, None, None],
        prefetch: Callable[..., Generator[Any, None, None]] = prefetch,
        on_wait: Callable[[], object] = lambda: None,
    ) -> Items[Patch]:
        """Jobs in order, with the new pixels of each face; three stages, each in threads of its
        own. `on_wait`: as for `prefetch`, of the last stage.
        """
        threads = _THREADS if self.enhancer is None else 1
        analyze = self._each("analyze paste", self._analyzed)
        analyzed = prefetch(self._shown(jobs), analyze, name="analyze paste", threads=threads)
        paste = self._each("compose", self._pasted)
        composed = prefetch(self._finished(analyzed), paste, name="compose", threads=_THREADS)
        return prefetch(
            composed, self._each("measure", self._measured), name="measure", on_wait=on_wait
        )

    def _each(self, name: str, change: Callable[[Frame, T], R]) -> Callable[[Item[T]], Item[R]]:
        """`change` of each face of a frame, as part of a stage."""

        def changed(item: Item[T]) -> Item[R]:
            job, faces = item
            with self.clock.measure(name, int(bool(faces))):
                return job, tuple(change(job.frame, face) for face in faces)

        return changed

    def _shown(self, jobs: Generator[FrameJob, None, None]) -> Items[Shown]:
        with closing(faded(jobs, _people)) as shown:
            for job, shares in shown:
                faces = (
                    Shown(target, target.face, painted, shares[target.person])
                    for target, painted in zip(job.targets, job.painted, strict=False)
                    if target.face is not None
                )
                yield job, tuple(faces)

    def _analyzed(self, frame: Frame, shown: Shown) -> Analyzed:
        if self.enhancer is None:
            painted = shown.painted
        else:
            painted = enhanced(shown.painted, self.enhancer)
        return (
            shown,
            painted,
            self.blender.inspect_face(frame.picture, shown.face, painted, shown.target.tracked),
        )

    def _finished(self, analyzed: Items[Analyzed]) -> Items[tuple[Analyzed, Blend]]:
        part = -1
        with closing(analyzed):
            for job, faces in analyzed:
                time_s = job.frame.time_s
                if part_of(time_s) != part:
                    part = part_of(time_s)
                    self.blender.restart()
                blend = self.blender.blend
                with self.clock.measure("compose", frames=0):
                    blends = [
                        blend(shown.target.track_id, time_s, inspected)
                        for shown, _, inspected in faces
                    ]
                yield job, tuple(zip(faces, blends, strict=True))

    def _pasted(self, frame: Frame, known: tuple[Analyzed, Blend]) -> tuple[Shown, Pasted]:
        (shown, painted, inspected), blend = known
        return shown, (
            composite(frame.picture, shown.face, painted, blend),
            inspected.painted_mesh,
        )

    def _measured(self, frame: Frame, composed: tuple[Shown, Pasted]) -> Patch:
        (target, face, painted, share), pasted = composed
        self.quality.add(frame, target.speaker, target.tracked, face, painted, pasted)
        patch, _ = pasted
        if share == 1:
            return patch
        return replace(patch, weight=patch.weight * np.float32(share))


def _people(job: FrameJob) -> PaintedPeople:
    persons = {target.person for target in job.targets}
    return PaintedPeople(job.frame.time_s, persons, None if job.seen is None else job.seen.shot)
