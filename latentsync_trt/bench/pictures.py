"""How alike two pictures are: PSNR and SSIM, of single pictures and of clips. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf, log10
from statistics import fmean

import cv2
import numpy as np

from latentsync_trt.bench.perceptual import lpips_distance
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
    """How alike two clips are.

    `psnr_db`: of all their pixels together; infinite where they are equal. `ssim`: mean over the frames, at most 1.
    `frames`: how many were compared. `lpips`: mean over the frames, 0 for equal ones; None where it was not measured.
    """

    psnr_db: float
    ssim: float
    frames: int
    lpips: float | None = None


class LikenessMeter:
    """Compares two clips frame by frame.

    Args:
        lpips: measure LPIPS, too, where it is installed.
    """

    def __init__(self, *, lpips: bool = False) -> None:
        self._with_lpips = lpips
        self._squares: list[float] = []
        self._similarities: list[float] = []
        self._distances: list[float] = []

    def add(self, a: UInt8Array, b: UInt8Array) -> None:
        """The next frame of both, `(H, W, 3)`, H and W at least 11; raises `InputError` as `ssim`."""
        self._squares.append(_mean_square(a, b))
        self._similarities.append(ssim(a, b))
        distance = lpips_distance(a[None], b[None]) if self._with_lpips else None
        if distance is not None:
            self._distances.append(distance)

    def result(self) -> Likeness:
        """Of all frames; raises `InputError` where there were none."""
        if not self._squares:
            raise InputError("no frames: nothing to compare")
        lpips = fmean(self._distances) if self._distances else None
        return Likeness(_psnr_db(fmean(self._squares)), fmean(self._similarities), len(self._squares), lpips)


def psnr(a: UInt8Array, b: UInt8Array) -> float:
    """Peak signal-to-noise ratio in dB of uint8 arrays of one shape; infinite where they are equal.

    Raises:
        InputError: the shapes differ.
    """
    return _psnr_db(_mean_square(a, b))


def ssim(a: UInt8Array, b: UInt8Array) -> float:
    """Structural similarity of two pictures `(H, W, 3)` by their luma, at most 1.

    The mean over all Gaussian windows of 11 pixels that lie wholly inside the picture.

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
    meter = LikenessMeter()
    for ours, theirs in zip_longest(frames, reference):
        if ours is None or theirs is None:
            raise InputError("clips of different lengths: both must have the same number of frames")
        meter.add(ours, theirs)
    return meter.result()


def pooled(parts: Sequence[Likeness]) -> Likeness:
    """Several clips as one: each frame weighs the same, and PSNR is of the mean power of the difference."""
    frames = sum(part.frames for part in parts)
    square = sum(part.frames * _PEAK**2 * 10 ** (-part.psnr_db / 10) for part in parts) / frames
    ssim_sum = sum(part.frames * part.ssim for part in parts)
    distances = [part.frames * part.lpips for part in parts if part.lpips is not None]
    lpips = sum(distances) / frames if len(distances) == len(parts) else None
    return Likeness(_psnr_db(square), ssim_sum / frames, frames, lpips)


def decibels(signal: float, noise: float) -> float | None:
    """The ratio of two powers; None without noise."""
    if noise == 0:
        return None
    return 10 * log10(signal / noise) if signal > 0 else -inf


def _psnr_db(mean_square: float) -> float:
    found = decibels(_PEAK**2, mean_square)
    return inf if found is None else found


def _mean_square(a: UInt8Array, b: UInt8Array) -> float:
    _check_shapes(a, b)
    return float(np.mean((a.astype(np.float64) - b) ** 2))


def _check_shapes(a: UInt8Array, b: UInt8Array) -> None:
    if a.shape != b.shape:
        raise InputError(f"pictures of shapes {a.shape} and {b.shape}: two of one shape are compared")


def _window_means(values: Float64Array) -> Float64Array:
    """Gaussian mean of each window that lies inside `values (H, W)`: `(H − 10, W − 10)`."""
    reach = _WINDOW_PX // 2
    blurred = cv2.GaussianBlur(values, (_WINDOW_PX, _WINDOW_PX), _SIGMA_PX)
    return np.asarray(blurred[reach:-reach, reach:-reach], np.float64)
