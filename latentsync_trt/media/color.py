"""How codes of a picture's planes and RGB become each other, by its color tags (ITU-T H.273), and
patches blended into planes. Pure.

A chroma sample belongs to the center of the pixels it covers: conversion to RGB repeats it for all
of them, and conversion back takes their mean. The two cancel out, so softly blended pixels do not
drift. Where the samples of a file lie elsewhere (`VideoInfo.chroma_place`), the networks see colors
half a pixel off, and painted colors move back.

What the SDR of an HDR picture (`hdr.py`) leaves out of the source, as light above 1000 cd/m² and
codes between two levels, is added to the signal of a patch: all of it where the patch has the level
that the networks saw, and less, the further it is away from that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.media.hdr import HDR_TRANSFERS, HdrCurve, hdr_curve
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

# Numbers of ITU-T H.273.
RGB_IDENTITY = 0
BT709 = 1
UNSPECIFIED = 2
BT2020_NCL = 9
_FCC = 4
_BT470BG = 5
_SMPTE170M = 6
_SMPTE240M = 7

_HD_SIDE_PX = 720
"""Without a matrix tag, players take BT.709 from this length of the shorter side on, which rotation
keeps.
"""

_LUMA_WEIGHTS: dict[int, tuple[float, float]] = {
    RGB_IDENTITY: (0.0, 0.0),  # not used
    BT709: (0.2126, 0.0722),
    _FCC: (0.30, 0.11),
    _BT470BG: (0.299, 0.114),
    _SMPTE170M: (0.299, 0.114),
    _SMPTE240M: (0.212, 0.087),
    BT2020_NCL: (0.2627, 0.0593),
}
"""Weights of red and blue in luma, by matrix."""

_SWSCALE_MATRIX = {_SMPTE170M: _BT470BG}
"""swscale numbers matrices as H.273 does, with one number for each pair of equal coefficients."""

_PATCH_WHITE = 65535
_PATCH_LEVEL = 257
"""A patch has 16 bits: each 8-bit level times this."""

_DIFFERENT = 32.0 * _PATCH_LEVEL
"""Where a patch differs from the source by this or more, nothing of the source is added to it."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How R'G'B' is coded as Y'CbCr, or with the matrix `RGB_IDENTITY` as planes G, B, R."""

    kr: float
    kb: float
    """Weights of red and blue in luma."""
    full_range: bool
    bits: int
    swscale_matrix: int


def coding_of(color: ColorTags, width_px: int, height_px: int, bits: int = 8) -> Coding:
    """Returns the coding that the tags of a picture of this size mean.

    Without a range tag, it is limited. Without a matrix tag, it is BT.2020 for HDR, BT.709 for
    other HD, else BT.601. Raises `InputError` for other matrices (YCgCo, ICtCp, …).
    """
    matrix = color.matrix
    if matrix == UNSPECIFIED and color.transfer in HDR_TRANSFERS:
        matrix = BT2020_NCL
    elif matrix == UNSPECIFIED and min(width_px, height_px) >= _HD_SIDE_PX:
        matrix = BT709
    elif matrix == UNSPECIFIED:
        matrix = _SMPTE170M
    if matrix not in _LUMA_WEIGHTS:
        raise InputError(
            f"color matrix {matrix} of ITU-T H.273 is not supported; "
            "convert the video to BT.709, or HDR to BT.2020"
        )
    kr, kb = _LUMA_WEIGHTS[matrix]
    swscale_matrix = _SWSCALE_MATRIX.get(matrix, matrix)
    return Coding(kr, kb, bool(color.full_range), bits, swscale_matrix)


@cache
def rgb_to_codes(coding: Coding, white: float) -> Float64Array:
    """Returns the matrix `(3, 4)` for `cv2.transform` from R, G, B in [0, `white`] to codes of the
    planes, in their order, not rounded.
    """
    kr = coding.kr
    kb = coding.kb
    kg = 1.0 - kr - kb
    step = 2.0 ** (coding.bits - 8)
    if coding.full_range:
        black = 0.0
        luma_scale = 2.0**coding.bits - 1
        chroma_scale = luma_scale
    else:
        black = 16 * step
        luma_scale = 219 * step
        chroma_scale = 224 * step
    if coding.swscale_matrix == RGB_IDENTITY:
        linear = np.eye(3)[[1, 2, 0]] * luma_scale
        offsets = [black] * 3
    else:
        luma = np.array([kr, kg, kb]) * luma_scale
        blue_scale = chroma_scale / (2.0 * (1.0 - kb))
        red_scale = chroma_scale / (2.0 * (1.0 - kr))
        blue = np.array([-kr, -kg, 1.0 - kb]) * blue_scale
        red = np.array([1.0 - kr, -kg, -kb]) * red_scale
        linear = np.stack([luma, blue, red])
        offsets = [black, 128 * step, 128 * step]
    return np.column_stack([linear / white, offsets])


