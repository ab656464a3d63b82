"""Writes a `Patch` into a picture; all other bytes stay unchanged. Pure.

A chroma sample of a 4:2:0 picture counts as the center of its 2×2 pixels: conversion to RGB repeats it over the four,
and conversion back takes their mean. The two cancel out, so softly blended pixels do not drift.
"""

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import chroma_of, coding_of, luma_of
from latentsync_trt.types import ColorTags, Float32Array, Patch, UInt8Array, YuvPlanes


def paint(rgb: UInt8Array, patch: Patch) -> UInt8Array:
    """A copy of `rgb (H, W, 3)` with the changed pixels of `patch`.

    Raises:
        InputError: the patch leaves the picture, or the shapes of its arrays differ.
    """
    rows, columns = _slices(patch, rgb.shape[1], rgb.shape[0])
    painted = rgb.copy()
    painted[rows, columns][patch.changed] = patch.rgb[patch.changed]
    return painted


def apply_patch(planes: YuvPlanes, patch: Patch) -> YuvPlanes:
    """A copy of `planes` with the changed pixels of `patch`, in the matrix and range of the planes' tags.

    Luma is written where `patch.changed` is set. A chroma sample becomes the mean over its pixels: the new chroma of
    changed pixels, its old value for the others.

    Raises:
        InputError: the patch leaves the picture, the shapes of its arrays differ, or the matrix is unknown.
    """
    height_px, width_px = planes.y.shape
    rows, columns = _slices(patch, width_px, height_px)
    coding = coding_of(planes.color, width_px, height_px)
    rgb = patch.rgb.astype(np.float32)
    y, u, v = planes.y.copy(), planes.u.copy(), planes.v.copy()
    np.copyto(y[rows, columns], luma_of(rgb, coding), where=patch.changed)
    blue, red = chroma_of(rgb, coding)
    _blend_chroma(u, blue, patch, (height_px, width_px))
    _blend_chroma(v, red, patch, (height_px, width_px))
    return YuvPlanes(y, u, v, planes.color)


def planes_of(rgb: UInt8Array, color: ColorTags) -> YuvPlanes:
    """A whole picture `rgb (H, W, 3)` as 8-bit 4:2:0 planes, coded as `color` says."""
    height, width = rgb.shape[:2]
    half = ((height + 1) // 2, (width + 1) // 2)
    blank = YuvPlanes(np.zeros((height, width), np.uint8), np.zeros(half, np.uint8), np.zeros(half, np.uint8), color)
    return apply_patch(blank, Patch(0, 0, rgb, np.ones((height, width), np.bool_)))


def _slices(patch: Patch, width_px: int, height_px: int) -> tuple[slice, slice]:
    """Rows and columns of the picture under the patch."""
    height, width = patch.changed.shape
    if patch.rgb.shape != (height, width, 3):
        raise InputError(f"patch: {patch.rgb.shape} colors for a {patch.changed.shape} mask of changes")
    right, bottom = patch.x_px + width, patch.y_px + height
    if patch.x_px < 0 or patch.y_px < 0 or right > width_px or bottom > height_px:
        raise InputError(
            f"patch: ({patch.x_px}, {patch.y_px}) to ({right}, {bottom}) is outside the {width_px}×{height_px} picture"
        )
    return slice(patch.y_px, bottom), slice(patch.x_px, right)


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
