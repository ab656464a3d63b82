"""Two stages: find the face in every frame, then crop it.

A face is searched near its last position, so finding is sequential; cropping runs in another thread.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

from latentsync_trt.face.align import crop
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import AlignedFace, FaceDetector, Float64Array, Frame, UInt16Array


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A frame and the results of the stages so far; all results are None where it has no face.

    `track_id` changes when another face follows, or the face was lost in between.
    `matrix (2, 3)`: frame pixels → crop pixels. `painted`: the new face, uint16 `(H, W, 3)`, 257 × level.
    """

    frame: Frame
    track_id: int | None = None
    matrix: Float64Array | None = None
    face: AlignedFace | None = None
    painted: UInt16Array | None = None


class FaceFinder:
    """Finds and crops the face of every frame of a clip; `resolution_px`: side of an aligned face."""

    def __init__(self, detector: FaceDetector, resolution_px: int, clock: StageClock) -> None:
        self._follower = FaceTracker(detector, resolution_px)
        self._resolution_px, self._clock = resolution_px, clock
        self.frames_with_face = 0

    def find(self, frames: Generator[Frame, None, None]) -> Generator[Job, None, None]:
        """A job for every frame, in order."""
        with closing(frames):
            for frame in frames:
                with self._clock.measure("face"):
                    followed = self._follower.update(frame.picture)
                if followed is None:
                    yield Job(frame)
                else:
                    self.frames_with_face += 1
                    yield Job(frame, followed.track_id, followed.matrix)

    def cut_out(self, jobs: Generator[Job, None, None]) -> Generator[Job, None, None]:
        """Every job in order, with its aligned face."""
        with closing(jobs):
            for job in jobs:
                if job.matrix is None:
                    yield job
                    continue
                with self._clock.measure("align"):
                    face = crop(job.frame.picture, job.matrix, self._resolution_px)
                yield replace(job, face=face)
