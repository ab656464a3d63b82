"""A small picture of a head before and after painting: the faces' outlines in it, and a color
correction. Pure.
"""

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.compositing.outline import OVAL, draw
from latentsync_trt.face.align import cut, mouth_mask, rescaled
from latentsync_trt.types import (
    AlignedFace,
    Float32Array,
    Float64Array,
    Picture,
    UInt8Array,
    UInt16Array,
)

SCENE_PX = 224
CROP_PX = (120, 160)
_LEFT_PX = 50
_TOP_PX = 42
"""Size and place of the crop: around it the whole head is seen, at about the size that the mesh
network takes.
"""
_CROP = slice(_TOP_PX, _TOP_PX + CROP_PX[1]), slice(_LEFT_PX, _LEFT_PX + CROP_PX[0])

_LIPS = np.array(
    [
        *(61, 185, 40, 39, 37, 0, 267, 269, 270, 409),
        *(291, 375, 321, 405, 314, 17, 84, 181, 91, 146),
    ]
)
"""FaceMesh's points on the outer edge of the lips, clockwise from the left corner in the image."""

_SHRINK = 2
"""Faces are compared at half the scene's size: textures, which a network blurs, do not count as
contrast.
"""
_WIDTH_PX = 6
"""Width of the ring in which they are compared: a tenth of the crop."""
_INNER, _INSIDE, _AROUND = (
    np.ones((side_px, side_px), np.uint8) for side_px in (2 * _WIDTH_PX + 1, 3, 5)
)

_HALF = 128
"""Of 255: pixels that are covered by half."""
_LEAST_PX = 40
"""Fewer pixels of skin say nothing."""
_RIDGE = 100.0
"""Variance in levels² below which a difference in contrast says little."""
_SAME_SHARE = 0.85
"""Part of the ring that is compared, without the pixels that differ most: hair or another chin, not
skin.
"""
_MOST_GAIN = 1.2
_MOST_SHIFT = 20.0
"""Larger corrections, in 8-bit levels, mean that the two do not show the same."""


@lru_cache(maxsize=2)
def _generated(resolution_px: int) -> UInt8Array:
    """255 where a scene differs after painting at a network's resolution, else 0: uint8 `(224,
    224)`.
    """
    generated = np.zeros((SCENE_PX, SCENE_PX), np.uint8)
    generated[_CROP][
        cv2.resize(mouth_mask(resolution_px), CROP_PX, interpolation=cv2.INTER_AREA) < 0.5
    ] = 255
    return generated


def scene_of(
    picture: Picture, face: AlignedFace, painted: UInt16Array
) -> tuple[Float64Array, UInt8Array, UInt8Array]:
    """The head around an aligned `face`, before and after it was `painted`, uint16 `(r, r, 3)` RGB,
    257 × level.

    Returns `(2, 3)`, frame → scene pixels; both pictures, uint8 `(224, 224, 3)` RGB, black outside
    the frame.
    """
    matrix = rescaled(face, CROP_PX)
    matrix[:, 2] += _LEFT_PX, _TOP_PX
    source = cut(picture, matrix, (SCENE_PX, SCENE_PX), outside=0)
    small, levels = (np.empty((*CROP_PX[::-1], 3), dtype) for dtype in (np.uint16, np.uint8))
    cv2.resize(painted, CROP_PX, dst=small, interpolation=cv2.INTER_AREA)
    cv2.convertScaleAbs(small, dst=levels, alpha=1 / 257)
    result = source.copy()
    cv2.copyTo(levels, _generated(len(face.image))[_CROP], result[_CROP])
    return matrix, source, result


def match_color(
    source: UInt8Array,
    painted: UInt8Array,
    resolution_px: int,
    meshes: tuple[Float32Array, Float32Array],
) -> Float32Array | None:
    """Gain, and offset in levels, per channel: `(2, 3)` float32, which bring the painted face
    closest to the source's.

    They are compared in a ring of skin: inside the edge of what is pasted and inside both faces,
    without the lips. None if that is too small.

    Args:
        source, painted: pictures of `scene_of`. resolution_px: of the network.
        meshes: FaceMesh's points of both, float32 `(468, 2)` in scene pixels.
    """
    ring = _ring(_shrunk(_generated(resolution_px)), meshes)
    if ring.size < _LEAST_PX:
        return None
    both = (
        np.concatenate([_shrunk(source), _shrunk(painted)], axis=2)
        .reshape(-1, 6)[ring]
        .astype(np.float32)
    )
    apart = both[:, :3] - both[:, 3:]
    middle = ring.size // 2
    strange = np.abs(apart - np.partition(apart, middle, axis=0)[middle]).sum(axis=1)
    limit = int(_SAME_SHARE * (ring.size - 1))
    both = both[np.argpartition(strange, limit)[: limit + 1]]
    means = both.mean(axis=0)
    both -= means
    shared = both.T @ both / np.float32(len(both))
    contrast, own = np.diag(shared).reshape(2, 3)
    alike = np.diag(shared, 3) / (np.sqrt(contrast * own) + _RIDGE)
    gain = 1 + np.clip(alike, 0, 1) * (np.sqrt((contrast + _RIDGE) / (own + _RIDGE)) - 1)
    gain = np.clip(gain, 1 / _MOST_GAIN, _MOST_GAIN)
    shift = np.clip(means[:3] - means[3:], -_MOST_SHIFT, _MOST_SHIFT)
    return np.stack([gain, shift + (1 - gain) * means[3:]]).astype(np.float32)


def _ring(generated: UInt8Array, meshes: tuple[Float32Array, Float32Array]) -> NDArray[np.intp]:
    """The indices of its pixels."""
    canvases = np.zeros((3, *generated.shape), np.uint8)
    one, other, lips = canvases
    for face, mesh in zip((one, other), meshes, strict=True):
        shrunk = mesh / np.float32(_SHRINK)
        draw([shrunk[OVAL]], face)
        draw([shrunk[_LIPS]], lips)
    pasted = np.minimum(generated, np.maximum(one, other)) >= _HALF
    skin = np.minimum(one, other, out=one)
    inner = other
    cv2.erode(skin, _INSIDE, dst=skin)
    cv2.dilate(lips, _AROUND, dst=lips)
    cv2.subtract(skin, lips, dst=skin)
    cv2.erode(pasted.view(np.uint8), _INNER, dst=inner)
    return np.flatnonzero((pasted & (skin >= _HALF)) > inner)


def _shrunk(image: UInt8Array) -> UInt8Array:
    """A scene at the size at which faces are compared."""
    small = np.empty((*[SCENE_PX // _SHRINK] * 2, *image.shape[2:]), np.uint8)
    return np.asarray(
        cv2.resize(image, small.shape[:2], dst=small, interpolation=cv2.INTER_AREA), np.uint8
    )
