"""Codes and light of a picture's planes, by its color tags (ITU-T H.273), and patches mixed into
them. Pure.

A chroma sample belongs to the center of the pixels it covers: conversion to RGB repeats it for all
of them, and conversion back takes their mean. The two cancel out, so softly blended pixels do not
drift. Where the samples of a file lie elsewhere (`VideoInfo.chroma_place`), the networks see colors
half a pixel off, and painted colors move back.

HDR becomes SDR for the networks per channel, on the non-linear signal of PQ and HLG (ITU-R
BT.2100):

1. Signal → light relative to HDR reference white, 203 cd/m² (ITU-R BT.2408). For HLG on a nominal
   display of 1000 cd/m², whose system gamma of 1.2 is applied to each channel, 75 % signal is that
   white, too.
2. Light → signal of an SDR display: s = light^(1/2.4) (ITU-R BT.1886). 3. A soft knee: s up to 0.75
stays; above, 0.75 + a·x / (x + a) with x = s − 0.75, which continues with slope 1 and
   reaches 1 at 1000 cd/m². Reference white becomes 0.89, and brighter light than 1000 cd/m² 1.

What this leaves out of the source, as light above 1000 cd/m² and codes between two levels, is added
to the signal of a patch: all of it where the patch has the level that the networks saw, and less,
the further it is away from that.

Primaries are not converted, as clipping to BT.709 has no inverse: the networks see slightly paler
colors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import (
    ColorTags,
    Float32Array,
    Float64Array,
    Patch,
    SampleArray,
    UInt8Array,
    UInt16Array,
    YuvPlanes,
)

_WHITE = 65535  # of a patch
RGB_IDENTITY = 0
BT709 = 1
UNSPECIFIED = 2
BT2020_NCL = 9
_FCC = 4
_BT470BG = 5
_SMPTE170M = 6
_SMPTE240M = 7
# without a matrix tag, BT.709 from this length of the shorter side on, which rotation keeps
_HD_SIDE_PX = 720

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

HDR_TRANSFERS = PQ, HLG = 16, 18  # in ITU-T H.273

_PEAK = 1000.0
_REFERENCE = 203.0  # cd/m²: the nominal display of HLG, and HDR reference white
_GAMMA = 2.4
_KNEE = 0.75
_FAR = 32 * 257.0  # on a patch's scale; from here on, nothing is added

# PQ: BT.2100, table 4.
_M1 = 2610 / 16384
_M2 = 2523 / 4096 * 128
_C1 = 3424 / 4096
_C2 = 2413 / 4096 * 32
_C3 = 2392 / 4096 * 32

# HLG: BT.2100, table 5.
_A = 0.17883277
_B = 1 - 4 * _A
_C = 0.5 - _A * np.log(4 * _A)
_SYSTEM_GAMMA = 1.2


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
    """The coding of `color` in so many bits; raises `InputError` for other matrices (YCgCo, ICtCp,
    …). Without a range tag: limited. Without a matrix tag: BT.2020 for HDR, BT.709 for other HD,
    else BT.601.
    """
    matrix = color.matrix
    if matrix == UNSPECIFIED and color.transfer in HDR_TRANSFERS:
        matrix = BT2020_NCL
    elif matrix == UNSPECIFIED:
        matrix = BT709 if min(width_px, height_px) >= _HD_SIDE_PX else _SMPTE170M
    if matrix not in _LUMA_WEIGHTS:
        cure = "convert the video to BT.709, or HDR to BT.2020"
        raise InputError(f"color matrix {matrix} of ITU-T H.273 is not supported; {cure}")
    return Coding(
        *_LUMA_WEIGHTS[matrix], bool(color.full_range), bits, _SWSCALE_MATRIX.get(matrix, matrix)
    )


@cache
def rgb_to_codes(coding: Coding, white: float) -> Float64Array:
    """`(3, 4)`, for `cv2.transform`: R, G, B in [0, `white`] → codes of the planes, in their order,
    not rounded.
    """
    kr = coding.kr
    kb = coding.kb
    step = 2.0 ** (coding.bits - 8)
    kg = 1.0 - kr - kb
    black = 16 * step
    luma_scale = 219 * step
    chroma_scale = 224 * step
    if coding.full_range:
        black = 0.0
        luma_scale = 2.0**coding.bits - 1
        chroma_scale = 2.0**coding.bits - 1
    if coding.swscale_matrix == RGB_IDENTITY:
        linear = np.eye(3)[[1, 2, 0]] * luma_scale
        offsets = [black] * 3
    else:
        luma = np.array([kr, kg, kb]) * luma_scale
        blue = np.array([-kr, -kg, 1.0 - kb]) * (chroma_scale / (2.0 * (1.0 - kb)))
        red = np.array([1.0 - kr, -kg, -kb]) * (chroma_scale / (2.0 * (1.0 - kr)))
        linear = np.stack([luma, blue, red])
        offsets = [black, 128 * step, 128 * step]
    return np.column_stack([linear / white, offsets])


@cache
def codes_to_rgb(coding: Coding, white: float) -> Float64Array:
    """The inverse of `rgb_to_codes`, `(3, 4)`."""
    linear, offsets = np.split(rgb_to_codes(coding, white), [3], axis=1)
    inverse = np.linalg.inv(linear)
    return np.column_stack([inverse, -inverse @ offsets])


def apply_patch(planes: YuvPlanes, *patches: Patch) -> YuvPlanes:
    """A copy of `planes` with `patches` on it, see `blend_patches`."""
    mixed = replace(planes, y=planes.y.copy(), u=planes.u.copy(), v=planes.v.copy())
    blend_patches(mixed, patches)
    return mixed


def blend_patches(planes: YuvPlanes, patches: Iterable[Patch]) -> None:
    """Mixes patches into `planes`, one over the other, in their depth, matrix and range. Each
    sample is mixed by the patch's weight; a chroma sample by the mean over its pixels. Samples
    without weight keep their value. In HDR, the patch passes the inverse of the curve that made
    `Frame.picture`. Raises as `coding_of`.
    """
    patches = [patch for patch in patches if patch.weight.size]
    # Of all patches before the first one is mixed, as HDR depends on what was there.
    codes_of_each = [_patch_codes(planes, patch) for patch in patches]
    for patch, codes in zip(patches, codes_of_each, strict=True):
        _blend_codes((planes.y,), codes[:1], patch, planes.y.shape, planes.bits)
        _blend_codes((planes.u, planes.v), codes[1:], patch, planes.y.shape, planes.bits)


def _patch_codes(planes: YuvPlanes, patch: Patch) -> list[Float32Array]:
    """The codes `(h, w)` of a patch for each plane, not rounded."""
    import cv2  # not where inputs are checked, which need other parts of this module

    height_px, width_px = planes.y.shape
    hdr = hdr_curve(planes.color.transfer)
    coding = coding_of(planes.color, width_px, height_px, planes.bits)
    if hdr is None:
        rgb = patch.rgb.astype(np.float32)
    else:
        rgb = _patch_signal(planes, patch, hdr, coding)
    matrix = rgb_to_codes(coding, _WHITE if hdr is None else 1)
    codes = [np.empty_like(patch.weight) for _ in matrix]
    for code, row in zip(codes, matrix, strict=True):  # quicker than at once
        cv2.transform(rgb, row[None], dst=code)
    return codes


def _patch_signal(planes: YuvPlanes, patch: Patch, hdr: "HdrCurve", coding: Coding) -> Float32Array:
    """The HDR signal `(h, w, 3)` of a patch on `planes`, in [0, 1] where they are within their
    range.
    """
    import cv2

    height, width = patch.weight.shape
    y = patch.y_px
    x = patch.x_px
    rows = slice(y - y % 2, y + height)
    columns = slice(x - x % 2, x + width)
    codes = interleaved_codes(planes, rows, columns)[y % 2 :, x % 2 :]
    source = cv2.transform(codes.astype(np.float32), codes_to_rgb(coding, 1))
    seen = hdr.sdr[hdr_levels(codes, coding)] * np.uint16(_WHITE // 255)
    nearness = 1 - np.abs(patch.rgb - seen.astype(np.float32)) / _FAR
    lost = source - hdr.signal[seen]
    return np.asarray(hdr.signal[patch.rgb] + lost * np.maximum(nearness, 0), np.float32)


def hdr_levels(codes: SampleArray, coding: Coding) -> UInt16Array:
    """The place of HDR `codes (h, w, 3)` in `HdrCurve.sdr`, for R, G and B."""
    import cv2

    return np.asarray(
        cv2.transform(codes.astype(np.uint16), codes_to_rgb(coding, _WHITE)), np.uint16
    )


def interleaved_codes(planes: YuvPlanes, rows: slice, columns: slice) -> SampleArray:
    """The codes `(h, w, 3)` of a part of a picture, chroma repeated. It begins at an even row and
    column.
    """
    import cv2

    steps = (1, 1), *2 * (planes.pixels_per_sample,)
    parts = list[SampleArray]()
    for plane, (down, across) in zip((planes.y, planes.u, planes.v), steps, strict=True):
        part = plane[
            rows.start // down : -(-rows.stop // down),
            columns.start // across : -(-columns.stop // across),
        ]
        if down * across > 1:  # a sample twice in a row: one number of twice the bits
            own = part.dtype
            double = np.dtype(f"u{across * part.itemsize}")
            factor = 1 if across == 1 else int(np.iinfo(own).max) + 2
            repeated = np.empty((len(part), down, part.shape[1]), double)
            np.multiply(part[:, None], double.type(factor), out=repeated)
            part = repeated.view(own).reshape(down * len(part), -1)
        parts.append(part[: rows.stop - rows.start, : columns.stop - columns.start])
    whole = np.empty((*parts[0].shape, 3), parts[0].dtype)
    cv2.merge(parts, dst=whole)
    return whole


def planes_from_rgb(rgb: UInt8Array, color: ColorTags) -> YuvPlanes:
    """`rgb (H, W, 3)` as 8-bit planes, coded as `color`, of SDR, says: 4:2:0, or G, B, R for matrix
    0.
    """
    height, width = rgb.shape[:2]
    if color.matrix == RGB_IDENTITY:
        red, green, blue = (np.ascontiguousarray(rgb[..., channel]) for channel in range(3))
        return YuvPlanes(green, blue, red, color)
    half = np.zeros(((height + 1) // 2, (width + 1) // 2), np.uint8)
    blank = YuvPlanes(np.zeros((height, width), np.uint8), half, half, color)
    return apply_patch(
        blank, Patch(0, 0, rgb * np.uint16(257), np.ones((height, width), np.float32))
    )


def _blend_codes(
    planes: Sequence[SampleArray],
    codes: Sequence[Float32Array],
    patch: Patch,
    size: tuple[int, int],
    bits: int,
) -> None:
    """Mixes `codes (h, w)` of the patch into planes of one shape; `size` (H, W): the picture's."""
    import cv2

    depths = {1: cv2.CV_8U, 2: cv2.CV_16U}
    down, across = (
        1 if samples == length else 2 for samples, length in zip(planes[0].shape, size, strict=True)
    )
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
        # rounds, too
        cv2.add(target * kept, values, dst=target, dtype=depths[plane.dtype.itemsize])
        if bits not in (8, 16):
            np.minimum(target, 2**bits - 1, out=target)


