"""What FaceMesh takes and returns, and the geometry of faces. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import atan2, cos, degrees, exp, hypot, pi, radians, remainder, sin
from typing import Self

import cv2
import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Face, Float32Array, Float64Array, Picture

MESH_SIDE_PX = 192
"""Side of FaceMesh's input."""
POINTS = 468

_LEFT_BROW = np.array([70, 63, 105, 66, 107])
_RIGHT_BROW = np.array([300, 293, 334, 296, 336])
_NOSE = np.array([5, 64, 294, 1])
_BROWS_AND_NOSE = np.concatenate([_LEFT_BROW, _RIGHT_BROW, _NOSE])
_MEANS = np.repeat(np.eye(3), [len(_LEFT_BROW), len(_RIGHT_BROW), len(_NOSE)], axis=1)
_MEANS /= _MEANS.sum(axis=1, keepdims=True)
REGION_SCALE = 1.5
"""Side of FaceMesh's square region, relative to the face's longer side."""
_CONVERGED_SHIFT = 0.02
"""Fraction of its side by which a region may still move; talking heads move less per frame."""
_CONVERGED_TURN = radians(3)

LEAST_WIDTH_PX = 28
LEAST_HEIGHT_PX = 40
"""Half of the smallest faces of the training data: the search finds 19 of 20, with points as exact
in relation to the face, and an open mouth is seen: it is 4 px high. Of faces of 32 px, the search
finds 2 of 3.
"""
_LEAST_ASPECT = 0.2
_MOST_ASPECT = 1.5
"""Ratios of width to height of a face to be aligned."""
_MOST_ROLL_DEG = 67.5
"""Halfway between a head tilted by 45°, which is about the most a sitting person does, and a
picture turned by 90°.
"""


def iou(one: Float32Array, other: Float32Array) -> float:
    """Intersection over union of two boxes `(4,)`."""
    (left, top, right, bottom), (its_left, its_top, its_right, its_bottom) = (
        one.tolist(),
        other.tolist(),
    )
    wide = min(right, its_right) - max(left, its_left)
    high = min(bottom, its_bottom) - max(top, its_top)
    shared = max(wide, 0.0) * max(high, 0.0)
    union = (
        (right - left) * (bottom - top) + (its_right - its_left) * (its_bottom - its_top) - shared
    )
    if shared:
        return shared / union
    return 0.0


def overlap(face: Face, others: Iterable[Face]) -> float:
    """The largest intersection over union of the box of `face` with those of `others`; 0 if there
    are none.
    """
    return max((iou(face.box, other.box) for other in others), default=0.0)


