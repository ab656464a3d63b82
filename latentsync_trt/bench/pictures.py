"""How alike two pictures are: PSNR and SSIM, of single pictures and of clips. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, log10

import cv2
import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Float64Array, UInt8Array

_PEAK = 255.0
_LUMA = np.array([0.299, 0.587, 0.114])
"""ITU-R BT.601, as gray pictures are made everywhere."""

# Wang, Bovik, Sheikh, Simoncelli 2004, "Image Quality Assessment: From Error Visibility to Structural Similarity".
_WINDOW_PX, _SIGMA_PX = 11, 1.5
_C1, _C2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two clips are.

    `psnr_db`: of all their pixels together; infinite where they are equal. `ssim`: mean over the frames, at most 1.
    `frames`: how many were compared.
    """

    psnr_db: float
    ssim: float
    frames: int


def psnr(a: UInt8Array, b: UInt8Array) -> float:
    """Peak signal-to-noise ratio in dB of uint8 arrays of one shape; infinite where they are equal.

    Raises:
        InputError: the shapes differ.
    """
    return _decibels(_mean_square(a, b))


def ssim(a: UInt8Array, b: UInt8Array) -> float:
    """Structural similarity of two pictures `(H, W, 3)` by their luma, at most 1.

    Gaussian windows of 11 pixels; only windows that lie wholly inside the picture count.

    Raises:
        InputError: the shapes differ, or a side is shorter than a window.
    """
    _check_shapes(a, b)
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


def likeness(frames: Iterable[UInt8Array], reference: Iterable[UInt8Array]) -> Likeness:
    """Compares two clips of equal length, frame by frame; each frame is uint8 `(H, W, 3)`, H and W at least 11.

    Raises:
        InputError: no frames, clips of different lengths, or frames that `ssim` refuses.
    """
    squares: list[float] = []
    similarities: list[float] = []
    try:
        for ours, theirs in zip(frames, reference, strict=True):
            squares.append(_mean_square(ours, theirs))
            similarities.append(ssim(ours, theirs))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"clips of different lengths: only the first {len(squares)} frames are in both") from error
    if not squares:
        raise InputError("two clips without a frame: nothing to compare")
    return Likeness(_decibels(float(np.mean(squares))), float(np.mean(similarities)), len(squares))


def _mean_square(a: UInt8Array, b: UInt8Array) -> float:
    _check_shapes(a, b)
    return float(np.mean((a.astype(np.float64) - b) ** 2))


def _decibels(mean_square: float) -> float:
    return 10 * log10(_PEAK**2 / mean_square) if mean_square else inf


def _check_shapes(a: UInt8Array, b: UInt8Array) -> None:
    if a.shape != b.shape:
        raise InputError(f"pictures of shapes {a.shape} and {b.shape}: two of one shape are compared")


def _window_means(values: Float64Array) -> Float64Array:
    """Gaussian mean of each window that lies inside `values (H, W)`: `(H − 10, W − 10)`."""
    reach = _WINDOW_PX // 2
    blurred = cv2.GaussianBlur(values, (_WINDOW_PX, _WINDOW_PX), _SIGMA_PX)
    return np.asarray(blurred[reach:-reach, reach:-reach], np.float64)
