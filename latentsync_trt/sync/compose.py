"""The stages after painting: painted faces are analyzed, become patches of their frames, and are measured."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np

from latentsync_trt.face.choice import PaintedPeople, faded
from latentsync_trt.face.enhancer import enhanced
from latentsync_trt.face.paste import Finish, InspectedFace, Paster, composite
from latentsync_trt.measure.quality import Pasted, Quality
from latentsync_trt.media.parts import part_of
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.threads import StageClock, prefetch
from latentsync_trt.types import AlignedFace, Enhancer, Frame, Patch, UInt16Array

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 2
"""Of a stage whose frames do not depend on each other. Alone, it would wait for Python's lock half of its time."""

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
    """Pastes painted faces and measures them; starts anew at each part of the file, so that a resumed run is the same.

    `frames_done`: frames before this one have been written already, and pass as they are.
    """

    paster: Paster
    enhancer: Enhancer | None
    quality: Quality
    clock: StageClock
    frames_done: int = 0

    def stages(
        self, jobs: Generator[FrameJob, None, None], prefetch: Callable[..., Generator[Any, None, None]] = prefetch
    ) -> Items[Patch]:
        """Jobs in order, with the new pixels of each face; three stages, each in threads of its own."""
        threads = _THREADS if self.enhancer is None else 1
        analyze = self._each("analyze paste", self._analyzed)
        analyzed = prefetch(self._shown(jobs), analyze, name="analyze paste", threads=threads)
        paste = self._each("compose", self._pasted)
        composed = prefetch(self._finished(analyzed), paste, name="compose", threads=_THREADS)
        return prefetch(composed, self._each("measure", self._measured), name="measure")

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
                is_new = job.frame.index >= self.frames_done
                faces = (
                    Shown(each, each.face, each.painted, shares[each.person])
                    for each in (job.targets if is_new else ())
                    if each.face is not None and each.painted is not None
                )
                yield job, tuple(faces)

    def _analyzed(self, frame: Frame, shown: Shown) -> Analyzed:
        painted = shown.painted if self.enhancer is None else enhanced(shown.painted, self.enhancer)
        return shown, painted, self.paster.inspect_face(frame.picture, shown.face, painted, shown.target.tracked)

    def _finished(self, analyzed: Items[Analyzed]) -> Items[tuple[Analyzed, Finish]]:
        part = -1
        with closing(analyzed):
            for job, faces in analyzed:
                time_s = job.frame.time_s
                if part_of(time_s) != part and job.frame.index >= self.frames_done:
                    part = part_of(time_s)
                    self.paster.restart()
                finish = self.paster.finish
                with self.clock.measure("compose", frames=0):
                    finishes = [finish(shown.target.track_id, time_s, inspected) for shown, _, inspected in faces]
                yield job, tuple(zip(faces, finishes, strict=True))

    def _pasted(self, frame: Frame, known: tuple[Analyzed, Finish]) -> tuple[Shown, Pasted]:
        (shown, painted, inspected), finish = known
        return shown, (composite(frame.picture, shown.face, painted, finish), inspected.painted_mesh)

    def _measured(self, frame: Frame, composed: tuple[Shown, Pasted]) -> Patch:
        (target, face, painted, share), pasted = composed
        self.quality.add(frame, target.speaker, target.tracked, face, painted, pasted)
        patch, _ = pasted
        return patch if share == 1 else replace(patch, weight=patch.weight * np.float32(share))


def _people(job: FrameJob) -> PaintedPeople:
    persons = {target.person for target in job.targets}
    return job.frame.time_s, persons, None if job.seen is None else job.seen.shot