@cache
def codes_to_rgb(coding: Coding, white: float) -> Float64Array:
    """Returns the inverse of `rgb_to_codes`, `(3, 4)`."""
    linear, offsets = np.split(rgb_to_codes(coding, white), [3], axis=1)
    inverse = np.linalg.inv(linear)
    return np.column_stack([inverse, -inverse @ offsets])


def hdr_values(codes: SampleArray, coding: Coding) -> UInt16Array:
    """Returns the 16-bit R, G and B of HDR `codes (h, w, 3)`, as `HdrCurve.sdr` is indexed."""
    import cv2

    rgb = cv2.transform(codes.astype(np.uint16), codes_to_rgb(coding, 65535))
    return np.asarray(rgb, np.uint16)


def covering(start_px: int, stop_px: int, step_px: int) -> slice:
    """Returns which samples, or tiles, of `step_px` pixels cover a range of pixels."""
    return slice(start_px // step_px, -(-stop_px // step_px))


def interleaved_codes(planes: YuvPlanes, rows: slice, columns: slice) -> SampleArray:
    """Returns the codes `(h, w, 3)` of a part of a picture, chroma repeated; the part begins at an
    even row and column.
    """
    import cv2

    down, across = planes.pixels_per_sample
    chroma_rows = covering(rows.start, rows.stop, down)
    chroma_columns = covering(columns.start, columns.stop, across)
    luma = planes.y[rows, columns]
    height, width = luma.shape
    parts = [luma]
    for plane in (planes.u, planes.v):
        repeated = _repeat(plane[chroma_rows, chroma_columns], down, across)
        parts.append(repeated[:height, :width])
    codes = np.empty((height, width, 3), luma.dtype)
    cv2.merge(parts, dst=codes)
    return codes


def _repeat(samples: SampleArray, down: int, across: int) -> SampleArray:
    """Returns samples `(h, w)` with each repeated in both directions, once or twice.

    Two equal samples beside each other are written as one number of twice the bits, which takes a
    tenth of the time of `numpy.repeat` and of `cv2.resize`.
    """
    if down * across == 1:
        return samples
    wide = np.dtype(f"u{across * samples.itemsize}")
    factor = wide.type(1)
    if across == 2:
        factor = wide.type(int(np.iinfo(samples.dtype).max) + 2)
    height, width = samples.shape
    repeated = np.empty((height, down, width), wide)
    np.multiply(samples[:, None], factor, out=repeated)
    return repeated.view(samples.dtype).reshape(down * height, -1)


def planes_from_rgb(rgb: UInt8Array, color: ColorTags) -> YuvPlanes:
    """Returns `rgb (H, W, 3)` as 8-bit planes in the coding of `color`, which is SDR: 4:2:0, or
    G, B, R for matrix 0.
    """
    height, width = rgb.shape[:2]
    if color.matrix == RGB_IDENTITY:
        red, green, blue = np.moveaxis(rgb, -1, 0).copy()
        return YuvPlanes(green, blue, red, color)
    black = np.zeros((height, width), np.uint8)
    chroma = black[::2, ::2]
    opaque = np.ones((height, width), np.float32)
    patch = Patch(0, 0, rgb * np.uint16(_PATCH_LEVEL), opaque)
    return apply_patch(YuvPlanes(black, chroma, chroma, color), patch)


def apply_patch(planes: YuvPlanes, *patches: Patch) -> YuvPlanes:
    """Returns a copy of `planes` with `patches` on it, see `blend_patches`."""
    copies = replace(planes, y=planes.y.copy(), u=planes.u.copy(), v=planes.v.copy())
    blend_patches(copies, patches)
    return copies


def blend_patches(planes: YuvPlanes, patches: Iterable[Patch]) -> None:
    """Blends patches into `planes`, one over the other, in their depth, matrix and range.

    Each sample is blended by the patch's weight; a chroma sample by the mean over its pixels.
    Samples without weight keep their value. In HDR, the patch passes the inverse of the curve that
    made `Frame.picture`. Raises as `coding_of`.
    """
    visible = [patch for patch in patches if patch.weight.size]
    # The codes of all patches come before the first is blended: in HDR, they depend on the source.
    codes_of_patches = [_patch_codes(planes, patch) for patch in visible]
    for patch, codes in zip(visible, codes_of_patches, strict=True):
        _blend((planes.y,), codes[:1], patch, planes, (1, 1))
        _blend((planes.u, planes.v), codes[1:], patch, planes, planes.pixels_per_sample)


def _patch_codes(planes: YuvPlanes, patch: Patch) -> list[Float32Array]:
    """Returns the codes `(h, w)` of a patch for each plane, not rounded."""
    import cv2  # not where inputs are checked, which need other parts of this module

    height_px, width_px = planes.y.shape
    coding = coding_of(planes.color, width_px, height_px, planes.bits)
    curve = hdr_curve(planes.color.transfer)
    if curve is None:
        rgb = patch.rgb.astype(np.float32)
        matrix = rgb_to_codes(coding, _PATCH_WHITE)
    else:
        rgb = _patch_signal(planes, patch, curve, coding)
        matrix = rgb_to_codes(coding, 1)
    codes = list[Float32Array]()
    for row in matrix:  # quicker than the whole matrix at once
        code = np.empty_like(patch.weight)
        cv2.transform(rgb, row[None], dst=code)
        codes.append(code)
    return codes


def _patch_signal(planes: YuvPlanes, patch: Patch, curve: HdrCurve, coding: Coding) -> Float32Array:
    """Returns the HDR signal `(h, w, 3)` of a patch on `planes`, in [0, 1] where they are within
    their range.
    """
    import cv2

    height, width = patch.weight.shape
    above = patch.y_px % 2
    left = patch.x_px % 2
    rows = slice(patch.y_px - above, patch.y_px + height)
    columns = slice(patch.x_px - left, patch.x_px + width)
    codes = interleaved_codes(planes, rows, columns)[above:, left:]
    source = cv2.transform(codes.astype(np.float32), codes_to_rgb(coding, 1))
    seen = curve.sdr[hdr_values(codes, coding)] * np.uint16(_PATCH_LEVEL)
    left_out = source - curve.signal[seen]
    difference = np.abs(patch.rgb - seen.astype(np.float32))
    likeness = np.maximum(1 - difference / _DIFFERENT, 0)
    return curve.signal[patch.rgb] + left_out * likeness


def _blend(
    planes: Sequence[SampleArray],
    codes: Sequence[Float32Array],
    patch: Patch,
    picture: YuvPlanes,
    pixels_per_sample: tuple[int, int],
) -> None:
    """Blends `codes (h, w)` of a patch, by its weight, into those planes of a picture that have so
    many rows and columns of pixels for each sample.
    """
    import cv2

    down, across = pixels_per_sample
    weight = patch.weight.copy()
    rows = covering(patch.y_px, patch.y_px + len(weight), down)
    columns = covering(patch.x_px, patch.x_px + weight.shape[1], across)
    # The last sample of an odd side has one pixel, which counts for two.
    if rows.stop * down > picture.y.shape[0]:
        weight[-1] *= 2
    if columns.stop * across > picture.y.shape[1]:
        weight[:, -1] *= 2
    depth = cv2.CV_8U if picture.bits == 8 else cv2.CV_16U
    kept = 1 - _sample_means(weight, patch, pixels_per_sample)
    for plane, code in zip(planes, codes, strict=True):
        target = plane[rows, columns]
        added = _sample_means(weight * code, patch, pixels_per_sample)
        cv2.add(target * kept, added, dst=target, dtype=depth)  # it rounds, too
        if picture.bits not in (8, 16):
            np.minimum(target, 2**picture.bits - 1, out=target)


def _sample_means(
    values: Float32Array, patch: Patch, pixels_per_sample: tuple[int, int]
) -> Float32Array:
    """Returns the means of a patch's `values (h, w)` over the pixels of each sample; pixels beyond
    the patch count as 0.
    """
    import cv2

    down, across = pixels_per_sample
    if down * across == 1:
        return values
    above = patch.y_px % down
    left = patch.x_px % across
    below = -(above + values.shape[0]) % down
    right = -(left + values.shape[1]) % across
    pixels = cv2.copyMakeBorder(values, above, below, left, right, cv2.BORDER_CONSTANT)
    height, width = pixels.shape
    size = (width // across, height // down)
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.float32)
