"""Mixes patches into a picture's planes and leaves all other samples unchanged. Pure.

A chroma sample belongs to the center of the pixels it covers: conversion to RGB repeats it for all of them, and
conversion back takes their mean. The two cancel out, so softly blended pixels do not drift.
"""

import numpy as np

from latentsync_trt.media.color import RGB_IDENTITY, codes_of, coding_of
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.types import ColorTags, Float32Array, Patch, SampleArray, UInt8Array, YuvPlanes


def apply_patch(planes: YuvPlanes, *patches: Patch) -> YuvPlanes:
    """A copy of `planes` with `patches` on it, one over the other, in the depth, matrix and range of the planes.

    Each sample is mixed by the patch's weight; a chroma sample by the mean over its pixels. Samples without weight keep
    their value. In HDR, the patch passes the inverse of the curve that made `Frame.picture`.

    Raises:
        InputError: the matrix is unknown.
    """
    height_px, width_px = planes.y.shape
    coding = coding_of(planes.color, width_px, height_px, planes.bits)
    hdr = hdr_of(planes.color.transfer)
    y, u, v = planes.y.copy(), planes.u.copy(), planes.v.copy()
    for patch in patches:
        if not patch.weight.size:
            continue
        rgb = hdr.signal(patch.rgb) if hdr else patch.rgb * np.float32(1 / 65535)
        for plane, codes in zip((y, u, v), codes_of(rgb, coding), strict=True):
            _mix(plane, codes, patch, (height_px, width_px), planes.bits)
    return YuvPlanes(y, u, v, planes.color, planes.bits)


def planes_of(rgb: UInt8Array, color: ColorTags) -> YuvPlanes:
    """A whole picture `rgb (H, W, 3)` as 8-bit planes, coded as `color` says: 4:2:0, or G, B and R for matrix 0."""
    height, width = rgb.shape[:2]
    if color.matrix == RGB_IDENTITY:
        red, green, blue = (np.ascontiguousarray(rgb[..., channel]) for channel in range(3))
        return YuvPlanes(green, blue, red, color)
    half = np.zeros(((height + 1) // 2, (width + 1) // 2), np.uint8)
    blank = YuvPlanes(np.zeros((height, width), np.uint8), half, half, color)
    return apply_patch(blank, Patch(0, 0, rgb * np.uint16(257), np.ones((height, width), np.float32)))


def pixels_per_sample(planes: YuvPlanes) -> tuple[int, int]:
    """How many rows and columns of pixels a chroma sample covers: each 1 or 2."""
    rows, columns = (1 if chroma == luma else 2 for luma, chroma in zip(planes.y.shape, planes.u.shape, strict=True))
    return rows, columns


def _mix(plane: SampleArray, codes: Float32Array, patch: Patch, size: tuple[int, int], bits: int) -> None:
    """Mixes per-pixel `codes (h, w)` of the patch into a plane of a picture of `size` (H, W), in place."""
    spans, weights, values = [], patch.weight, patch.weight * codes
    corner = (patch.y_px, patch.x_px)
    for axis, (first, length, samples) in enumerate(zip(corner, size, plane.shape, strict=True)):
        step = 1 if samples == length else 2
        weights, values = (_mean(array, axis, first, length, step) for array in (weights, values))
        spans.append(slice(first // step, first // step + weights.shape[axis]))
    target = plane[tuple(spans)]
    mixed = np.rint(target * (1 - weights) + values)
    np.copyto(target, np.clip(mixed, 0, 2**bits - 1).astype(plane.dtype), where=weights > 0)


def _mean(array: Float32Array, axis: int, first: int, length: int, step: int) -> Float32Array:
    """Means over `step` pixels along an axis that begins at pixel `first` of `length`; pixels outside count as 0.

    The last sample of an odd side covers one pixel.
    """
    if step == 1:
        return array
    end = first + array.shape[axis]
    margin = [(0, 0), (0, 0)]
    margin[axis] = first % 2, end % 2
    pairs = np.pad(array, margin)
    sums = pairs[0::2] + pairs[1::2] if axis == 0 else pairs[:, 0::2] + pairs[:, 1::2]
    starts = 2 * np.arange(first // 2, first // 2 + sums.shape[axis])
    pixels = np.minimum(2, length - starts).astype(np.float32)
    return sums / (pixels[:, None] if axis == 0 else pixels)
