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
    """R'G'B' ↔ Y'CbCr, or R'G'B' itself as planes in the order G, B, R (`identity`).

    `kr`, `kb`: weights of red and blue in luma. `luma_offset`: code of black; `luma_scale`: codes from black to white;
    `chroma_scale`: codes from the smallest to the largest Cb and Cr; `chroma_center`: their code of gray.
    """

    kr: float
    kb: float
    full_range: bool
    bits: int
    luma_offset: float
    luma_scale: float
    chroma_scale: float
    chroma_center: float
    swscale_matrix: int

    @property
    def identity(self) -> bool:
        """Whether the planes hold G, B and R."""
        return self.swscale_matrix == RGB_IDENTITY


def coding_of(color: ColorTags, width_px: int, height_px: int, bits: int = 8) -> Coding:
    """The coding of `color` in so many bits. Without a range tag: limited.

    Without a matrix tag: BT.2020 for HDR, BT.709 for other HD, else BT.601.

    Raises:
        InputError: the matrix is not supported (YCgCo, ICtCp, …).
    """
    matrix = color.matrix
    if matrix == UNSPECIFIED and color.transfer in HDR_TRANSFERS:
        matrix = BT2020_NCL
    elif matrix == UNSPECIFIED:
        matrix = BT709 if min(width_px, height_px) >= HD_SIDE_PX else _SMPTE170M
    if matrix not in _LUMA_WEIGHTS:
        raise unsupported_matrix(matrix)
    kr, kb = _LUMA_WEIGHTS[matrix]
    step = 2.0 ** (bits - 8)
    offset, luma, chroma = (16 * step, 219 * step, 224 * step)
    if color.full_range:
        offset, luma, chroma = 0.0, 2.0**bits - 1, 2.0**bits - 1
    return Coding(
        *(kr, kb, bool(color.full_range), bits, offset, luma, chroma),
        chroma_center=128 * step,
        swscale_matrix=_SWSCALE_MATRIX.get(matrix, matrix),
    )


def unsupported_matrix(matrix: int) -> InputError:
    """The error of a matrix that needs more than weights of R, G and B."""
    return InputError(
        f"color matrix {matrix} of ITU-T H.273 is not supported; convert the video to BT.709, or HDR to BT.2020"
    )


def codes_of(rgb: Float32Array, coding: Coding) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Unrounded codes `(H, W)` float32 of each plane; `rgb (H, W, 3)` float32 in [0, 1]."""
    if coding.identity:
        codes = rgb * np.float32(coding.luma_scale) + np.float32(coding.luma_offset)
        return codes[..., 1], codes[..., 2], codes[..., 0]
    kg = 1.0 - coding.kr - coding.kb
    luma = np.array([coding.kr, kg, coding.kb]) * coding.luma_scale
    blue = np.array([-coding.kr, -kg, 1.0 - coding.kb]) * (coding.chroma_scale / (2.0 * (1.0 - coding.kb)))
    red = np.array([1.0 - coding.kr, -kg, -coding.kb]) * (coding.chroma_scale / (2.0 * (1.0 - coding.kr)))
    center = np.float32(coding.chroma_center)
    return (
        rgb @ luma.astype(np.float32) + np.float32(coding.luma_offset),
        rgb @ blue.astype(np.float32) + center,
        rgb @ red.astype(np.float32) + center,
    )


@cache
def levels_of(coding: Coding, white: int) -> Float64Array:
    """`(3, 4)`: codes of the planes, in their order → R, G, B in [0, `white`], for `cv2.transform`."""
    codes = np.stack(codes_of(np.eye(4, 3, dtype=np.float32), coding), axis=-1).astype(np.float64)
    inverse = white * np.linalg.inv((codes[:3] - codes[3]).T)
    return np.column_stack([inverse, -inverse @ codes[3]])


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
    import cv2  # not where inputs are checked, which need other parts of this module

    depths = {1: cv2.CV_8U, 2: cv2.CV_16U}
    steps = [1 if samples == length else 2 for samples, length in zip(planes[0].shape, size, strict=True)]
    firsts, ends = (patch.y_px, patch.x_px), (patch.y_px + patch.weight.shape[0], patch.x_px + patch.weight.shape[1])
    rows, columns = (slice(a // step, -(-b // step)) for a, b, step in zip(firsts, ends, steps, strict=True))
    # The weights and each plane's weighted codes; 0 where samples reach beyond the patch.
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
    """How many of `length` pixels each sample covers: `step`; the last of an odd side one less."""
    return np.minimum(step, length - step * np.arange(samples.start, samples.stop)).astype(np.float32)
