"""Mixes patches into a picture's planes, coded as its color tags say (ITU-T H.273). Pure.

A chroma sample belongs to the center of the pixels it covers: conversion to RGB repeats it for all of them, and
conversion back takes their mean. The two cancel out, so softly blended pixels do not drift.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.media.hdr import HDR_TRANSFERS, hdr_of
from latentsync_trt.types import ColorTags, Float32Array, Float64Array, Patch, SampleArray, UInt8Array, YuvPlanes

_WHITE = 65535
"""Of a patch."""

RGB_IDENTITY = 0
BT709 = 1
UNSPECIFIED = 2
BT2020_NCL = 9
_FCC, _BT470BG, _SMPTE170M, _SMPTE240M = 4, 5, 6, 7

# Without a matrix tag, BT.709 from this length of the shorter side on, which rotation keeps.
HD_SIDE_PX = 720

_LUMA_WEIGHTS: dict[int, tuple[float, float]] = {
    RGB_IDENTITY: (0.0, 0.0),  # not used
    BT709: (0.2126, 0.0722),
    _FCC: (0.30, 0.11),
    _BT470BG: (0.299, 0.114),
    _SMPTE170M: (0.299, 0.114),
    _SMPTE240M: (0.212, 0.087),
    BT2020_NCL: (0.2627, 0.0593),
}
# swscale numbers matrices as H.273 does, with one number per pair of equal coefficients.
_SWSCALE_MATRIX = {_SMPTE170M: _BT470BG}


@dataclass(frozen=True, slots=True)
class Coding:
    """R'G'B' ↔ Y'CbCr; for the matrix `RGB_IDENTITY` R'G'B' itself, as planes in the order G, B, R.

    `kr`, `kb`: weights of red and blue in luma.
    """

    kr: float
    kb: float
    full_range: bool
    bits: int
    swscale_matrix: int


def coding_of(color: ColorTags, width_px: int, height_px: int, bits: int = 8) -> Coding:
    """The coding of `color` in so many bits; raises `InputError` for other matrices (YCgCo, ICtCp, …).

    Without a range tag: limited. Without a matrix tag: BT.2020 for HDR, BT.709 for other HD, else BT.601.
    """
    matrix = color.matrix
    if matrix == UNSPECIFIED and color.transfer in HDR_TRANSFERS:
        matrix = BT2020_NCL
    elif matrix == UNSPECIFIED:
        matrix = BT709 if min(width_px, height_px) >= HD_SIDE_PX else _SMPTE170M
    if matrix not in _LUMA_WEIGHTS:
        raise unsupported_matrix(matrix)
    return Coding(*_LUMA_WEIGHTS[matrix], bool(color.full_range), bits, _SWSCALE_MATRIX.get(matrix, matrix))


def unsupported_matrix(matrix: int) -> InputError:
    """The error of a matrix that needs more than weights of R, G and B."""
    cure = "convert the video to BT.709, or HDR to BT.2020"
    return InputError(f"color matrix {matrix} of ITU-T H.273 is not supported; {cure}")


@cache
def codes_of(coding: Coding, white: float) -> Float64Array:
    """`(3, 4)`, for `cv2.transform`: R, G, B in [0, `white`] → codes of the planes, in their order, not rounded."""
    kr, kb, step = coding.kr, coding.kb, 2.0 ** (coding.bits - 8)
    kg = 1.0 - kr - kb
    black, luma_scale, chroma_scale = 16 * step, 219 * step, 224 * step
    if coding.full_range:
        black, luma_scale, chroma_scale = 0.0, 2.0**coding.bits - 1, 2.0**coding.bits - 1
    if coding.swscale_matrix == RGB_IDENTITY:
        linear, offsets = np.eye(3)[[1, 2, 0]] * luma_scale, [black] * 3
    else:
        luma = np.array([kr, kg, kb]) * luma_scale
        blue = np.array([-kr, -kg, 1.0 - kb]) * (chroma_scale / (2.0 * (1.0 - kb)))
        red = np.array([1.0 - kr, -kg, -kb]) * (chroma_scale / (2.0 * (1.0 - kr)))
        linear, offsets = np.stack([luma, blue, red]), [black, 128 * step, 128 * step]
    return np.column_stack([linear / white, offsets])


@cache
def levels_of(coding: Coding, white: float) -> Float64Array:
    """The inverse of `codes_of`, `(3, 4)`."""
    linear, offsets = np.split(codes_of(coding, white), [3], axis=1)
    inverse = np.linalg.inv(linear)
    return np.column_stack([inverse, -inverse @ offsets])


def apply_patch(planes: YuvPlanes, *patches: Patch) -> YuvPlanes:
    """A copy of `planes` with `patches` on it, see `mix`."""
    mixed = replace(planes, y=planes.y.copy(), u=planes.u.copy(), v=planes.v.copy())
    mix(mixed, patches)
    return mixed


def mix(planes: YuvPlanes, patches: Iterable[Patch]) -> None:
    """Mixes patches into `planes`, one over the other, in their depth, matrix and range.

    Each sample is mixed by the patch's weight; a chroma sample by the mean over its pixels. Samples without weight keep
    their value. In HDR, the patch passes the inverse of the curve that made `Frame.picture`. Raises as `coding_of`.
    """
    import cv2  # not where inputs are checked, which need other parts of this module

    height_px, width_px = planes.y.shape
    hdr = hdr_of(planes.color.transfer)
    for patch in patches:
        if not patch.weight.size:
            continue
        matrix = codes_of(coding_of(planes.color, width_px, height_px, planes.bits), 1 if hdr else _WHITE)
        rgb = hdr.signal[patch.rgb] if hdr else patch.rgb.astype(np.float32)
        codes = [np.empty_like(patch.weight) for _ in matrix]
        for code, row in zip(codes, matrix, strict=True):  # quicker than at once
            cv2.transform(rgb, row[None], dst=code)
        _mix((planes.y,), codes[:1], patch, (height_px, width_px), planes.bits)
        _mix((planes.u, planes.v), codes[1:], patch, (height_px, width_px), planes.bits)


def planes_of(rgb: UInt8Array, color: ColorTags) -> YuvPlanes:
    """`rgb (H, W, 3)` as 8-bit planes, coded as `color` says: 4:2:0, or G, B, R for matrix 0."""
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
    """Mixes `codes (h, w)` of the patch into planes of one shape; `size` (H, W): the picture's."""
    import cv2

    depths = {1: cv2.CV_8U, 2: cv2.CV_16U}
    down, across = (1 if samples == length else 2 for samples, length in zip(planes[0].shape, size, strict=True))
    (high, wide), top, left = patch.weight.shape, patch.y_px % down, patch.x_px % across
    rows = slice(patch.y_px // down, -(-(patch.y_px + high) // down))
    columns = slice(patch.x_px // across, -(-(patch.x_px + wide) // across))
    # The weights, then each plane's weighted codes; 0 where samples reach beyond the patch.
    shape = rows.stop - rows.start, columns.stop - columns.start
    sums = np.zeros((1 + len(planes), shape[0] * down, shape[1] * across), np.float32)
    inside = sums[:, top : top + high, left : left + wide]
    inside[0] = patch.weight
    for place, code in zip(inside[1:], codes, strict=True):
        np.multiply(patch.weight, code, out=place)
    means = sums
    if down * across > 1:
        means = np.empty((len(sums), *shape), np.float32)
        for mean, each in zip(means, sums, strict=True):
            cv2.resize(each, shape[::-1], dst=mean, interpolation=cv2.INTER_AREA)
        # The last sample of an odd side has one pixel.
        if rows.stop * down > size[0]:
            means[:, -1] *= 2
        if columns.stop * across > size[1]:
            means[:, :, -1] *= 2
    kept = 1 - means[0]
    for plane, values in zip(planes, means[1:], strict=True):
        target = plane[rows, columns]
        cv2.add(target * kept, values, dst=target, dtype=depths[plane.dtype.itemsize])  # rounds, too
        if bits not in (8, 16):
            np.minimum(target, 2**bits - 1, out=target)
