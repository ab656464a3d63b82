"""Two stages: find the face in every frame, then crop it.

A face is searched near its last position, so finding is sequential; cropping runs in another thread.
"""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from latentsync_trt.errors import InputError, NoFaceError
from latentsync_trt.face.align import crop
from latentsync_trt.face.checks import LEAST_HEIGHT_PX, LEAST_WIDTH_PX
from latentsync_trt.face.cuts import luma_of
from latentsync_trt.face.square import of_stored, square
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.media.lazy_rgb import LazyRgb
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


_TURN = "ffmpeg -display_rotation ANGLE -i in.mp4 -c copy out.mp4"
_WRONG_TAG = f"its rotation tag is wrong; set it to 0, 90, 180 or 270: {_TURN}"

_MOST_STRETCH = 8
"""Real pixels are at most twice as wide as high; the picture shown to the detector grows with this ratio."""


class FaceFinder:
    """Finds and crops the face of every frame of a clip; counts frames with a face, and with a turned one instead.

    Args:
        resolution_px: side of an aligned face.
        pixel_aspect: width / height of a pixel; faces are detected and aligned in square pixels.
        on_notice: called at the first frame that shows several faces.

    Raises:
        InputError: no real picture has such pixels.
    """

    def __init__(
        self,
        detector: FaceDetector,
        resolution_px: int,
        clock: StageClock,
        *,
        pixel_aspect: Fraction = Fraction(1),
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not 1 <= _MOST_STRETCH * pixel_aspect <= _MOST_STRETCH**2:
            raise InputError(
                f"pixel aspect {pixel_aspect}: the video says that its pixels are that many times as wide as high; "
                "correct it, for square pixels with: ffmpeg -i in.mp4 -vf setsar=1 out.mp4",
                usage=False,
            )
        self._tracker = FaceTracker(detector, resolution_px)
        self._resolution_px, self._clock, self._pixel_aspect = resolution_px, clock, pixel_aspect
        self._on_notice, self._several = on_notice, False
        self.frames_with_face = 0

    @property
    def frames_with_turned_face(self) -> int:
        """Frames without a usable face that show one on its side or upside down."""
        return self._tracker.turned_frames

    def notices(self) -> list[str]:
        """What the user should know about the frames so far."""
        count = self.frames_with_turned_face
        if not count:
            return []
        frames = "1 frame shows" if count == 1 else f"{count} frames show"
        return [
            f"{frames} a face that lies on its side or is upside down, and stay as they are; if the whole video is "
            f"turned, {_WRONG_TAG}"
        ]

    def no_face(self, video: Path, frames: int) -> NoFaceError:
        """The error for a `video` of so many `frames`, none of which shows a usable face."""
        if count := self.frames_with_turned_face:
            return NoFaceError(
                f"{video}: no upright face in any of its {frames} frames, but {count} with one on its side or upside "
                f"down; probably {_WRONG_TAG}"
            )
        return NoFaceError(
            f"{video}: no face in any of its {frames} frames; a face must look at the camera, and be at least "
            f"{LEAST_WIDTH_PX} px wide and {LEAST_HEIGHT_PX} px high"
        )

    def find(self, frames: Generator[Frame, None, None]) -> Generator[Job, None, None]:
        """A job for every frame, in order."""
        with closing(frames):
            for frame in frames:
                with self._clock.measure("face"):
                    job = self._found(frame)
                self._note_several(frame)
                self.frames_with_face += job.track_id is not None
                yield job

    def _note_several(self, frame: Frame) -> None:
        count = self._tracker.faces_found
        if count > 1 and not self._several:
            self._several = True
            self._on_notice(
                f"{count} faces after {float(frame.time_s):.2f} s: one at a time is lip-synced, at first the largest"
            )

    def _found(self, frame: Frame) -> Job:
        shown = square(frame.picture, self._pixel_aspect)
        luma = luma_of(frame.picture) if frame.planes is None else frame.planes.y
        tracked = self._tracker.update(shown, luma)
        if tracked is None:
            # Detection converted the whole picture; a frame that waits to be encoded needs its planes only.
            return Job(frame if frame.planes is None else replace(frame, picture=LazyRgb(frame.planes)))
        return Job(frame, tracked.track_id, of_stored(tracked.matrix, frame.picture, shown))

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
