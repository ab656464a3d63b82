"""What FaceMesh takes and returns, and the geometry of faces. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import atan2, cos, degrees, exp, hypot, pi, radians, remainder, sin
from typing import Self

import cv2
import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import (
    Complex128Array,
    Face,
    Float32Array,
    Float64Array,
    Picture,
    UInt8Array,
)

MESH_SIDE_PX = 192
"""Side of FaceMesh's input."""
POINTS = 468
"""Points of FaceMesh."""

_LEFT_BROW = np.array([70, 63, 105, 66, 107])
_RIGHT_BROW = np.array([300, 293, 334, 296, 336])
_NOSE = np.array([5, 64, 294, 1])
_BROWS_AND_NOSE = np.concatenate([_LEFT_BROW, _RIGHT_BROW, _NOSE])
_MEANS = np.repeat(np.eye(3), [len(_LEFT_BROW), len(_RIGHT_BROW), len(_NOSE)], axis=1)
_MEANS /= _MEANS.sum(axis=1, keepdims=True)
"""`_MEANS @ points[_BROWS_AND_NOSE]` are the middles of both brows and the nose."""
REGION_SCALE = 1.5
"""Side of FaceMesh's square region, relative to the face's longer side."""
_CONVERGED_SHIFT = 0.02
"""Fraction of its side by which a region may still move; talking heads move less per frame."""
_CONVERGED_TURN = radians(3)
"""Angle by which it may still turn."""

LEAST_WIDTH_PX = 28
LEAST_HEIGHT_PX = 40
"""Size of the smallest faces that are painted, half of that in the training data: the search finds
19 of 20, with points as exact in relation to the face, and an open mouth is seen: it is 4 px high.
Of faces of 32 px, the search finds 2 of 3.
"""
SAME_FACE_IOU = 0.4
"""Two detections that overlap more are of the same face."""
_LEAST_ASPECT = 0.2
_MOST_ASPECT = 1.5
"""Ratios of width to height of a face that can be aligned."""
_MOST_ROLL_DEG = 67.5
"""The most that a face to be aligned is tilted: halfway between a head tilted by 45°, which is
about the most a sitting person does, and a picture turned by 90°.
"""


def iou(one: Float32Array, other: Float32Array) -> float:
    """Returns the intersection over union of two boxes `(4,)`."""
    left, top, right, bottom = one.tolist()
    other_left, other_top, other_right, other_bottom = other.tolist()
    shared_width = min(right, other_right) - max(left, other_left)
    shared_height = min(bottom, other_bottom) - max(top, other_top)
    if shared_width <= 0 or shared_height <= 0:
        return 0.0
    shared = shared_width * shared_height
    areas = (right - left) * (bottom - top)
    areas += (other_right - other_left) * (other_bottom - other_top)
    return shared / (areas - shared)


def overlap(face: Face, others: Iterable[Face]) -> float:
    """Returns the largest intersection over union of the box of `face` with those of `others`; 0 if
    there are none.
    """
    return max((iou(face.box, other.box) for other in others), default=0.0)


