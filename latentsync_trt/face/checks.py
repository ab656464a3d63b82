"""Which detections can be used: well-formed, large enough, upright. Pure."""

from math import atan2, degrees

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Face, Float32Array, Float64Array

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 28, 40
"""The training data had faces of 50×80 px and more. Down to half of that, the search finds 19 of 20 faces, their points
are as exact in relation to the face (2 % of the brows' distance), and an open mouth is seen: it is 4 px high. Of faces
of 32 px, the search finds 2 of 3."""
LEAST_ASPECT, MOST_ASPECT = 0.2, 1.5
"""Ratios of width to height of a face to be aligned."""

MOST_ROLL_DEG = 67.5
"""Halfway between a head tilted by 45°, which is about the most a sitting person does, and a picture turned by 90°."""

MOST_TURN = 0.5


def usable(face: Face) -> bool:
    """Whether a face, in square pixels, is large, frontal and upright enough to be aligned."""
    return _is_large(face) and abs(roll_deg(face)) <= MOST_ROLL_DEG


def is_turned(face: Face) -> bool:
    """Whether a face could be aligned but lies on its side or is upside down."""
    return _is_large(face) and abs(roll_deg(face)) > MOST_ROLL_DEG


def is_turned_away(face: Face) -> bool:
    """Whether a face looks so far aside that it is about to be lost."""
    return bool(turn(face.points) > MOST_TURN)


def turn(points: Float32Array | Float64Array) -> Float64Array:
    """How far faces with `points (…, 3, 2)` look aside: 0 is frontal, 0.5 about 45°.

    It is the distance of the nose from the middle between the brows, along the brows, in distances between these.
    """
    left, right, nose = np.moveaxis(points.astype(np.float64), -2, 0)
    across = right - left
    along = ((nose - (left + right) / 2) * across).sum(axis=-1)
    return np.asarray(np.abs(along) / np.maximum((across * across).sum(axis=-1), np.finfo(np.float32).tiny))


def roll_deg(face: Face) -> float:
    """Rotation of a face in the picture, clockwise, −180 to 180: the direction from the left brow to the right one."""
    (left_x, left_y), (right_x, right_y) = face.points[:2].tolist()
    return degrees(atan2(right_y - left_y, right_x - left_x))


def _is_large(face: Face) -> bool:
    width, height = (face.box[2:] - face.box[:2]).tolist()
    large = width >= LEAST_WIDTH_PX and height >= LEAST_HEIGHT_PX
    return bool(large and LEAST_ASPECT <= width / height <= MOST_ASPECT and np.isfinite(face.points).all())


def checked(found: object, source: object, method: str = "detect") -> list[Face]:
    """The faces that a method of the detector `source` returned.

    Raises:
        InputError: not a list of `Face`, or one with an array of another shape or type, NaN, or a box whose right or
            bottom edge comes before its left or top one.
    """
    where = f"face detector {type(source).__name__}: {method}"
    if not isinstance(found, list | tuple):
        raise InputError(f"{where} returned {type(found).__name__}; it must return a list of Face")
    for face in found:
        if not isinstance(face, Face):
            raise InputError(f"{where} returned {type(face).__name__} as a face; it must return Face")
        _check_array(face.box, (4,), f"{where}: Face.box")
        _check_array(face.points, (3, 2), f"{where}: Face.points")
        if face.landmarks is not None:
            _check_array(face.landmarks, (None, 2), f"{where}: Face.landmarks")
        if (face.box[2:] < face.box[:2]).any():
            problem = "it must be left, top, right, bottom in pixels, not a width and height"
            raise InputError(f"{where}: Face.box is {face.box.tolist()}; {problem}")
    return list(found)


def _check_array(array: object, shape: tuple[int | None, ...], what: str) -> None:
    """`shape`: None = any size above 0."""
    if not isinstance(array, np.ndarray):
        problem = f"is {type(array).__name__}"
    elif not (array.size and array.ndim == len(shape) and all(map(_fits, array.shape, shape))):
        problem = f"has shape {array.shape}"
    elif array.dtype.kind not in "fiu":
        problem = f"has type {array.dtype}"
    elif not np.isfinite(array).all():
        problem = f"is not finite: {array.tolist()}"
    else:
        return
    wanted = ", ".join("n" if size is None else str(size) for size in shape)
    raise InputError(f"{what} {problem}; it must be a float32 array of shape ({wanted}), and only of faces found")


def _fits(size: int, wanted: int | None) -> bool:
    return wanted is None or size == wanted
