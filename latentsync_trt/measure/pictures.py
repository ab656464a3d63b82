"""Measures of pictures against others: PSNR and SSIM, and how a painted mouth fits its face.
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from statistics import fmean

import cv2
import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.face.align import mouth_mask
from latentsync_trt.types import Float64Array, UInt8Array

Part = tuple[slice, slice]
"""Rows and columns."""

# In 1/256 of an aligned face. On four clips of real faces the lips' outline, wide open or shut,
# stays within x = 70 to 189 and y = 135 to 193.
_MOUTH = (124, 204, 64, 196)
_UNIT = 256

_PEAK = 255.0
_LUMA = np.array([0.299, 0.587, 0.114])
"""ITU-R BT.601."""

# Wang, Bovik, Sheikh, Simoncelli 2004, "Image Quality Assessment: From Error Visibility to
# Structural Similarity".
_WINDOW_PX = 11
_SIGMA_PX = 1.5
_C1 = (0.01 * _PEAK) ** 2
_C2 = (0.03 * _PEAK) ** 2

_BLUR = 64
_LEAST_DETAIL = 0.1
"""Of L*, in [0, 100]: flat pictures have no sharpness to lose."""


def mouth_part(side_px: int) -> Part:
    """Where an aligned face has its lips, with some room."""
    top, bottom, left, right = (edge * side_px // _UNIT for edge in _MOUTH)
    return slice(top, bottom), slice(left, right)


def generated_part(side_px: int) -> Part:
    """The rectangle around the pixels of an aligned face that are generated; the rest is the
    source's.
    """
    rows, columns = np.nonzero(mouth_mask(side_px) < 0.5)
    return slice(int(rows.min()), int(rows.max()) + 1), slice(
        int(columns.min()), int(columns.max()) + 1
    )


def fit_of(source: UInt8Array, painted: UInt8Array) -> tuple[float, float]:
    """How a painted mouth fits the face: shift of its mean color, and sharpness relative to the
    source's.

    Over the generated pixels of aligned faces, both uint8 `(H, H, 3)` RGB. Color: distance of a*
    and b* (CIE 1976 Lab); not of L*, which an open mouth darkens. Sharpness: standard deviation of
    what a blur over 1/64 of the side removes.
    """
    side_px = len(source)
    generated = mouth_mask(side_px) < 0.5
    colors = list[Float64Array]()
    details = list[float]()
    for picture in (source, painted):
        lab = cv2.cvtColor(picture.astype(np.float32) / np.float32(_PEAK), cv2.COLOR_RGB2LAB)
        colors.append(lab[generated].mean(axis=0, dtype=np.float64))
        light = lab[..., 0]
        details.append(
            float((light - cv2.GaussianBlur(light, (0, 0), side_px / _BLUR))[generated].std())
        )
    return float(np.linalg.norm((colors[1] - colors[0])[1:])), details[1] / max(
        details[0], _LEAST_DETAIL
    )


@dataclass(frozen=True, slots=True)
class Likeness:
    """How similar two clips of `frames` frames are.

    `psnr_db`: over all pixels together; None if they are equal. `ssim`: mean over the frames, at
    most 1.
    """

    psnr_db: float | None
    ssim: float
    frames: int

    def __str__(self) -> str:
        psnr = "equal" if self.psnr_db is None else f"{self.psnr_db:.1f} dB"
        return f"{psnr}, SSIM {self.ssim:.4f}"


def compared(a: UInt8Array, b: UInt8Array) -> tuple[float, float]:
    """The mean square difference and the `ssim` of two pictures `(H, W, 3)`, H and W at least
    11.
    """
    return cv2.norm(a, b, cv2.NORM_L2SQR) / a.size, ssim(a, b)


def overall(frames: Sequence[tuple[float, float]]) -> Likeness:
    """The likeness of two clips, of which each frame was `compared`; raises `InputError` without
    any.
    """
    if not frames:
        raise InputError(
            "no frame shows a face: nothing to compare; give another clip", usage=False
        )
    squares, similarities = zip(*frames, strict=True)
    return Likeness(decibels(fmean(squares)), fmean(similarities), len(frames))


def ssim(a: UInt8Array, b: UInt8Array) -> float:
    """Structural similarity of the luma of two pictures `(H, W, 3)`, H and W at least 11; at most
    1.

    The mean over all Gaussian windows of 11 pixels that lie wholly inside the picture.
    """
    x = a @ _LUMA
    y = b @ _LUMA
    mean_x, mean_y, square_x, square_y, product = (
        _window_means(each) for each in (x, y, x * x, y * y, x * y)
    )
    variance_x = square_x - mean_x**2
    variance_y = square_y - mean_y**2
    covariance = product - mean_x * mean_y
    alike = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    most = (mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2)
    return float((alike / most).mean())


def decibels(square: float) -> float | None:
    """The PSNR of a mean square difference of levels in [0, 255]; None without one."""
    if square:
        return 10 * log10(_PEAK**2 / square)
    return None


def _window_means(values: Float64Array) -> Float64Array:
    """Gaussian mean of each window that lies inside `values (H, W)`: `(H − 10, W − 10)`."""
    reach = _WINDOW_PX // 2
    blurred = cv2.GaussianBlur(values, (_WINDOW_PX, _WINDOW_PX), _SIGMA_PX)
    return np.asarray(blurred[reach:-reach, reach:-reach], np.float64)
