"""How RGB and 8-bit YUV relate, from the color tags of a stream (ITU-T H.273). Pure."""

from dataclasses import dataclass, replace

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import ColorTags, Float32Array, UInt8Array

BT709 = 1
UNSPECIFIED = 2
_FCC, _BT470BG, _SMPTE170M, _SMPTE240M, _BT2020_NCL, _BT2020_CL = 4, 5, 6, 7, 9, 10

HD_SIDE_PX = 720
"""Pictures without a matrix tag are BT.709 from this length of the shorter side on, which rotation leaves as it is."""

_LUMA_WEIGHTS: dict[int, tuple[float, float]] = {
    BT709: (0.2126, 0.0722),
    _FCC: (0.30, 0.11),
    _BT470BG: (0.299, 0.114),
    _SMPTE170M: (0.299, 0.114),
    _SMPTE240M: (0.212, 0.087),
    _BT2020_NCL: (0.2627, 0.0593),
    # Constant luminance needs the transfer curve; within 8 bits its picture is that of the non-constant kind.
    _BT2020_CL: (0.2627, 0.0593),
}
_SWSCALE_MATRIX = {_SMPTE170M: _BT470BG, _BT2020_CL: _BT2020_NCL}
"""swscale's numbers are H.273's, but it has one for each pair of equal coefficients."""


@dataclass(frozen=True, slots=True)
class Coding:
    """The arithmetic between R'G'B' and Y'CbCr: weights of red and blue in luma, and the range of the 8-bit codes."""

    kr: float
    kb: float
    full_range: bool
    swscale_matrix: int

    @property
    def luma_scale(self) -> float:
        """Codes between black and white."""
        return 255.0 if self.full_range else 219.0

    @property
    def luma_offset(self) -> float:
        """Code of black."""
        return 0.0 if self.full_range else 16.0

    @property
    def chroma_scale(self) -> float:
        """Codes between the two ends of a color difference."""
        return 255.0 if self.full_range else 224.0


def coding_of(color: ColorTags, width_px: int, height_px: int) -> Coding:
    """The coding that `color` names; without a matrix tag BT.709 for HD and BT.601 below, without a range limited.

    Raises:
        InputError: the matrix is one that 8-bit RGB cannot be computed from (YCgCo, ICtCp, …).
    """
    matrix = color.matrix
    if matrix == UNSPECIFIED:
        matrix = BT709 if min(width_px, height_px) >= HD_SIDE_PX else _SMPTE170M
    if matrix not in _LUMA_WEIGHTS:
        raise InputError(f"color matrix {matrix} (ITU-T H.273) is not supported; convert the video to BT.709")
    kr, kb = _LUMA_WEIGHTS[matrix]
    return Coding(kr, kb, color.full_range is True, _SWSCALE_MATRIX.get(matrix, matrix))


def encoded_tags(source: ColorTags, *, source_is_rgb: bool) -> ColorTags:
    """Tags of the 4:2:0 stream that a source is encoded as: its own, or limited BT.709 where the source is RGB."""
    return replace(source, matrix=BT709, full_range=False) if source_is_rgb else source


def luma_of(rgb: Float32Array, coding: Coding) -> UInt8Array:
    """Luma codes `(H, W)` uint8 of `rgb (H, W, 3)` float32 in [0, 255]."""
    scale = coding.luma_scale / 255.0
    weights = np.array([coding.kr, 1.0 - coding.kr - coding.kb, coding.kb], np.float32) * np.float32(scale)
    return _to_codes(rgb @ weights + np.float32(coding.luma_offset))


def chroma_of(rgb: Float32Array, coding: Coding) -> tuple[Float32Array, Float32Array]:
    """Unrounded Cb and Cr codes `(H, W)` float32, one of each per pixel, of `rgb (H, W, 3)` float32 in [0, 255]."""
    kg = 1.0 - coding.kr - coding.kb
    scale = coding.chroma_scale / 255.0
    blue = np.array([-coding.kr, -kg, 1.0 - coding.kb]) * (scale / (2.0 * (1.0 - coding.kb)))
    red = np.array([1.0 - coding.kr, -kg, -coding.kb]) * (scale / (2.0 * (1.0 - coding.kr)))
    center = np.float32(128.0)
    return rgb @ blue.astype(np.float32) + center, rgb @ red.astype(np.float32) + center


def _to_codes(values: Float32Array) -> UInt8Array:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
