"""Painted faces are inspected, become patches of their frames, and are measured."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np

from latentsync_trt.compositing.blend import Blend, FaceBlender, InspectedFace
from latentsync_trt.compositing.enhancer import enhanced
from latentsync_trt.compositing.fading import PaintedPeople, faded
from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import FittedFace, fit_face
from latentsync_trt.measure.quality import PaintSample, Quality
from latentsync_trt.media.parts import part_of
from latentsync_trt.sync.faces import FrameJob, FrameJobs, Target
from latentsync_trt.sync.redo import left_as_source
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.threads import ClipStages, StageClock
from latentsync_trt.types import AlignedFace, Enhancer, Frame, Patch, UInt16Array

T = TypeVar("T")
Changed = TypeVar("Changed")

_STATELESS_THREADS = 2
"""Threads of a stage without state between frames. One thread would wait for Python's lock half of
its time."""

Item = tuple[FrameJob, tuple[T, ...]]
"""A job, and something of each of its painted faces."""
Items = Generator[Item[T], None, None]
_NOTHING: Any = (None, ())
"""Stands for the frame after the last one."""


@dataclass(frozen=True, slots=True, eq=False)
class PaintedFace:
    """How a face was tracked, cut out and painted."""

    target: Target
    face: AlignedFace
    pixels: UInt16Array
    """The new face, `(R, R, 3)` RGB, 257 × the 8-bit level."""
    opacity: float
    """How much of it shows, in [0, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class InspectedPaint:
    """A painted face, and what its frame alone tells about how it fits in."""

    face: PaintedFace
    fitted: FittedFace
    """The new face as an enhancer has improved it, perhaps larger."""
    inspected: InspectedFace
    blend: Blend = Blend()
    """How it is fitted into its frame, as `FaceBlender.blend` finds it."""


@dataclass(frozen=True, slots=True, eq=False)
class PastedFace:
    """A painted face, pasted into its frame."""

    face: PaintedFace
    sample: PaintSample
    """What is measured of it, with the patch of the frame."""


def composed_frames(
    run: RunContext, quality: Quality, jobs: FrameJobs, stages: ClipStages
) -> Items[Patch]:
    """Returns the jobs of a run in order, with the patch of each painted face."""
    options = run.inputs.options
    blender = FaceBlender(
        run.detector, paste=options.paste, finish=options.finish, seed=options.seed
    )
    composer = Composer(blender, run.inputs.helpers.enhancer, quality, run.clock)
    jobs = left_as_source(jobs, options)
    return composer.stages(jobs, partial(stages.prefetch, on_wait=run.on_progress.ask))


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
        jobs: FrameJobs,
        prefetch: Callable[..., Generator[Any, None, None]],
    ) -> Items[Patch]:
        """Returns the jobs in order, with the patch of each face; three stages, each in threads of
        its own.
        """
        threads = _STATELESS_THREADS if self.enhancer is None else 1
        inspect = self._of_each_face("analyze paste", self._inspected)
        inspected = prefetch(_painted_faces(jobs), inspect, name="analyze paste", threads=threads)
        paste = self._of_each_face("compose", _pasted)
        blended = self._blended(inspected)
        pasted = prefetch(blended, paste, name="compose", threads=_STATELESS_THREADS)
        measure = self._of_each_face("measure", self._measured)
        return prefetch(pasted, measure, name="measure")

    def _of_each_face(
        self, name: str, change: Callable[[Frame, T], Changed]
    ) -> Callable[[Item[T]], Item[Changed]]:
        """Returns a stage that changes each face of a frame."""

        def changed(item: Item[T]) -> Item[Changed]:
            job, faces = item
            with self.clock.measure(name, int(bool(faces))):
                return job, tuple(change(job.frame, face) for face in faces)

        return changed

    def _inspected(self, frame: Frame, face: PaintedFace) -> InspectedPaint:
        pixels = face.pixels
        if self.enhancer is not None:
            pixels = enhanced(pixels, self.enhancer)
        fitted = fit_face(face.face, pixels)
        inspected = self.blender.inspect_face(frame.picture, fitted, face.target.tracked)
        return InspectedPaint(face, fitted, inspected)

    def _blended(self, items: Items[InspectedPaint]) -> Items[InspectedPaint]:
        """Yields the same items with how each face is fitted into its frame; frames in order."""
        part = -1
        with closing(items):
            for (job, paints), (_, following) in pairwise(chain(items, [_NOTHING])):
                time_s = job.frame.time_s
                if part_of(time_s) != part:
                    part = part_of(time_s)
                    self.blender.restart()
                with self.clock.measure("compose", frames=0):
                    blended = tuple(self._blend(time_s, paint, following) for paint in paints)
                yield job, blended

    def _blend(
        self, time_s: Fraction, paint: InspectedPaint, following: Sequence[InspectedPaint]
    ) -> InspectedPaint:
        """Returns the face with how it is fitted into its frame; `following`: those of the next
        frame.
        """
        target = paint.face.target
        after = None
        for other in following:
            if other.face.target.track_id == target.track_id:
                after = other.inspected
        blend = self.blender.blend(target.track_id, time_s, paint.inspected, after)
        return replace(paint, blend=replace(blend, kept=target.kept))

    def _measured(self, frame: Frame, pasted: PastedFace) -> Patch:
        self.quality.add(frame, pasted.face.target.speaker, pasted.sample)
        return with_opacity(pasted.sample.patch, pasted.face.opacity)


def _painted_faces(jobs: FrameJobs) -> Items[PaintedFace]:
    """Yields each job with its painted faces, which fade in and out, and as their heads turn."""
    with closing(faded(jobs, _people)) as fading:
        for job, opacities in fading:
            faces = []
            for target, pixels in zip(job.targets, job.painted, strict=False):
                if target.face is not None:
                    opacity = float(opacities[target.person]) * target.opacity
                    faces.append(PaintedFace(target, target.face, pixels, opacity))
            yield job, tuple(faces)


def _people(job: FrameJob) -> PaintedPeople:
    persons = {target.person for target in job.targets}
    shot = None if job.seen is None else job.seen.shot
    return PaintedPeople(job.frame.time_s, persons, shot)


def _pasted(frame: Frame, paint: InspectedPaint) -> PastedFace:
    face = paint.face
    patch = composite(frame.picture, paint.fitted, paint.blend)
    mesh = paint.inspected.painted_mesh_in_frame
    target = face.target
    sample = PaintSample(
        target.tracked,
        face.face,
        face.pixels,
        patch,
        mesh,
        paint.blend.finish.color,
        target.track_id,
        is_free=not target.kept,
    )
    return PastedFace(face, sample)


def with_opacity(patch: Patch, opacity: float) -> Patch:
    """Returns the patch, of which so much shows."""
    if opacity == 1:
        return patch
    return replace(patch, weight=patch.weight * np.float32(opacity))