class HdrCurve(NamedTuple):
    """Tables of a transfer for 16-bit values: `sdr (65536,)` uint8, the SDR level of each HDR
    signal; `signal (65536,)` float32 in [0, 1], the HDR signal of each SDR level.
    """

    sdr: UInt8Array
    signal: Float32Array


@cache
def hdr_curve(transfer: int) -> HdrCurve | None:
    """The curve of an HDR transfer; None for SDR."""
    if transfer not in HDR_TRANSFERS:
        return None
    levels = np.arange(65536) / 65535
    to_light, from_light = (_pq_light, _pq_signal) if transfer == PQ else (_hlg_light, _hlg_signal)
    sdr = _knee((to_light(levels) / _REFERENCE) ** (1 / _GAMMA))
    light = np.minimum(_REFERENCE * _knee(levels, inverse=True) ** _GAMMA, _PEAK)
    return HdrCurve(
        np.rint(255 * np.clip(sdr, 0, 1)).astype(np.uint8), from_light(light).astype(np.float32)
    )


def _pq_light(signal: Float64Array) -> Float64Array:
    """cd/m² of PQ."""
    root = signal ** (1 / _M2)
    return 10000 * (np.maximum(root - _C1, 0) / (_C2 - _C3 * root)) ** (1 / _M1)


def _pq_signal(light: Float64Array) -> Float64Array:
    root = (light / 10000) ** _M1
    return ((_C1 + _C2 * root) / (1 + _C3 * root)) ** _M2


def _hlg_light(signal: Float64Array) -> Float64Array:
    """cd/m² of HLG on the nominal display."""
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - _C) / _A) + _B) / 12)
    return _PEAK * scene**_SYSTEM_GAMMA


def _hlg_signal(light: Float64Array) -> Float64Array:
    scene = (light / _PEAK) ** (1 / _SYSTEM_GAMMA)
    return np.where(
        scene <= 1 / 12, np.sqrt(3 * scene), _A * np.log(np.maximum(12 * scene - _B, _B)) + _C
    )


# The knee's a: from a·x / (x + a) = 1 − knee at x = reach.
_REACH = (_PEAK / _REFERENCE) ** (1 / _GAMMA) - _KNEE
_BEND = (1 - _KNEE) * _REACH / (_REACH - (1 - _KNEE))


def _knee(level: Float64Array, *, inverse: bool = False) -> Float64Array:
    above = np.maximum(level - _KNEE, 0)
    return np.minimum(level, _KNEE) + _BEND * above / (_BEND - above if inverse else _BEND + above)
