"""Tracks and aligns the one face of a video that is lip-synced."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.align import align
from latentsync_trt.face.blaze import iou
from latentsync_trt.face.checks import checked, is_turned, usable
from latentsync_trt.face.cuts import Change, CutDetector, look_at, luma_of
from latentsync_trt.types import Face, FaceDetector, Float64Array, Picture, UInt8Array

_CONTINUES_IOU = 0.3
"""Least overlap with the box of the previous frame."""

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

    `track_id` changes whenever the face is not that of the previous frame, or its shot ended there. `matrix (2, 3)`
    float64: frame pixels → crop pixels.
    """

    face: Face
    track_id: int
    matrix: Float64Array


class FaceTracker:
    """Tracks one face: first the largest, then the one that overlaps it; detects again only after losing it.

    A face that was not visible before replaces a lost one at once, as after a cut; one that was visible does so only
    after `PATIENCE_FRAMES`. If a cut shows another person at the old place, the new shot's largest face is tracked.
    `turned_frames` counts the frames without a usable face that show one on its side or upside down.

    Args:
        resolution_px: side of the network's pictures, for `TrackedFace.matrix`.
    """

    def __init__(self, detector: FaceDetector, resolution_px: int = 256) -> None:
        self._detector, self._resolution_px = detector, resolution_px
        self._follower = detector if isinstance(detector, FollowingDetector) else None
        self._cuts = CutDetector()
        self._last: Face | None = None
        self._bias: Float64Array | None = None
        self._lost_frames = 0
        self._track_id = -1
        self._previous: Picture | None = None
        self._found: list[Face] | None = None
        self._found_before: list[Face] = []
        self.turned_frames = 0

    @property
    def faces_found(self) -> int:
        """Usable faces in the last frame, 0 if it was not searched as a whole."""
        return sum(map(usable, self._found or []))

    def update(self, frame: Picture, luma: UInt8Array | None = None) -> TrackedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB of square pixels, or None.

        Args:
            luma: uint8 `(h, w)` of the same picture, of any size; None = computed from `frame`.

        Raises:
            InputError: the detector returned something else than faces, or their points coincide.
        """
        self._found_before, self._found = self._found or [], None
        face = self._follow(frame) or self._detect(frame)
        if face is not None:
            face = self._begin_or_continue(frame, luma_of(frame) if luma is None else luma, face)
        self._previous = frame
        if face is None:
            self._lost_frames += 1
            self.turned_frames += any(is_turned(other) for other in self._faces(frame))
            if self._lost_frames >= PATIENCE_FRAMES:
                self._last = None
            return None
        self._last, self._lost_frames = face, 0
        # Unlike in training the points are not rounded to whole pixels: the mouth would jitter by as much.
        matrix, self._bias = align(face.points, self._bias, self._resolution_px)
        return TrackedFace(face, self._track_id, matrix)

    def _begin_or_continue(self, frame: Picture, luma: UInt8Array, face: Face) -> Face:
        """Starts a track with `face` if it does not continue the last one; in a new shot perhaps with another face."""
        look = look_at(luma, face, frame.shape)
        if self._last is not None and not self._lost_frames and _continues(self._last, face):
            change = self._cuts.compare(look)
            if change is Change.NONE:
                return face
            if change is Change.SCENE:
                face = _largest(self._usable_faces(frame)) or face
                look = look_at(luma, face, frame.shape)
        self._track_id += 1
        self._bias = None
        self._cuts.restart(look)
        return face

    def _follow(self, frame: Picture) -> Face | None:
        if self._last is None or self._lost_frames or self._follower is None:
            return None
        face = _near(frame, self._last, self._follower)
        return face if face is not None and usable(face) and _continues(self._last, face) else None

    def _detect(self, frame: Picture) -> Face | None:
        faces = self._usable_faces(frame)
        if self._last is None:
            return _largest(faces)
        overlaps = iou(self._last.box, np.array([face.box for face in faces], np.float32).reshape(-1, 4))
        if faces and overlaps.max() >= _CONTINUES_IOU:
            return faces[int(overlaps.argmax())]
        return _largest([face for face in faces if not self._was_visible(face)])

    def _usable_faces(self, frame: Picture) -> list[Face]:
        return [face for face in self._faces(frame) if usable(face)]

    def _faces(self, frame: Picture) -> list[Face]:
        """All faces detected in the frame that is being processed."""
        if self._found is None:
            self._found = checked(self._detector.detect(np.asarray(frame)), self._detector)
        return self._found

    def _was_visible(self, face: Face) -> bool:
        """Whether `face` was in the previous frame."""
        if self._follower is not None and self._previous is not None:
            seen = _near(self._previous, face, self._follower)
            return seen is not None and _continues(seen, face)
        return any(_continues(other, face) for other in self._found_before if usable(other))


def _near(frame: Picture, face: Face, follower: FollowingDetector) -> Face | None:
    """The face near the place of `face`, if it is well-formed."""
    found = follower.follow(frame, face)
    return None if found is None else checked([found], follower, "follow")[0]


def _continues(last: Face, face: Face) -> bool:
    return bool(iou(last.box, face.box[None])[0] >= _CONTINUES_IOU)


def _largest(faces: list[Face]) -> Face | None:
    return max(faces, key=lambda face: float(np.prod(face.box[2:] - face.box[:2])), default=None)
