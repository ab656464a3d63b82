"""Similarity of pictures and of clips: PSNR and SSIM."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log10
from statistics import fmean

import cv2
import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Float64Array, UInt8Array

_PEAK = 255.0
_LUMA = np.array([0.299, 0.587, 0.114])
"""ITU-R BT.601."""

# Wang, Bovik, Sheikh, Simoncelli 2004, "Image Quality Assessment: From Error Visibility to Structural Similarity".
_WINDOW_PX, _SIGMA_PX = 11, 1.5
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2


@dataclass(frozen=True, slots=True)
class Likeness:
    """How similar two clips of `frames` frames are.

    `psnr_db`: over all pixels together; None if they are equal. `ssim`: mean over the frames, at most 1.
    """

    psnr_db: float | None
    ssim: float
    frames: int


class LikenessMeter:
    """Compares two clips frame by frame."""

    def __init__(self) -> None:
        self._squares: list[float] = []
        self._similarities: list[float] = []

    def add(self, a: UInt8Array, b: UInt8Array) -> None:
        """Adds the next frame of both, `(H, W, 3)`, H and W at least 11; raises `InputError` as `ssim`."""
        self._similarities.append(ssim(a, b))
        self._squares.append(cv2.norm(a, b, cv2.NORM_L2SQR) / a.size)

    def result(self) -> Likeness:
        """The likeness over all frames; raises `InputError` if there are none."""
        if not self._squares:
            raise InputError("no frames: nothing to compare")
        psnr_db = decibels(_PEAK**2, fmean(self._squares))
        return Likeness(psnr_db, fmean(self._similarities), len(self._squares))


def likeness(frames: Iterable[UInt8Array], reference: Iterable[UInt8Array]) -> Likeness:
    """Compares two clips frame by frame; raises ValueError where their lengths differ, else as `LikenessMeter`."""
    meter = LikenessMeter()
    for ours, theirs in zip(frames, reference, strict=True):
        meter.add(ours, theirs)
    return meter.result()


def ssim(a: UInt8Array, b: UInt8Array) -> float:
    """Structural similarity of the luma of two pictures `(H, W, 3)`, at most 1.

    The mean over all Gaussian windows of 11 pixels that lie wholly inside the picture.

    Raises:
        InputError: the shapes differ, or a side is shorter than a window.
    """
    if a.shape != b.shape:
        raise InputError(f"pictures of shapes {a.shape} and {b.shape}: two of one shape are compared")
    if a.ndim != 3 or min(a.shape[:2]) < _WINDOW_PX:
        raise InputError(f"pictures of shape {a.shape}: SSIM needs (H, W, 3) with sides of {_WINDOW_PX} px or more")
    x, y = a @ _LUMA, b @ _LUMA
    mean_x, mean_y = _window_means(x), _window_means(y)
    variance_x = _window_means(x * x) - mean_x**2
    variance_y = _window_means(y * y) - mean_y**2
    covariance = _window_means(x * y) - mean_x * mean_y
    alike = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    most = (mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2)
    return float((alike / most).mean())


def decibels(signal: float, noise: float) -> float | None:
    """The ratio of two powers; None without noise."""
    return 10 * log10(signal / noise) if noise else None


def _window_means(values: Float64Array) -> Float64Array:
    """Gaussian mean of each window that lies inside `values (H, W)`: `(H − 10, W − 10)`."""
    reach = _WINDOW_PX // 2
    blurred = cv2.GaussianBlur(values, (_WINDOW_PX, _WINDOW_PX), _SIGMA_PX)
    return np.asarray(blurred[reach:-reach, reach:-reach], np.float64)
