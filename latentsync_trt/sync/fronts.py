"""What is in front of the chosen faces of every frame: looked at in few frames while that is
nothing.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction

from latentsync_trt.compositing.occluders import OccluderFinder
from latentsync_trt.config import Occluders
from latentsync_trt.face.align import square
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.sync.faces import FrameJob, FrameJobs
from latentsync_trt.sync.threads import StageClock

_UNSEEN = 4
"""Frames that are not looked at between two in which nothing is in front of a face; what comes is
there for longer, and these are looked at then. They wait, within what `clip_stages` allows to be on
the way between stages.
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
        for job in jobs:
            tracks = [one.track_id for one in job.chosen]
            if len(waiting) < _UNSEEN and self._occluders.is_quiet(tracks):
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
        for job in waiting:
            yield self._seen(job)

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
