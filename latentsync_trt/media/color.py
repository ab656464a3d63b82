"""Converts between RGB and 8-bit YUV as the color tags of a stream say (ITU-T H.273). Pure."""

from dataclasses import dataclass

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import ColorTags, Float32Array, UInt8Array

RGB_IDENTITY = 0
BT709 = 1
UNSPECIFIED = 2
_FCC, _BT470BG, _SMPTE170M, _SMPTE240M, _BT2020_NCL, _BT2020_CL = 4, 5, 6, 7, 9, 10

HD_SIDE_PX = 720
"""Pictures without a matrix tag are BT.709 if their shorter side has at least this length; rotation keeps that side."""

_LUMA_WEIGHTS: dict[int, tuple[float, float]] = {
    BT709: (0.2126, 0.0722),
    _FCC: (0.30, 0.11),
    _BT470BG: (0.299, 0.114),
    _SMPTE170M: (0.299, 0.114),
    _SMPTE240M: (0.212, 0.087),
    _BT2020_NCL: (0.2627, 0.0593),
    # Constant luminance would need the transfer curve; in 8 bits it looks the same as the non-constant kind.
    _BT2020_CL: (0.2627, 0.0593),
}
_SWSCALE_MATRIX = {_SMPTE170M: _BT470BG, _BT2020_CL: _BT2020_NCL}
"""swscale numbers matrices as H.273 does, with one number per pair of equal coefficients."""


@dataclass(frozen=True, slots=True)
class Coding:
    """R'G'B' ↔ Y'CbCr in 8 bits.

    `kr`, `kb`: weights of red and blue in luma. `luma_offset`: code of black; `luma_scale`: codes from black to white;
    `chroma_scale`: codes from the smallest to the largest Cb and Cr.
    """

    kr: float
    kb: float
    full_range: bool
    luma_offset: float
    luma_scale: float
    chroma_scale: float
    swscale_matrix: int


def coding_of(color: ColorTags, width_px: int, height_px: int) -> Coding:
    """The coding of `color`. Without a matrix tag: BT.709 for HD, else BT.601. Without a range tag: limited.

    Raises:
        InputError: the matrix is not supported (YCgCo, ICtCp, …).
    """
    matrix = color.matrix
    if matrix == UNSPECIFIED:
        matrix = BT709 if min(width_px, height_px) >= HD_SIDE_PX else _SMPTE170M
    if matrix not in _LUMA_WEIGHTS:
        raise InputError(f"color matrix {matrix} (ITU-T H.273) is not supported; convert the video to BT.709")
    kr, kb = _LUMA_WEIGHTS[matrix]
    swscale_matrix = _SWSCALE_MATRIX.get(matrix, matrix)
    if color.full_range:
        return Coding(kr, kb, True, 0.0, 255.0, 255.0, swscale_matrix)
    return Coding(kr, kb, False, 16.0, 219.0, 224.0, swscale_matrix)


def luma_of(rgb: Float32Array, coding: Coding) -> UInt8Array:
    """Luma codes `(H, W)` uint8 of `rgb (H, W, 3)` float32 in [0, 255]."""
    scale = coding.luma_scale / 255.0
    weights = np.array([coding.kr, 1.0 - coding.kr - coding.kb, coding.kb], np.float32) * np.float32(scale)
    codes = np.rint(rgb @ weights + np.float32(coding.luma_offset))
    return np.clip(codes, 0, 255).astype(np.uint8)


def chroma_of(rgb: Float32Array, coding: Coding) -> tuple[Float32Array, Float32Array]:
    """Unrounded Cb and Cr codes `(H, W)` float32 per pixel of `rgb (H, W, 3)` float32 in [0, 255]."""
    kg = 1.0 - coding.kr - coding.kb
    scale = coding.chroma_scale / 255.0
    blue = np.array([-coding.kr, -kg, 1.0 - coding.kb]) * (scale / (2.0 * (1.0 - coding.kb)))
    red = np.array([1.0 - coding.kr, -kg, -coding.kb]) * (scale / (2.0 * (1.0 - coding.kr)))
    center = np.float32(128.0)
    return rgb @ blue.astype(np.float32) + center, rgb @ red.astype(np.float32) + center
