"""Which detections can be used: well-formed, large enough, upright. Pure."""

from math import atan2, degrees

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Face

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 50, 80
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
    return abs(turn(face)) > MOST_TURN


def turn(face: Face) -> float:
    """How far a face looks aside: the nose's distance from the line between the brows' middles, along the brows.

    In distances between the brows: 0 is frontal, ±0.5 about 45°; positive to the picture's right.
    """
    left, right, nose = face.points.astype(np.float64)
    across = right - left
    return float((nose - (left + right) / 2) @ across / max(float(across @ across), float(np.finfo(np.float32).tiny)))


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
