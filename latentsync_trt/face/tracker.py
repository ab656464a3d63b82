"""The one face of a video that is lip-synced, from frame to frame."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.blaze import iou
from latentsync_trt.types import Face, FaceDetector, Picture

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 50, 80
LEAST_ASPECT, MOST_ASPECT = 0.2, 1.5
"""Width over height that a face to be aligned may have."""

_CONTINUES_IOU = 0.3
"""The least overlap of one frame's box with the last one's; a cut to another face has less."""

PATIENCE_FRAMES = MODEL_FPS
"""One second: how long a lost face is waited for while others, who were there before, stay in the picture."""


@runtime_checkable
class FollowingDetector(FaceDetector, Protocol):
    """A detector that can also look where the face was, which is faster and steadier than searching."""

    def follow(self, frame: Picture, previous: Face) -> Face | None:
        """The face near where `previous` was one frame ago, or None."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TrackedFace:
    """The face in one frame; `track_id` changes whenever it is not the continuation of the frame before."""

    face: Face
    track_id: int


class FaceTracker:
    """Stays with one face: the largest at first, then the one that overlaps it; searches only when that is lost.

    A lost face is replaced at once by one that was not there before, which a cut brings, but by a bystander only after
    `PATIENCE_FRAMES`.
    """

    def __init__(self, detector: FaceDetector) -> None:
        self._detector = detector
        self._last: Face | None = None
        self._lost_frames = 0
        self._track_id = -1
        self._previous: Picture | None = None
        self._searched: list[Face] = []

    def update(self, frame: Picture) -> TrackedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB, or None."""
        face = self._followed(frame) or self._found(frame)
        self._previous = frame
        if face is None:
            self._lost_frames += 1
            if self._lost_frames >= PATIENCE_FRAMES:
                self._last = None
            return None
        if self._last is None or self._lost_frames or not _continues(self._last, face):
            self._track_id += 1
        self._last, self._lost_frames = face, 0
        return TrackedFace(face, self._track_id)

    def _followed(self, frame: Picture) -> Face | None:
        if self._last is None or self._lost_frames or not isinstance(self._detector, FollowingDetector):
            return None
        face = self._detector.follow(frame, self._last)
        return face if face is not None and usable(face) and _continues(self._last, face) else None

    def _found(self, frame: Picture) -> Face | None:
        faces = [face for face in self._detector.detect(np.asarray(frame)) if usable(face)]
        before, self._searched = self._searched, faces
        if self._last is None:
            return max(faces, key=_area, default=None)
        overlaps = iou(self._last.box, np.array([face.box for face in faces], np.float32).reshape(-1, 4))
        if faces and overlaps.max() >= _CONTINUES_IOU:
            return faces[int(overlaps.argmax())]
        return max((face for face in faces if not self._was_there(face, before)), key=_area, default=None)

    def _was_there(self, face: Face, before: list[Face]) -> bool:
        """Whether `face` was in the previous frame already; `before` are those that a search found there."""
        if isinstance(self._detector, FollowingDetector) and self._previous is not None:
            seen = self._detector.follow(self._previous, face)
            return seen is not None and _continues(seen, face)
        return any(_continues(other, face) for other in before)


def usable(face: Face) -> bool:
    """Whether a face is large enough and seen from the front enough to be aligned."""
    width, height = (face.box[2:] - face.box[:2]).tolist()
    large = width >= LEAST_WIDTH_PX and height >= LEAST_HEIGHT_PX
    return bool(large and LEAST_ASPECT <= width / height <= MOST_ASPECT and np.isfinite(face.points).all())


def _continues(last: Face, face: Face) -> bool:
    return bool(iou(last.box, face.box[None])[0] >= _CONTINUES_IOU)


def _area(face: Face) -> float:
    return float(np.prod(face.box[2:] - face.box[:2]))
