"""Mixes patches into a picture's planes and leaves all other samples unchanged. Pure.

A chroma sample belongs to the center of the pixels it covers: conversion to RGB repeats it for all of them, and
conversion back takes their mean. The two cancel out, so softly blended pixels do not drift.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from latentsync_trt.media.color import RGB_IDENTITY, codes_of, coding_of
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.types import ColorTags, Float32Array, Patch, SampleArray, UInt8Array, YuvPlanes


def apply_patch(planes: YuvPlanes, *patches: Patch) -> YuvPlanes:
    """A copy of `planes` with `patches` on it, see `mix`."""
    mixed = replace(planes, y=planes.y.copy(), u=planes.u.copy(), v=planes.v.copy())
    mix(mixed, patches)
    return mixed


def mix(planes: YuvPlanes, patches: Iterable[Patch]) -> None:
    """Mixes patches into `planes`, one over the other, in their depth, matrix and range.

    Each sample is mixed by the patch's weight; a chroma sample by the mean over its pixels. Samples without weight keep
    their value. In HDR, the patch passes the inverse of the curve that made `Frame.picture`.

    Raises:
        InputError: the matrix is unknown.
    """
    height_px, width_px = planes.y.shape
    hdr = hdr_of(planes.color.transfer)
    for patch in patches:
        if not patch.weight.size:
            continue
        coding = coding_of(planes.color, width_px, height_px, planes.bits)
        rgb = hdr.signal(patch.rgb) if hdr else patch.rgb * np.float32(1 / 65535)
        y, u, v = codes_of(rgb, coding)
        _mix((planes.y,), (y,), patch, (height_px, width_px), planes.bits)
        _mix((planes.u, planes.v), (u, v), patch, (height_px, width_px), planes.bits)


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


def _mix(
    planes: Sequence[SampleArray], codes: Sequence[Float32Array], patch: Patch, size: tuple[int, int], bits: int
) -> None:
    """Mixes per-pixel `codes (h, w)` of the patch into planes of one shape of a picture of `size` (H, W), in place."""
    import cv2  # not where inputs are checked, which need other parts of this module

    depths = {1: cv2.CV_8U, 2: cv2.CV_16U}
    steps = [1 if samples == length else 2 for samples, length in zip(planes[0].shape, size, strict=True)]
    firsts, ends = (patch.y_px, patch.x_px), (patch.y_px + patch.weight.shape[0], patch.x_px + patch.weight.shape[1])
    rows, columns = (slice(a // step, -(-b // step)) for a, b, step in zip(firsts, ends, steps, strict=True))
    # The weights and each plane's weighted codes, with what is missing of samples at the edge of the patch: none.
    down, across = steps
    shape = (rows.stop - rows.start) * down, (columns.stop - columns.start) * across
    sums = np.zeros((1 + len(planes), *shape), np.float32)
    inside = sums[:, firsts[0] % down :, firsts[1] % across :][:, : patch.weight.shape[0], : patch.weight.shape[1]]
    inside[0] = patch.weight
    for place, code in zip(inside[1:], codes, strict=True):
        np.multiply(patch.weight, code, out=place)
    if down == 2:
        sums = sums[:, 0::2] + sums[:, 1::2]
    if across == 2:
        sums = sums[:, :, 0::2] + sums[:, :, 1::2]
    if down * across > 1:
        high, wide = (_pixels(*given) for given in zip((rows, columns), steps, size, strict=True))
        sums /= high[:, None] * wide
    kept = 1 - sums[0]
    for plane, values in zip(planes, sums[1:], strict=True):
        target = plane[rows, columns]
        mixed = np.asarray(cv2.add(target * kept, values, dtype=depths[plane.dtype.itemsize]))  # rounds, too
        np.minimum(mixed, 2**bits - 1, out=target)


def _pixels(samples: slice, step: int, length: int) -> Float32Array:
    """How many of `length` pixels each of the samples covers: `step`, the last one of an odd side one less."""
    return np.minimum(step, length - step * np.arange(samples.start, samples.stop)).astype(np.float32)
