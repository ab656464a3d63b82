"""Converts RGB to YUV of any depth as the color tags of a stream say (ITU-T H.273). Pure."""

from dataclasses import dataclass

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.media.hdr import HDR_TRANSFERS
from latentsync_trt.types import ColorTags, Float32Array

RGB_IDENTITY = 0
BT709 = 1
UNSPECIFIED = 2
BT2020_NCL = 9
_FCC, _BT470BG, _SMPTE170M, _SMPTE240M = 4, 5, 6, 7

HD_SIDE_PX = 720
"""Pictures without a matrix tag are BT.709 if their shorter side has at least this length; rotation keeps that side."""

_LUMA_WEIGHTS: dict[int, tuple[float, float]] = {
    RGB_IDENTITY: (0.2126, 0.0722),  # not used
    BT709: (0.2126, 0.0722),
    _FCC: (0.30, 0.11),
    _BT470BG: (0.299, 0.114),
    _SMPTE170M: (0.299, 0.114),
    _SMPTE240M: (0.212, 0.087),
    BT2020_NCL: (0.2627, 0.0593),
}
_OTHER_MATRICES = {0: "RGB in a YUV format", 8: "YCgCo", 10: "BT.2020 with constant luminance", 14: "ICtCp"}
_SWSCALE_MATRIX = {_SMPTE170M: _BT470BG}
"""swscale numbers matrices as H.273 does, with one number per pair of equal coefficients."""


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
    name = _OTHER_MATRICES.get(matrix, "ITU-T H.273")
    return InputError(
        f"color matrix {matrix} ({name}) is not supported; convert the video to BT.709, or HDR to BT.2020"
    )


def codes_of(rgb: Float32Array, coding: Coding) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Unrounded codes `(H, W)` float32 of each plane, per pixel of `rgb (H, W, 3)` float32 in [0, 1]."""
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