@dataclass(frozen=True, slots=True)
class Region:
    """A rotated square of a frame: center and side in pixels, clockwise rotation of the face in
    radians.
    """

    x_px: float
    y_px: float
    side_px: float
    angle: float

    @classmethod
    def of(cls, box: Float32Array, left: Float32Array, right: Float32Array) -> Self:
        """The region of a face with `box (4,)`, rotated so that the line from `left` to `right
        (2,)` is level.
        """
        angle = float(np.arctan2(right[1] - left[1], right[0] - left[0]))
        side = float(max(box[2] - box[0], box[3] - box[1])) * REGION_SCALE
        return cls(float(box[0] + box[2]) / 2, float(box[1] + box[3]) / 2, side, angle)

    @classmethod
    def around(cls, face: Face) -> Self:
        """Where to look for `face` in the next frame."""
        return cls.of(face.box, face.points[0], face.points[1])

    def to_frame(self) -> Float64Array:
        """`(2, 3)`: network input pixels → frame pixels."""
        scale = self.side_px / MESH_SIDE_PX
        along = cos(self.angle) * scale
        across = sin(self.angle) * scale
        middle = (MESH_SIDE_PX - 1) / 2
        x = self.x_px - along * middle + across * middle
        y = self.y_px - across * middle - along * middle
        return np.array([[along, -across, x], [across, along, y]])

    def is_near(self, other: "Region") -> bool:
        """Whether the two are nearly the same: then the points of a face that was found in `other`
        are exact.
        """
        shift_px = hypot(self.x_px - other.x_px, self.y_px - other.y_px)
        turned = abs(remainder(self.angle - other.angle, 2 * pi))
        return shift_px < _CONVERGED_SHIFT * other.side_px and turned < _CONVERGED_TURN

    def place(self) -> tuple[slice, slice]:
        """Rows and columns of a frame that `cut` reads; they may reach beyond its right and lower
        edges.
        """
        # To the corners, and to the neighbors of bilinear samples.
        to_corner = self.side_px / 2 * (abs(cos(self.angle)) + abs(sin(self.angle)))
        reach = to_corner + 2 * max(self.side_px // MESH_SIDE_PX, 1) + 1
        y, x = (
            (max(center - reach, 0), max(center + reach, 0)) for center in (self.y_px, self.x_px)
        )
        return slice(int(y[0]), int(y[1])), slice(int(x[0]), int(x[1]))

    def cut(self, frame: Picture) -> Float32Array:
        """What is there as the network's input: float32 `(1, 3, 192, 192)` in [0, 1], black outside
        the frame.
        """
        shrink = int(self.side_px // MESH_SIDE_PX)
        (rows, columns) = self.place()
        part = frame[rows, columns]
        matrix = self.to_frame()
        matrix[:, 2] -= columns.start, rows.start
        if 0 in part.shape:
            return np.zeros((1, 3, MESH_SIDE_PX, MESH_SIDE_PX), np.float32)
        # bilinear warping would skip pixels: average them first
        if 2 <= shrink <= min(part.shape[:2]):
            size = (part.shape[1] // shrink, part.shape[0] // shrink)
            whole = part[: size[1] * shrink, : size[0] * shrink]
            part = np.empty((size[1], size[0], 3), np.uint8)
            cv2.resize(whole, size, dst=part, interpolation=cv2.INTER_AREA)
            matrix[:, :2] /= shrink
            matrix[:, 2] = (matrix[:, 2] + 0.5) / shrink - 0.5
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        image = np.empty((MESH_SIDE_PX, MESH_SIDE_PX, 3), np.uint8)
        cv2.warpAffine(
            part,
            matrix,
            (MESH_SIDE_PX, MESH_SIDE_PX),
            dst=image,
            flags=flags,
            borderMode=cv2.BORDER_CONSTANT,
        )
        return np.multiply(
            image.transpose(2, 0, 1)[None], np.float32(1 / 255), dtype=np.float32, order="C"
        )

    def mesh(self, landmarks: Float32Array) -> Float32Array:
        """The network's `(1, 1404, 1, 1)` output as `(468, 3)` float32: x, y, depth in frame
        pixels.
        """
        # The network's origin is the corner of its image, not the center of the first pixel: only
        # then are the points of a mirrored picture the mirrored points. MediaPipe's own are half a
        # network pixel further right and down.
        place = self.to_frame()
        x, y = place[:, 2] - place[:, :2] @ (0.5, 0.5)
        matrix = np.array(
            [[*place[0, :2], 0, x], [*place[1, :2], 0, y], [0, 0, self.side_px / MESH_SIDE_PX, 0]]
        )
        mesh = np.empty((POINTS, 1, 3), np.float32)
        return np.asarray(
            cv2.transform(landmarks.reshape(mesh.shape), matrix, dst=mesh), np.float32
        ).reshape(POINTS, 3)


def face_of(mesh: Float32Array, logit: float) -> Face:
    """Box and the three alignment points of a mesh `(468, 3)` in frame pixels; `logit`, 0 or more,
    of its score.
    """
    planar = mesh[:, :2]
    box = np.concatenate([planar.min(axis=0), planar.max(axis=0)])
    points = _MEANS @ planar[_BROWS_AND_NOSE]
    return Face(box.astype(np.float32), points.astype(np.float32), 1 / (1 + exp(-logit)), planar)


def box_area(face: Face) -> float:
    return float(np.prod(face.box[2:] - face.box[:2]))


def is_usable(face: Face, *, turned: bool = False) -> bool:
    """Whether a face, in square pixels, is large, frontal and upright enough to be aligned;
    `turned`: or would be, but lies on its side or is upside down.
    """
    width, height = (face.box[2:] - face.box[:2]).tolist()
    is_large = width >= LEAST_WIDTH_PX and height >= LEAST_HEIGHT_PX
    is_whole = (
        is_large
        and _LEAST_ASPECT <= width / height <= _MOST_ASPECT
        and bool(np.isfinite(face.points).all())
    )
    return is_whole and (abs(roll_deg(face)) > _MOST_ROLL_DEG) is turned


def roll_deg(face: Face) -> float:
    """How far a face is tilted clockwise, from -180 to 180."""
    (left_x, left_y), (right_x, right_y) = face.points[:2].tolist()
    return degrees(atan2(right_y - left_y, right_x - left_x))


def turned_aside(points: Float32Array | Float64Array) -> Float64Array:
    """How far faces with `points (…, 3, 2)` look aside: 0 is frontal, 0.5 about 45°: the distance
    of the nose from the middle between the brows, along the brows, in distances between these.
    """
    left, right, nose = np.moveaxis(points.astype(np.float64), -2, 0)
    across = right - left
    along = ((nose - (left + right) / 2) * across).sum(axis=-1)
    return np.asarray(
        np.abs(along) / np.maximum((across * across).sum(axis=-1), np.finfo(np.float32).tiny)
    )


def checked_faces(found: object, source: object) -> list[Face]:
    """The faces that the detector `source` returned; raises `InputError` if they are not as
    `FaceDetector` says.
    """
    if isinstance(found, list | tuple) and all(
        isinstance(face, Face) and _is_well_formed(face) for face in found
    ):
        return list(found)
    raise InputError(
        f"face detector {type(source).__name__}: detect returned "
        f"{str(found)[:300]!r}; it must return a list of "
        "Face: box float32 (4,) as left, top, right, bottom, "
        "points (3, 2), landmarks (n, 2) or None, all finite"
    )


def _is_well_formed(face: Face) -> bool:
    arrays = [(face.box, (4,)), (face.points, (3, 2))]
    if face.landmarks is not None:
        arrays.append((face.landmarks, (max(1, len(face.landmarks)), 2)))
    for array, shape in arrays:
        is_array = isinstance(array, np.ndarray) and array.dtype.kind in "fiu"
        if not (is_array and array.shape == shape and np.isfinite(array).all()):
            return False
    return bool((face.box[:2] <= face.box[2:]).all())


def distance_moved(last: Face, face: Face) -> float:
    """How far the middle of a face has moved, in lengths of the longer side of its last box."""
    shift = (face.box[:2] + face.box[2:] - last.box[:2] - last.box[2:]) / 2
    return float(np.hypot(*shift) / max(float((last.box[2:] - last.box[:2]).max()), 1.0))


def between(one: Face, other: Face, part: float) -> Face:
    """The face on the way from `one` to `other`: 0 is `one`, 1 is `other`, 2 is beyond it."""
    pairs = [(one.box, other.box), (one.points, other.points)]
    if one.landmarks is not None and other.landmarks is not None:
        pairs.append((one.landmarks, other.landmarks))
    box, points, *landmarks = (np.asarray((1 - part) * a + part * b, np.float32) for a, b in pairs)
    return Face(box, points, other.score, *landmarks)
