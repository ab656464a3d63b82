"""A small upright picture of a head before and after painting, in which the painted face is examined. Pure."""

from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.face.align import cut, moved, rescaled
from latentsync_trt.types import (
    AlignedFace,
    BoolArray,
    Face,
    Float32Array,
    Float64Array,
    Picture,
    UInt8Array,
    UInt16Array,
)

SIDE_PX = 224

CROP_PX = (120, 160)
_LEFT_PX, _TOP_PX = 50, 42
"""Size and place of the crop: around it the whole head is seen, at about the size that the mesh network takes."""
_CROP = slice(_TOP_PX, _TOP_PX + CROP_PX[1]), slice(_LEFT_PX, _LEFT_PX + CROP_PX[0])


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A head as it is in the frame, and as it was painted.

    `matrix (2, 3)`: frame pixels → scene pixels. `source`, `painted`: uint8 `(224, 224, 3)` RGB, black outside the
    frame. `generated`: where they differ, as of `generated_of`.
    """

    matrix: Float64Array
    source: UInt8Array
    painted: UInt8Array
    generated: BoolArray


def generated_of(mask: Float32Array) -> BoolArray:
    """Where a scene differs after painting: `(224, 224)`; `mask (R, R)` float32 of an aligned face, 1 = kept."""
    generated = np.zeros((SIDE_PX, SIDE_PX), np.bool_)
    generated[_CROP] = cv2.resize(mask, CROP_PX, interpolation=cv2.INTER_AREA) < 0.5
    return generated


def scene_of(picture: Picture, face: AlignedFace, painted: UInt16Array, generated: BoolArray) -> Scene:
    """The scene around an aligned `face`.

    Args:
        picture: uint8 `(H, W, 3)` RGB. painted: uint16 `(r, r, 3)` RGB, 257 × level. generated: by `generated_of`.
    """
    matrix = rescaled(face, CROP_PX)
    matrix[:, 2] += _LEFT_PX, _TOP_PX
    source = cut(picture, matrix, (SIDE_PX, SIDE_PX), outside=0)
    small = cv2.resize(painted, CROP_PX, interpolation=cv2.INTER_AREA) / np.float32(257)
    result = source.copy()
    np.copyto(result[_CROP], np.rint(small, out=small), where=generated[_CROP][..., None], casting="unsafe")
    return Scene(matrix, source, result, generated)


def moved_into(face: Face, matrix: Float64Array) -> Face:
    """A face without landmarks whose box and points are moved by `matrix (2, 3)`."""
    corners = moved(face.box[[0, 1, 2, 1, 0, 3, 2, 3]].reshape(4, 2), matrix)
    box = np.concatenate([corners.min(axis=0), corners.max(axis=0)])
    return Face(box, moved(face.points, matrix), face.score)