@dataclass(frozen=True, slots=True)
class Region:
    """A rotated square of a frame, in pixels."""

    x_px: float
    y_px: float
    """Its center."""
    side_px: float
    angle: float
    """Clockwise rotation of the face in radians."""

    @classmethod
    def of(cls, box: Float32Array, left: Float32Array, right: Float32Array) -> Self:
        """Returns the region of a face with `box (4,)`, rotated so that the line from `left` to
        `right (2,)` is level.
        """
        run, rise = right - left
        width, height = box[2:] - box[:2]
        x, y = ((box[:2] + box[2:]) / 2).tolist()
        side = float(max(width, height)) * REGION_SCALE
        return cls(x, y, side, float(np.arctan2(rise, run)))

    @classmethod
    def around(cls, face: Face) -> Self:
        """Returns where to look for `face` in the next frame."""
        return cls.of(face.box, face.points[0], face.points[1])

    def to_frame(self, input_px: int = MESH_SIDE_PX) -> Float64Array:
        """Returns `(2, 3)`: pixels of a network's input, `input_px` square → frame pixels."""
        scale = self.side_px / input_px
        along = cos(self.angle) * scale
        across = sin(self.angle) * scale
        middle = (input_px - 1) / 2
        x = self.x_px - along * middle + across * middle
        y = self.y_px - across * middle - along * middle
        return np.array([[along, -across, x], [across, along, y]])

    def is_near(self, other: "Region") -> bool:
        """Whether the two are nearly the same: then the points of a face that the network sees in
        `other` are exact.
        """
        shift_px = hypot(self.x_px - other.x_px, self.y_px - other.y_px)
        turned = abs(remainder(self.angle - other.angle, 2 * pi))
        return shift_px < _CONVERGED_SHIFT * other.side_px and turned < _CONVERGED_TURN

    def place(self) -> tuple[slice, slice]:
        """Returns rows and columns of a frame that `cut` reads; they may reach beyond its right and
        lower edges.
        """
        to_corner = self.side_px / 2 * (abs(cos(self.angle)) + abs(sin(self.angle)))
        sample_px = max(self.side_px // MESH_SIDE_PX, 1)
        reach = to_corner + 2 * sample_px + 1  # also the neighbors of bilinear samples
        top = max(self.y_px - reach, 0)
        bottom = max(self.y_px + reach, 0)
        left = max(self.x_px - reach, 0)
        right = max(self.x_px + reach, 0)
        return slice(int(top), int(bottom)), slice(int(left), int(right))

    def cut(self, frame: Picture, input_px: int = MESH_SIDE_PX) -> Float32Array:
        """Returns what is there as a network's input: float32 `(1, 3, input_px, input_px)` in
        [0, 1], black outside the frame.
        """
        rows, columns = self.place()
        part = frame[rows, columns]
        matrix = self.to_frame(input_px)
        matrix[:, 2] -= columns.start, rows.start
        shrink = int(self.side_px // input_px)
        if 2 <= shrink <= min(part.shape[:2]):
            part = _block_means(part, shrink)
            matrix[:, :2] /= shrink
            matrix[:, 2] = (matrix[:, 2] + 0.5) / shrink - 0.5
        side_px = (input_px, input_px)
        image = np.zeros((*side_px, 3), np.uint8)
        if 0 not in part.shape:
            flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
            cv2.warpAffine(part, matrix, side_px, dst=image, flags=flags)
        channels_first = image.transpose(2, 0, 1)[None]
        return np.multiply(channels_first, np.float32(1 / 255), dtype=np.float32, order="C")

    def mesh(self, landmarks: Float32Array) -> Float32Array:
        """Returns the network's `(1, 1404, 1, 1)` output as `(468, 3)` float32: x, y, depth in
        frame pixels.
        """
        # The network's origin is the corner of its image, not the center of the first pixel: only
        # then are the points of a mirrored picture the mirrored points. MediaPipe's own are half a
        # network pixel further right and down.
        place = self.to_frame()
        matrix = np.zeros((3, 4))
        linear = place[:, :2]
        matrix[:2, :2] = linear
        matrix[:2, 3] = place[:, 2] - linear @ (0.5, 0.5)
        matrix[2, 2] = self.side_px / MESH_SIDE_PX
        mesh = np.empty((POINTS, 1, 3), np.float32)
        cv2.transform(landmarks.reshape(mesh.shape), matrix, dst=mesh)
        return mesh.reshape(POINTS, 3)


def _block_means(picture: Picture, times: int) -> UInt8Array:
    """Returns the means of squares of pixels, as bilinear warping would skip pixels."""
    height = picture.shape[0] // times
    width = picture.shape[1] // times
    means = np.empty((height, width, 3), np.uint8)
    whole = picture[: height * times, : width * times]
    cv2.resize(whole, (width, height), dst=means, interpolation=cv2.INTER_AREA)
    return means


def face_of(mesh: Float32Array, logit: float) -> Face:
    """Returns the face of a mesh `(468, 3)` in frame pixels; `logit`: of its score, 0 or more."""
    planar = mesh[:, :2]
    box = np.concatenate([planar.min(axis=0), planar.max(axis=0)])
    points = _MEANS @ planar[_BROWS_AND_NOSE]
    score = 1 / (1 + exp(-logit))
    return Face(box.astype(np.float32), points.astype(np.float32), score, planar)


def box_size(face: Face) -> Float32Array:
    """Returns width and height of a face's box, `(2,)`."""
    return face.box[2:] - face.box[:2]


def box_middle(face: Face) -> Float32Array:
    """Returns x and y of the middle of a face's box, `(2,)`."""
    return np.asarray((face.box[:2] + face.box[2:]) / 2, np.float32)


def longer_side(face: Face) -> float:
    """Returns the length of the longer side of a face's box."""
    return float(box_size(face).max())


def box_corners(face: Face) -> Float32Array:
    """Returns the corners of a face's box, `(4, 2)`, clockwise from the upper left one."""
    left, top, right, bottom = face.box
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def box_area(face: Face) -> float:
    """Returns the area of a face's box in square pixels."""
    return float(np.prod(box_size(face)))


def is_usable(face: Face, *, turned: bool = False) -> bool:
    """Whether a face, in square pixels, is large, frontal and upright enough to be aligned;
    `turned`: whether it would be, but lies on its side or is upside down.
    """
    width, height = box_size(face).tolist()
    if width < LEAST_WIDTH_PX or height < LEAST_HEIGHT_PX:
        return False
    if not _LEAST_ASPECT <= width / height <= _MOST_ASPECT:
        return False
    if not np.isfinite(face.points).all():
        return False
    return (abs(roll_deg(face)) > _MOST_ROLL_DEG) is turned


def roll_deg(face: Face) -> float:
    """Returns how far a face is tilted clockwise, from -180 to 180."""
    (left_x, left_y), (right_x, right_y) = face.points[:2].tolist()
    return degrees(atan2(right_y - left_y, right_x - left_x))


def as_complex(points: Float32Array) -> Complex128Array:
    """Returns a copy of points `(n, 2)` as x + iy."""
    return points.astype(np.float64, "C").view(np.complex128)[:, 0]


def turned_aside(points: Float32Array | Float64Array) -> Float64Array:
    """Returns how far faces with `points (…, 3, 2)` look aside, 0 for frontal ones, 0.5 for about
    45°: the distance of the nose from the middle between the brows, along the brows, in distances
    between these.
    """
    left, right, nose = np.moveaxis(points.astype(np.float64), -2, 0)
    across = right - left
    to_nose = nose - (left + right) / 2
    along = (to_nose * across).sum(axis=-1)
    squared_width = (across * across).sum(axis=-1)
    least = np.finfo(np.float32).tiny
    return np.asarray(np.abs(along) / np.maximum(squared_width, least))


def checked_faces(faces: object, detector: object) -> list[Face]:
    """Returns the faces that `detector` returned; raises `InputError` if they are not as
    `FaceDetector` says.
    """
    if isinstance(faces, list | tuple) and all(map(_is_well_formed, faces)):
        return list(faces)
    raise InputError(
        f"face detector {type(detector).__name__}: detect returned "
        f"{str(faces)[:300]!r}; it must return a list of "
        "Face: box float32 (4,) as left, top, right, bottom, "
        "points (3, 2), landmarks (n, 2) or None, all finite"
    )


def _is_well_formed(face: object) -> bool:
    if not isinstance(face, Face):
        return False
    arrays = [(face.box, (4,)), (face.points, (3, 2))]
    if face.landmarks is not None:
        arrays.append((face.landmarks, (max(1, len(face.landmarks)), 2)))
    for array, shape in arrays:
        is_array = isinstance(array, np.ndarray) and array.dtype.kind in "fiu"
        if not is_array or array.shape != shape or not np.isfinite(array).all():
            return False
    return bool((face.box[:2] <= face.box[2:]).all())


def distance_moved(before: Face, face: Face) -> float:
    """Returns how far the middle of a face has moved, in lengths of the longer side of its box
    before.
    """
    corners = face.box[:2] + face.box[2:]
    shift = (corners - before.box[:2] - before.box[2:]) / 2
    return float(np.hypot(*shift) / max(longer_side(before), 1.0))


def between(one: Face, other: Face, part: float) -> Face:
    """Returns the face on the way from `one` to `other`: 0 is `one`, 1 is `other`, 2 is beyond
    it.
    """

    def mixed(start: Float32Array, end: Float32Array) -> Float32Array:
        return np.asarray((1 - part) * start + part * end, np.float32)

    landmarks = None
    if one.landmarks is not None and other.landmarks is not None:
        landmarks = mixed(one.landmarks, other.landmarks)
    box = mixed(one.box, other.box)
    return Face(box, mixed(one.points, other.points), other.score, landmarks)
