"""Tracks and aligns the one face of a video that is lip-synced."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.align import align
from latentsync_trt.face.blaze import iou
from latentsync_trt.types import Face, FaceDetector, Float64Array, Picture

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 50, 80
LEAST_ASPECT, MOST_ASPECT = 0.2, 1.5
"""Largest ratio of width to height of a face to be aligned."""

_CONTINUES_IOU = 0.3
"""Least overlap with the box of the previous frame; another face after a cut overlaps less."""

PATIENCE_FRAMES = MODEL_FPS
"""One second: how long to wait for a lost face if only faces that were visible before are left."""


@runtime_checkable
class FollowingDetector(FaceDetector, Protocol):
    """A detector that can also search near the previous position, which is faster and steadier than detection."""

    def follow(self, frame: Picture, previous: Face) -> Face | None:
        """The face near its position in the previous frame, or None."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TrackedFace:
    """The face in one frame.

    `track_id` changes whenever the face is not that of the previous frame. `matrix (2, 3)` float64: frame pixels → crop
    pixels.
    """

    face: Face
    track_id: int
    matrix: Float64Array


class FaceTracker:
    """Tracks one face: first the largest, then the one that overlaps it; detects again only after losing it.

    A face that was not visible before replaces a lost one at once, as after a cut; one that was visible does so only
    after `PATIENCE_FRAMES`.

    Args:
        resolution_px: side of the network's pictures, for `TrackedFace.matrix`.
    """

    def __init__(self, detector: FaceDetector, resolution_px: int = 256) -> None:
        self._detector, self._resolution_px = detector, resolution_px
        self._last: Face | None = None
        self._bias: Float64Array | None = None
        self._lost_frames = 0
        self._track_id = -1
        self._previous: Picture | None = None
        self._detected: list[Face] = []

    def update(self, frame: Picture) -> TrackedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB, or None."""
        face = self._follow(frame) or self._detect(frame)
        self._previous = frame
        if face is None:
            self._lost_frames += 1
            if self._lost_frames >= PATIENCE_FRAMES:
                self._last = None
            return None
        if self._last is None or self._lost_frames or not _continues(self._last, face):
            self._track_id += 1
            self._bias = None
        self._last, self._lost_frames = face, 0
        # Unlike in training the points are not rounded to whole pixels: the mouth would jitter by as much.
        matrix, self._bias = align(face.points, self._bias, self._resolution_px)
        return TrackedFace(face, self._track_id, matrix)

    def _follow(self, frame: Picture) -> Face | None:
        if self._last is None or self._lost_frames or not isinstance(self._detector, FollowingDetector):
            return None
        face = self._detector.follow(frame, self._last)
        return face if face is not None and usable(face) and _continues(self._last, face) else None

    def _detect(self, frame: Picture) -> Face | None:
        faces = [face for face in self._detector.detect(np.asarray(frame)) if usable(face)]
        before, self._detected = self._detected, faces
        if self._last is None:
            return max(faces, key=_area, default=None)
        overlaps = iou(self._last.box, np.array([face.box for face in faces], np.float32).reshape(-1, 4))
        if faces and overlaps.max() >= _CONTINUES_IOU:
            return faces[int(overlaps.argmax())]
        return max((face for face in faces if not self._was_visible(face, before)), key=_area, default=None)

    def _was_visible(self, face: Face, before: list[Face]) -> bool:
        """Whether `face` was in the previous frame; `before`: the faces detected there."""
        if isinstance(self._detector, FollowingDetector) and self._previous is not None:
            seen = self._detector.follow(self._previous, face)
            return seen is not None and _continues(seen, face)
        return any(_continues(other, face) for other in before)


def usable(face: Face) -> bool:
    """Whether a face is large and frontal enough to be aligned."""
    width, height = (face.box[2:] - face.box[:2]).tolist()
    large = width >= LEAST_WIDTH_PX and height >= LEAST_HEIGHT_PX
    return bool(large and LEAST_ASPECT <= width / height <= MOST_ASPECT and np.isfinite(face.points).all())


def _continues(last: Face, face: Face) -> bool:
    return bool(iou(last.box, face.box[None])[0] >= _CONTINUES_IOU)


def _area(face: Face) -> float:
    return float(np.prod(face.box[2:] - face.box[:2]))
