"""Bringing a face to the network's pose, and the way back. Pure.

All matrices `(2, 3)` float64 map pixel centres (x, y): frame → upright crop of `crop_size(resolution)` pixels.
"""

from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import AlignedFace, BoolArray, Float32Array, Float64Array, UInt8Array

OUTSIDE = 127
"""Grey that stands for what lies outside the frame."""

_POINTS = ((17.0, 20.0), (58.0, 20.0), (37.5, 40.0))  # left brow, right brow, nose
_SIZE = (75, 100)  # width, height of the crop that the points above are drawn in
_ZOOM_AT_256 = 2.8
_OLD_SHARE = 0.2
"""Share of the previous frames in the smoothed nose offset."""

_BICUBIC_A = -0.5
_BICUBIC_SUPPORT = 2.0


def crop_size(resolution: int) -> tuple[int, int]:
    """Width and height in pixels of the upright crop for a network of `resolution` pixels."""
    zoom = resolution / 256 * _ZOOM_AT_256
    return int(_SIZE[0] * zoom), int(_SIZE[1] * zoom)


def template(resolution: int) -> Float64Array:
    """Where left brow, right brow and nose lie in the crop: `(3, 2)` pixels."""
    return np.array(_POINTS) * (resolution / 256 * _ZOOM_AT_256)


def align(points: Float32Array, offset: Float64Array | None, resolution: int) -> tuple[Float64Array, Float64Array]:
    """The similarity that brings `points` to the template, and the smoothed nose offset for the next frame.

    Orthogonal Procrustes (Schönemann 1966): both triangles are centred and scaled to unit deviation, the rotation comes
    from the SVD of their covariance. What is left of the nose's residual, in units of the deviation, is averaged over
    time and added to the translation in pixels, as LatentSync was trained with.

    Args:
        points: `(3, 2)` float32 in frame pixels. offset: what the previous frame of the track returned, or None.

    Raises:
        InputError: the points coincide.
    """
    source, target = points.astype(np.float64), template(resolution)
    source_centre, target_centre = source.mean(axis=0), target.mean(axis=0)
    source_scale, target_scale = source.std(ddof=1), target.std(ddof=1)
    if not source_scale > 0:
        raise InputError("the face's points coincide; the detector gave no usable face")
    source_shape = (source - source_centre) / source_scale
    target_shape = (target - target_centre) / target_scale
    u, _, vt = np.linalg.svd(source_shape.T @ target_shape)
    rotation = (u @ vt).T
    if np.linalg.det(rotation) < 0:
        rotation[:, 1] = -rotation[:, 1]
    linear = target_scale / source_scale * rotation
    residual = target_shape[2] - source_shape[2]
    smoothed = residual if offset is None else _OLD_SHARE * offset + (1.0 - _OLD_SHARE) * residual
    translation = target_centre - linear @ source_centre + smoothed
    return np.column_stack([linear, translation]), smoothed


def crop(frame: UInt8Array, matrix: Float64Array, resolution: int) -> AlignedFace:
    """Cuts the face out of `frame` (uint8 `(H, W, 3)` RGB): bilinear to the upright crop, Lanczos to the network's."""
    size = crop_size(resolution)
    grey = (OUTSIDE, OUTSIDE, OUTSIDE)
    upright = cv2.warpAffine(
        frame, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=grey
    )
    image = cv2.resize(upright, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)
    return AlignedFace(np.asarray(image, np.uint8), matrix, size)


def scale_of(matrix: Float64Array) -> float:
    """Crop pixels per frame pixel."""
    return float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))


def resize(image: Float32Array, size: tuple[int, int]) -> Float32Array:
    """Resizes `(h, w, C)` float32 to `size` = (width, height): bicubic (a = −0.5), widened where it shrinks."""
    rows = _weights(image.shape[0], size[1])
    columns = _weights(image.shape[1], size[0])
    narrow = np.tensordot(rows, image, axes=(1, 0))
    return np.ascontiguousarray(np.tensordot(columns, narrow, axes=(1, 1)).transpose(1, 0, 2))


@lru_cache(maxsize=64)
def _weights(source: int, target: int) -> Float32Array:
    """Weights `(target, source)` of a resampling along one axis; each row sums to 1."""
    scale = source / target
    widening = max(scale, 1.0)
    centres = (np.arange(target) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(source)[None, :] - centres[:, None]) / widening
    near: BoolArray = distance < 1.0
    inner = ((_BICUBIC_A + 2) * distance - (_BICUBIC_A + 3)) * distance**2 + 1
    outer = _BICUBIC_A * (((distance - 5) * distance + 8) * distance - 4)
    weights = np.where(near, inner, np.where(distance < _BICUBIC_SUPPORT, outer, 0.0))
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
