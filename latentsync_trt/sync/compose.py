"""The stages after painting: painted faces are examined, become patches of their frames, and are measured."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from latentsync_trt.config import SyncOptions
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Examined, Pasted, Paster
from latentsync_trt.face.seam import seam_score
from latentsync_trt.media.parts import part_of
from latentsync_trt.sync.enhance import enhanced
from latentsync_trt.sync.fades import faded
from latentsync_trt.sync.jobs import Job, Target
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import AlignedFace, Enhancer, Frame, Mesher, Patch, UInt16Array


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A painted face, perhaps enhanced, that can be pasted; `share`: how much of it shows."""

    target: Target
    face: AlignedFace
    painted: UInt16Array
    examined: Examined
    share: Fraction


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A face that was pasted; `share`: how much of it shows."""

    target: Target
    pasted: Pasted
    share: Fraction


class Composer:
    """Pastes painted faces and measures them; starts anew at each part of the file, so that a resumed run is the same.

    Args:
        frames_done: frames before this one have been written already, and are left out.
    """

    def __init__(
        self, paster: Paster, enhancer: Enhancer | None, quality: Quality, clock: StageClock, frames_done: int = 0
    ) -> None:
        self._paster, self._enhancer, self._quality = paster, enhancer, quality
        self._clock, self._frames_done = clock, frames_done

    def examine(self, jobs: Generator[Job, None, None]) -> Generator[tuple[Frame, tuple[Ready, ...]], None, None]:
        """Frames in order, with what can be known of each face without the frames before."""
        with closing(faded(jobs)) as shown:
            for job, shares in shown:
                if job.frame.index < self._frames_done:
                    continue
                with self._clock.measure("examine", frames=int(bool(job.targets))):
                    targets = ((target, shares[target.person]) for target in job.targets)
                    ready = [found for each in targets if (found := self._ready(job.frame, *each))]
                yield job.frame, tuple(ready)

    def compose(
        self, examined: Generator[tuple[Frame, tuple[Ready, ...]], None, None]
    ) -> Generator[tuple[Frame, tuple[Shown, ...]], None, None]:
        """Frames in order, with each face as it is pasted."""
        part = -1
        with closing(examined):
            for frame, faces in examined:
                with self._clock.measure("compose", frames=int(bool(faces))):
                    if part_of(frame.time_s) != part:
                        part = part_of(frame.time_s)
                        self._paster.restart()
                    shown = tuple(Shown(ready.target, self._pasted(frame, ready), ready.share) for ready in faces)
                yield frame, shown

    def measure(
        self, composed: Generator[tuple[Frame, tuple[Shown, ...]], None, None]
    ) -> Generator[tuple[Frame, tuple[Patch, ...]], None, None]:
        """Frames in order, with the new pixels of each face."""
        part = -1
        with closing(composed):
            for frame, faces in composed:
                with self._clock.measure("measure", frames=int(bool(faces))):
                    if part_of(frame.time_s) != part:
                        part = part_of(frame.time_s)
                        self._quality.restart(frame.time_s)
                    for shown in faces:
                        seam = seam_score(frame.picture, shown.pasted.patch)
                        self._quality.add(frame, shown.target, shown.pasted, seam)
                yield frame, tuple(map(_patch, faces))

    def _ready(self, frame: Frame, target: Target, share: Fraction) -> Ready | None:
        if target.face is None or target.painted is None:
            return None
        painted = target.painted if self._enhancer is None else enhanced(target.painted, self._enhancer)
        examined = self._paster.examine(frame.picture, target.face, painted, target.tracked)
        return Ready(target, target.face, painted, examined, share)

    def _pasted(self, frame: Frame, ready: Ready) -> Pasted:
        track_id = ready.target.track_id
        return self._paster.paste(frame.picture, ready.face, ready.painted, ready.examined, track_id, frame.time_s)


def _patch(shown: Shown) -> Patch:
    patch, share = shown.pasted.patch, shown.share
    return patch if share == 1 else replace(patch, weight=patch.weight * np.float32(share))


def paster_of(mesher: Mesher, resolution_px: int, options: SyncOptions) -> Paster:
    """Pastes faces of this size as `options` say."""
    return Paster(
        mesher,
        mouth_mask(resolution_px),
        paste=options.paste,
    )
