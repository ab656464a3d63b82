"""Which detections can be used: well-formed, large enough, upright. Pure."""

from math import atan2, degrees

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.errors import InputError
from latentsync_trt.types import Face

LEAST_WIDTH_PX, LEAST_HEIGHT_PX = 50, 80
LEAST_ASPECT, MOST_ASPECT = 0.2, 1.5
"""Ratios of width to height of a face to be aligned."""

MOST_ROLL_DEG = 67.5
"""Halfway between a head tilted by 45°, which is about the most a sitting person does, and a picture turned by 90°."""


def usable(face: Face) -> bool:
    """Whether a face, in square pixels, is large, frontal and upright enough to be aligned."""
    return _is_large(face) and abs(roll_deg(face)) <= MOST_ROLL_DEG


def is_turned(face: Face) -> bool:
    """Whether a face could be aligned but lies on its side or is upside down."""
    return _is_large(face) and abs(roll_deg(face)) > MOST_ROLL_DEG


def roll_deg(face: Face) -> float:
    """Rotation of a face in the picture, clockwise, −180 to 180: the direction from the left brow to the right one."""
    (left_x, left_y), (right_x, right_y) = face.points[:2].tolist()
    return degrees(atan2(right_y - left_y, right_x - left_x))


def _is_large(face: Face) -> bool:
    width, height = (face.box[2:] - face.box[:2]).tolist()
    large = width >= LEAST_WIDTH_PX and height >= LEAST_HEIGHT_PX
    return bool(large and LEAST_ASPECT <= width / height <= MOST_ASPECT and np.isfinite(face.points).all())


def checked(found: object, source: object, *, method: str = "detect") -> list[Face]:
    """The faces that `source.detect` returned.

    Raises:
        InputError: not a list of `Face`, or one with an array of another shape or type, NaN, or a box whose right or
            bottom edge comes before its left or top one.
    """
    where = f"face detector {type(source).__name__}: {method}"
    if not isinstance(found, list | tuple):
        raise InputError(f"{where} returned {type(found).__name__}; it must return a list of Face")
    for face in found:
        check_face(face, where)
    return list(found)


def check_face(face: object, where: str) -> None:
    """Raises `InputError`, which begins with `where`, unless `face` is a well-formed `Face`."""
    if not isinstance(face, Face):
        raise InputError(f"{where} returned {type(face).__name__} as a face; it must return Face")
    _check_array(face.box, (4,), f"{where}: Face.box")
    _check_array(face.points, (3, 2), f"{where}: Face.points")
    if face.landmarks is not None:
        count = len(face.landmarks) if isinstance(face.landmarks, np.ndarray) and face.landmarks.ndim else 0
        _check_array(face.landmarks, (max(count, 1), 2), f"{where}: Face.landmarks")
    left, top, right, bottom = face.box.tolist()
    if right < left or bottom < top:
        raise InputError(
            f"{where}: Face.box is {face.box.tolist()}; it must be left, top, right, bottom in pixels, not a width and "
            "height"
        )


def _check_array(array: object, shape: tuple[int, ...], what: str) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what} is {type(array).__name__}; it must be an array of shape {shape}")
    _check_values(array, shape, what)


def _check_values(array: NDArray[np.generic], shape: tuple[int, ...], what: str) -> None:
    if array.shape != shape:
        raise InputError(f"{what} has shape {array.shape}; it must have {shape}")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} has type {array.dtype}; it must be float32")
    if not np.isfinite(array.astype(np.float64)).all():
        raise InputError(f"{what} is not finite: {array.tolist()}; leave out faces that were not found")
