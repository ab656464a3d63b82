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
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, UInt8Array

FaceArea = tuple[slice, slice]
"""Rows and columns of an aligned face."""

_MOUTH_256THS = (124, 204, 64, 196)
"""Top, bottom, left and right of the lips in 1/256 of an aligned face. On four clips of real faces
their outline, wide open or shut, stays within x = 70 to 189 and y = 135 to 193.
"""

_WHITE_LEVEL = 255.0
_LUMA = np.array([0.299, 0.587, 0.114])
"""Weights of RGB, ITU-R BT.601."""

# Wang, Bovik, Sheikh, Simoncelli 2004, "Image Quality Assessment: From Error Visibility to
# Structural Similarity".
_SSIM_WINDOW_PX = 11
_SIGMA_PX = 1.5
_SSIM_C1 = (0.01 * _WHITE_LEVEL) ** 2
_SSIM_C2 = (0.03 * _WHITE_LEVEL) ** 2

_BLURS_PER_SIDE = 64
_LEAST_DETAIL = 0.1
"""The least detail that sharpness is relative to, in units of L* (0 to 100): flat pictures have no
sharpness to lose."""


def mouth_area(side_px: int) -> FaceArea:
    """Returns where an aligned face has its lips, with some room."""
    top, bottom, left, right = (edge * side_px // 256 for edge in _MOUTH_256THS)
    return slice(top, bottom), slice(left, right)


def generated_area(side_px: int) -> FaceArea:
    """Returns the rectangle around the pixels of an aligned face that are generated; the rest is
    the source's.
    """
    is_generated = (mouth_mask(side_px) < 0.5).astype(np.uint8)
    left, top, width, height = cv2.boundingRect(is_generated)
    return slice(top, top + height), slice(left, left + width)


@dataclass(frozen=True, slots=True)
class FaceFit:
    """How a painted mouth fits the face, over the generated pixels."""

    color: float
    """Distance of the mean a* and b* (CIE 1976 Lab); not of L*, which an open mouth darkens."""
    sharpness: float
    """What a blur over 1/64 of the side removes (its standard deviation), relative to the
    source's.
    """


def face_fit(source: UInt8Array, painted: UInt8Array) -> FaceFit:
    """Compares aligned faces, both uint8 `(H, H, 3)` RGB."""
    generated = mouth_mask(len(source)) < 0.5
    source_lab = _lab_of(source)
    painted_lab = _lab_of(painted)
    shift = _mean_color(painted_lab, generated) - _mean_color(source_lab, generated)
    source_detail = max(_detail(source_lab, generated), _LEAST_DETAIL)
    sharpness = _detail(painted_lab, generated) / source_detail
    return FaceFit(float(np.linalg.norm(shift[1:])), sharpness)


def _lab_of(picture: UInt8Array) -> Float32Array:
    scaled = picture.astype(np.float32) / np.float32(_WHITE_LEVEL)
    return np.asarray(cv2.cvtColor(scaled, cv2.COLOR_RGB2LAB), np.float32)


def _mean_color(lab: Float32Array, generated: BoolArray) -> Float64Array:
    return lab[generated].mean(axis=0, dtype=np.float64)


def _detail(lab: Float32Array, generated: BoolArray) -> float:
    light = lab[..., 0]
    blurred = cv2.GaussianBlur(light, (0, 0), len(light) / _BLURS_PER_SIDE)
    return float((light - blurred)[generated].std())


@dataclass(frozen=True, slots=True)
class FrameLikeness:
    """How similar two pictures are."""

    mean_square: float
    """The mean square of the differences of levels, in [0, 255²]."""
    ssim: float


@dataclass(frozen=True, slots=True)
class Likeness:
    """How similar two clips are."""

    psnr_db: float | None
    """Over all pixels together; None if they are equal."""
    ssim: float
    """The mean over the frames, at most 1."""
    frames: int

    def __str__(self) -> str:
        psnr = "equal" if self.psnr_db is None else f"{self.psnr_db:.1f} dB"
        return f"{psnr}, SSIM {self.ssim:.4f}"


def frame_likeness(a: UInt8Array, b: UInt8Array) -> FrameLikeness:
    """Compares two pictures `(H, W, 3)`, H and W at least 11."""
    mean_square = cv2.norm(a, b, cv2.NORM_L2SQR) / a.size
    return FrameLikeness(mean_square, ssim(a, b))


def clip_likeness(frames: Sequence[FrameLikeness]) -> Likeness:
    """Returns the likeness of two clips from that of their frames; raises `InputError` without
    any.
    """
    if not frames:
        raise InputError(
            "no frame shows a face: nothing to compare; give another clip", usage=False
        )
    mean_square = fmean(frame.mean_square for frame in frames)
    mean_ssim = fmean(frame.ssim for frame in frames)
    return Likeness(decibels(mean_square), mean_ssim, len(frames))


def ssim(a: UInt8Array, b: UInt8Array) -> float:
    """Returns the structural similarity of the luma of two pictures `(H, W, 3)`, H and W at least
    11; at most 1.

    It is the mean over all Gaussian windows of 11 pixels that lie wholly inside the picture.
    """
    x = a @ _LUMA
    y = b @ _LUMA
    mean_x = _window_means(x)
    mean_y = _window_means(y)
    variance_x = _window_means(x * x) - mean_x**2
    variance_y = _window_means(y * y) - mean_y**2
    covariance = _window_means(x * y) - mean_x * mean_y
    similar = (2 * mean_x * mean_y + _SSIM_C1) * (2 * covariance + _SSIM_C2)
    largest = (mean_x**2 + mean_y**2 + _SSIM_C1) * (variance_x + variance_y + _SSIM_C2)
    return float((similar / largest).mean())


def decibels(mean_square: float) -> float | None:
    """Returns the PSNR of a mean square difference of levels in [0, 255]; None without one."""
    if mean_square:
        return 10 * log10(_WHITE_LEVEL**2 / mean_square)
    return None


def _window_means(values: Float64Array) -> Float64Array:
    """Returns the Gaussian mean of each window that lies inside `values (H, W)`:
    `(H − 10, W − 10)`.
    """
    reach = _SSIM_WINDOW_PX // 2
    blurred = cv2.GaussianBlur(values, (_SSIM_WINDOW_PX, _SSIM_WINDOW_PX), _SIGMA_PX)
    return np.asarray(blurred[reach:-reach, reach:-reach], np.float64)
