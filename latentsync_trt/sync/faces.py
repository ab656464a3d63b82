"""Frames on their way to the painter: the two stages that find a face in each and cut it out, for threads of their own.

Which frame comes next decides where a face is looked for, so finding goes frame by frame; cutting out need not wait.
"""

from collections.abc import Generator
from contextlib import closing

from latentsync_trt.face.align import crop
from latentsync_trt.face.follower import FaceFollower
from latentsync_trt.sync.job import Job
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import FaceDetector, Float64Array, Frame

Found = tuple[Job, Float64Array | None]
"""A frame and the matrix that cuts its face out, `(2, 3)`, frame pixels → crop pixels; None where there is none."""


class FaceFinder:
    """Finds the face of every frame of a clip, and cuts it out.

    Args:
        detector: finds faces. resolution_px: side of a face that was cut out. clock: takes the times.
    """

    def __init__(self, detector: FaceDetector, resolution_px: int, clock: StageClock) -> None:
        self._follower = FaceFollower(detector, resolution_px)
        self._resolution_px, self._clock = resolution_px, clock
        self.frames_with_face = 0
        """Found so far."""

    def find(self, frames: Generator[Frame, None, None]) -> Generator[Found, None, None]:
        """Every frame in its order."""
        with closing(frames):
            for frame in frames:
                with self._clock.measure("face"):
                    followed = self._follower.update(frame.picture)
                if followed is None:
                    yield Job(frame), None
                else:
                    self.frames_with_face += 1
                    yield Job(frame, track_id=followed.track_id), followed.matrices[0]

    def cut_out(self, found: Generator[Found, None, None]) -> Generator[Job, None, None]:
        """Every frame in its order, with its face."""
        with closing(found):
            for job, matrix in found:
                if matrix is not None:
                    with self._clock.measure("align"):
                        job.face = crop(job.frame.picture, matrix, self._resolution_px)
                yield job
