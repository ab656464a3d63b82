"""What is in front of the chosen faces of every frame: looked at in few frames while that is
nothing.
"""

from collections.abc import Generator, Hashable, Mapping
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

import cv2
import numpy as np

from latentsync_trt.compositing.occluders import OccluderFinder
from latentsync_trt.config import Occluders
from latentsync_trt.face.align import inverse, square, stretch, transformed
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.sync.faces import FrameJob, FrameJobs
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import UInt8Array

UNSEEN_FRAMES = 7
"""Frames that are not looked at between two, where nothing is in front and faces do not change at
once: what comes slowly is there for longer, and these are looked at then.
"""
_MOUTH_CELLS = 16
"""Mouths are compared at so many cells along both sides."""
_CHANGED_LEVELS = 30
_CHANGED_CELLS = 45
"""A mouth changes at once where so many of its 256 cells change by more than so many levels. So,
one of four to six frames of three people who talk is looked at.
"""


def with_fronts(
    jobs: FrameJobs,
    option: Occluders,
    detector: MediaPipeDetector,
    pixel_aspect: Fraction,
    clock: StageClock | None = None,
) -> FrameJobs:
    """Returns jobs with what is in front of their faces, or the same ones, where the option says to
    paint over that.
    """
    if option == "paint":
        return jobs
    return FrontStage(OccluderFinder(detector), clock or StageClock(), pixel_aspect).look(jobs)


class FrontStage:
    """Finds what is in front of faces.

    Args:
        pixel_aspect: width / height of a pixel; faces are in square pixels.
    """

    def __init__(
        self, occluders: OccluderFinder, clock: StageClock, pixel_aspect: Fraction = Fraction(1)
    ) -> None:
        self._occluders = occluders
        self._clock = clock
        self._pixel_aspect = pixel_aspect

    def look(self, jobs: FrameJobs) -> FrameJobs:
        """Yields every job in order with what is in front of its faces, and their places behind
        that. As long as nothing is, only one of a few frames is looked at, and those before it
        where something has come.
        """
        with closing(jobs):
            yield from self._look(jobs)

    def _look(self, jobs: Generator[FrameJob, None, None]) -> FrameJobs:
        waiting: list[FrameJob] = []
        seen_mouths: dict[Hashable, UInt8Array] = {}
        for job in jobs:
            mouths = self._mouths(job)
            is_quiet = self._occluders.is_quiet(mouths) and not _changed(seen_mouths, mouths)
            if is_quiet and len(waiting) < UNSEEN_FRAMES:
                waiting.append(job)
                continue
            before = self._occluders.state()
            seen = self._seen(job)
            if waiting and any(one.front is not None for one in seen.chosen):
                self._occluders.restore(before)
                waiting = [self._seen(each) for each in waiting]
                seen = self._seen(job)
            yield from waiting
            yield seen
            waiting = []
            seen_mouths = mouths
        for job in waiting:
            yield self._seen(job)

    def _mouths(self, job: FrameJob) -> dict[Hashable, UInt8Array]:
        """Returns the lower half of each face, `(16, 16)` levels of green, by track."""
        mouths: dict[Hashable, UInt8Array] = {}
        picture = job.frame.picture
        from_square = inverse(stretch(picture, self._pixel_aspect))
        for one in job.chosen:
            low, high = transformed(one.face.box.reshape(2, 2), from_square)
            left, top = np.maximum(low, 0).astype(int)
            right, bottom = np.ceil(high).astype(int)
            part = picture[(top + bottom) // 2 : bottom, left:right]
            size_px = (_MOUTH_CELLS, _MOUTH_CELLS)
            if part.size:
                cells = cv2.resize(part, size_px, interpolation=cv2.INTER_AREA)
                mouths[one.track_id] = np.asarray(cells[..., 1], np.uint8)
        return mouths

    def _seen(self, job: FrameJob) -> FrameJob:
        """Returns a job with what is in front of its faces, and their places behind that."""
        if not job.chosen:
            return job
        frame = job.frame
        chosen = []
        with self._clock.measure("occluders"):
            picture = square(frame.picture, self._pixel_aspect)
            for one in job.chosen:
                face, front = self._occluders.find(picture, one.track_id, one.face, frame.time_s)
                chosen.append(replace(one, face=face, front=front))
        return replace(job, chosen=tuple(chosen))


def _changed(before: Mapping[Hashable, UInt8Array], mouths: Mapping[Hashable, UInt8Array]) -> bool:
    """Returns whether a mouth changes at once, or is a new one."""
    for track_id, cells in mouths.items():
        if track_id not in before:
            return True
        change = cv2.absdiff(cells, before[track_id])
        if np.count_nonzero(change > _CHANGED_LEVELS) >= _CHANGED_CELLS:
            return True
    return False
