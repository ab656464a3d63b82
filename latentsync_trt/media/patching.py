"""Writes a `Patch` into a picture and leaves all other bytes unchanged. Pure.

In a 4:2:0 picture a chroma sample belongs to the center of its 2×2 pixels: conversion to RGB repeats it for all four,
and conversion back takes their mean. The two cancel out, so softly blended pixels do not drift.
"""

import numpy as np

from latentsync_trt.media.color import chroma_of, coding_of, luma_of
from latentsync_trt.types import ColorTags, Float32Array, Patch, UInt8Array, YuvPlanes


def paint(rgb: UInt8Array, patch: Patch) -> UInt8Array:
    """A copy of `rgb (H, W, 3)` with the changed pixels of `patch`."""
    painted = rgb.copy()
    painted[_place(patch)][patch.changed] = patch.rgb[patch.changed]
    return painted


def apply_patch(planes: YuvPlanes, patch: Patch) -> YuvPlanes:
    """A copy of `planes` with the changed pixels of `patch`, in the matrix and range of the planes' tags.

    Luma is written where `patch.changed` is set. A chroma sample becomes the mean over its pixels: the new chroma of
    changed pixels, its old value for the others.

    Raises:
        InputError: the matrix is unknown.
    """
    height_px, width_px = planes.y.shape
    coding = coding_of(planes.color, width_px, height_px)
    rgb = patch.rgb.astype(np.float32)
    y, u, v = planes.y.copy(), planes.u.copy(), planes.v.copy()
    np.copyto(y[_place(patch)], luma_of(rgb, coding), where=patch.changed)
    for plane, chroma in zip((u, v), chroma_of(rgb, coding), strict=True):
        _blend_chroma(plane, chroma, patch, (height_px, width_px))
    return YuvPlanes(y, u, v, planes.color)


def planes_of(rgb: UInt8Array, color: ColorTags) -> YuvPlanes:
    """A whole picture `rgb (H, W, 3)` as 8-bit 4:2:0 planes, coded as `color` says."""
    height, width = rgb.shape[:2]
    half = ((height + 1) // 2, (width + 1) // 2)
    blank = YuvPlanes(np.zeros((height, width), np.uint8), np.zeros(half, np.uint8), np.zeros(half, np.uint8), color)
    return apply_patch(blank, Patch(0, 0, rgb, np.ones((height, width), np.bool_)))


def _place(patch: Patch) -> tuple[slice, slice]:
    height, width = patch.changed.shape
    return slice(patch.y_px, patch.y_px + height), slice(patch.x_px, patch.x_px + width)


def _blend_chroma(plane: UInt8Array, chroma: Float32Array, patch: Patch, size: tuple[int, int]) -> None:
    """Writes per-pixel `chroma (h, w)` of the patch into the half-size `plane`, in place. `size`: picture (H, W)."""
    height, width = patch.changed.shape
    top, left = patch.y_px % 2, patch.x_px % 2
    margins = ((top, (top + height) % 2), (left, (left + width) % 2))
    changed = _quads(np.pad(patch.changed, margins).astype(np.float32))
    sums = _quads(np.pad(np.where(patch.changed, chroma, np.float32(0)), margins))
    first_row, first_column = patch.y_px // 2, patch.x_px // 2
    target = plane[first_row : first_row + changed.shape[0], first_column : first_column + changed.shape[1]]
    rows, columns = (
        _pixels_per_sample(first, count, length)
        for first, count, length in zip((first_row, first_column), target.shape, size, strict=True)
    )
    pixels = np.outer(rows, columns)
    mean = (sums + (pixels - changed) * target) / pixels
    np.copyto(target, np.clip(np.rint(mean), 0, 255).astype(np.uint8), where=changed > 0)


def _quads(values: Float32Array) -> Float32Array:
    """Sums of 2×2 neighbors of an array with even sides."""
    return values[0::2, 0::2] + values[0::2, 1::2] + values[1::2, 0::2] + values[1::2, 1::2]


def _pixels_per_sample(first: int, count: int, length_px: int) -> Float32Array:
    """How many pixels along one axis each chroma sample covers: 2, or 1 at the end of an odd side."""
    starts = 2 * np.arange(first, first + count)
    return np.minimum(2, length_px - starts).astype(np.float32)
