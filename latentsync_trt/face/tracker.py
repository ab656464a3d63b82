"""The one face of a video that is lip-synced, from frame to frame."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from latentsync_trt.face.blaze import iou
from latentsync_trt.types import Face, FaceDetector, UInt8Array

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 50, 80
LEAST_ASPECT, MOST_ASPECT = 0.2, 1.5
"""Width over height that a face to be aligned may have."""

_CONTINUES_IOU = 0.3
"""The least overlap of one frame's box with the last one's; a cut to another face has less."""


@runtime_checkable
class FollowingDetector(FaceDetector, Protocol):
    """A detector that can also look where the face was, which is faster and steadier than searching."""

    def follow(self, frame: UInt8Array, previous: Face) -> Face | None:
        """The face near where `previous` was one frame ago, or None."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TrackedFace:
    """The face in one frame; `track_id` changes whenever it is not the continuation of the frame before."""

    face: Face
    track_id: int


class FaceTracker:
    """Stays with one face: the largest at first, then the one that overlaps it; searches only when that is lost."""

    def __init__(self, detector: FaceDetector) -> None:
        self._detector = detector
        self._last: Face | None = None
        self._track_id = -1

    def update(self, frame: UInt8Array) -> TrackedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB, or None."""
        face = self._followed(frame) or self._found(frame)
        if face is None:
            self._last = None
            return None
        if self._last is None or not _continues(self._last, face):
            self._track_id += 1
        self._last = face
        return TrackedFace(face, self._track_id)

    def _followed(self, frame: UInt8Array) -> Face | None:
        if self._last is None or not isinstance(self._detector, FollowingDetector):
            return None
        face = self._detector.follow(frame, self._last)
        return face if face is not None and usable(face) and _continues(self._last, face) else None

    def _found(self, frame: UInt8Array) -> Face | None:
        faces = [face for face in self._detector.detect(frame) if usable(face)]
        if self._last is not None:
            continuing = [face for face in faces if _continues(self._last, face)]
            faces = continuing or faces
        return max(faces, key=_area, default=None)


def usable(face: Face) -> bool:
    """Whether a face is large enough and seen from the front enough to be aligned."""
    width, height = (face.box[2:] - face.box[:2]).tolist()
    large = width >= LEAST_WIDTH_PX and height >= LEAST_HEIGHT_PX
    return bool(large and LEAST_ASPECT <= width / height <= MOST_ASPECT and np.isfinite(face.points).all())


def _continues(last: Face, face: Face) -> bool:
    return bool(iou(last.box, face.box[None])[0] >= _CONTINUES_IOU)


def _area(face: Face) -> float:
    return float(np.prod(face.box[2:] - face.box[:2]))
