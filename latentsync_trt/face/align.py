"""Brings a face to the pose the network knows, and its pixels back to the crop's size. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.errors import InputError
from latentsync_trt.types import AlignedFace, Float32Array, Float64Array, Picture

# The pose: left brow, right brow and nose in a 75×100 face, which is enlarged by 2.8 · resolution / 256.
_TEMPLATE = np.array([[17.0, 20.0], [58.0, 20.0], [37.5, 40.0]])
_TEMPLATE_SIZE = (75, 100)
_ENLARGE_NUMERATOR, _ENLARGE_DENOMINATOR = 28, 10 * 256

_NEW_BIAS_SHARE = 0.8
"""Weight of the present frame in the running mean of the nose residual."""

OUTSIDE = 127
"""Level of crop pixels that lie outside the frame."""

# A bilinear sample needs one more pixel on each side; another covers rounding.
_SAMPLE_MARGIN_PX = 2

_BICUBIC_A = -0.5
_BICUBIC_RADIUS = 2


@dataclass(frozen=True, slots=True, eq=False)
class AlignState:
    """What alignment remembers of a track: `bias (2,)` float64, the smoothed nose residual in normalized units."""

    bias: Float64Array


def crop_size_px(resolution: int) -> tuple[int, int]:
    """Width and height of the upright crop that is resized to `resolution` squared."""
    width, height = (side * _ENLARGE_NUMERATOR * resolution // _ENLARGE_DENOMINATOR for side in _TEMPLATE_SIZE)
    return width, height


def align(
    points: Float32Array, state: AlignState | None, resolution: int, *, whole_pixels: bool = True
) -> tuple[Float64Array, AlignState]:
    """The similarity that takes a face to the network's pose.

    Orthogonal Procrustes: with both point sets centerd and divided by their standard deviation, the rotation is U·Vᵀ of
    the SVD of their covariance. The nose residual (template minus face, both normalized, before rotation) is averaged
    over the track and added to the translation unscaled, as the networks' training data had it.

    Args:
        points: `(3, 2)` float32: left brow, right brow, nose, in frame pixels.
        state: what the last frame of the same track returned; None at its start.
        resolution: the network's H = W in pixels.
        whole_pixels: round the points first, as the training data had them.

    Returns:
        `(2, 3)` float64, frame pixels → crop pixels, and the state for the next frame.

    Raises:
        InputError: the points coincide or are not finite.
    """
    rounded = np.rint(points) if whole_pixels else points
    face, face_center, face_spread = _normalized(np.asarray(rounded, np.float64))
    pose, pose_center, pose_spread = _normalized(_TEMPLATE * (_ENLARGE_NUMERATOR * resolution / _ENLARGE_DENOMINATOR))
    residual = pose[2] - face[2]
    bias = residual if state is None else (1 - _NEW_BIAS_SHARE) * state.bias + _NEW_BIAS_SHARE * residual
    linear = _rotation(face, pose) * (pose_spread / face_spread)
    translation = pose_center - linear @ face_center + bias
    return np.column_stack([linear, translation]), AlignState(bias)


def crop(frame: Picture, matrix: Float64Array, resolution: int) -> AlignedFace:
    """Cuts the face out of a frame, touching only the rectangle it lies in.

    Args:
        frame: uint8 `(H, W, 3)` RGB.
        matrix: `(2, 3)` float64 from `align`.
        resolution: the network's H = W in pixels.
    """
    size = crop_size_px(resolution)
    left, top, right, bottom = frame_rectangle(matrix, size, frame.shape[:2], _SAMPLE_MARGIN_PX)
    if left >= right or top >= bottom:
        upright = np.full((size[1], size[0], 3), OUTSIDE, np.uint8)
    else:
        upright = cv2.warpAffine(
            frame[top:bottom, left:right],
            shifted(matrix, left, top),
            size,
            flags=cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(OUTSIDE, OUTSIDE, OUTSIDE),
        ).astype(np.uint8, copy=False)
    image = cv2.resize(upright, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)
    return AlignedFace(image.astype(np.uint8, copy=False), matrix, size)


def inverse(matrix: Float64Array) -> Float64Array:
    """The affine `(2, 3)` float64 that undoes `matrix (2, 3)`."""
    linear = np.linalg.inv(matrix[:, :2])
    return np.column_stack([linear, -linear @ matrix[:, 2]])


def shifted(matrix: Float64Array, left_px: int, top_px: int) -> Float64Array:
    """`matrix (2, 3)` for pixels counted from (`left_px`, `top_px`) of the frame instead of its corner."""
    return np.column_stack([matrix[:, :2], matrix[:, :2] @ (left_px, top_px) + matrix[:, 2]])


def frame_corners(matrix: Float64Array, size_px: tuple[int, int]) -> Float64Array:
    """Where the centers of a crop's corner pixels lie in the frame: `(4, 2)` float64 (x, y) in pixels.

    Args:
        matrix: `(2, 3)` frame → crop. size_px: width and height of the crop.
    """
    right, bottom = size_px[0] - 1, size_px[1] - 1
    corners = np.array([(0, 0), (right, 0), (0, bottom), (right, bottom)], np.float64)
    back = inverse(matrix)
    return corners @ back[:, :2].T + back[:, 2]


def frame_rectangle(
    matrix: Float64Array, size_px: tuple[int, int], frame_shape: tuple[int, ...], margin_px: int
) -> tuple[int, int, int, int]:
    """Left, top, right, bottom (exclusive) of a crop's place in the frame, `margin_px` wider, cut at the frame's edges.

    A crop that lies outside the frame gives an empty rectangle.
    """
    corners = frame_corners(matrix, size_px)
    height, width = frame_shape[:2]
    low = np.floor(corners.min(axis=0)) - margin_px
    high = np.ceil(corners.max(axis=0)) + 1 + margin_px
    left, right = np.clip((low[0], high[0]), 0, width).astype(int).tolist()
    top, bottom = np.clip((low[1], high[1]), 0, height).astype(int).tolist()
    return left, top, right, bottom


def resize_antialiased(
    image: Float32Array, size_px: tuple[int, int], part: tuple[slice, slice] | None = None
) -> Float32Array:
    """Bicubic resize (a = −0.5) whose kernel widens when it shrinks, as PyTorch's `interpolate(antialias=True)`.

    Args:
        image: float32 `(H, W, C)`. size_px: width and height of the result.
        part: rows and columns of the result to compute; the others are 0. None = all.

    Returns:
        float32 `(height, width, C)`; values may overshoot the range of the input.
    """
    width, height = size_px
    rows, columns = part or (slice(0, height), slice(0, width))
    tall = _resize_rows(image, height, rows)
    wide = _resize_rows(np.ascontiguousarray(tall.swapaxes(0, 1)), width, columns).swapaxes(0, 1)
    if part is None:
        return np.ascontiguousarray(wide)
    result = np.zeros((height, width, image.shape[2]), np.float32)
    result[rows, columns] = wide
    return result


def _normalized(points: Float64Array) -> tuple[Float64Array, Float64Array, float]:
    """Points centerd and divided by their spread; the center; the spread (all coordinates together, n − 1)."""
    center = points.mean(axis=0)
    spread = float((points - center).std(ddof=1))
    if not (np.isfinite(spread) and spread > 0):
        raise InputError(f"face points {points.tolist()} span no face: they coincide or are not finite")
    return (points - center) / spread, center, spread


def _rotation(source: Float64Array, target: Float64Array) -> Float64Array:
    """The rotation `(2, 2)`, without reflection, that brings `source (n, 2)` closest to `target (n, 2)`."""
    u, _, vt = np.linalg.svd(target.T @ source)
    handedness = np.sign(np.linalg.det(u @ vt))
    rotation: Float64Array = u @ np.diag([1.0, handedness]) @ vt
    return rotation


def _resize_rows(image: Float32Array, rows: int, part: slice) -> Float32Array:
    """Resizes the first axis of `image` to `rows`, of which it computes `part`."""
    indices, weights = _taps(image.shape[0], rows)
    indices, weights = indices[:, part], weights[:, part]
    result = np.zeros((indices.shape[1], *image.shape[1:]), np.float32)
    for index, weight in zip(indices, weights, strict=True):
        result += weight[:, None, None] * image[index]
    return result


@lru_cache(maxsize=16)
def _taps(source: int, target: int) -> tuple[NDArray[np.int64], Float32Array]:
    """Which of `source` samples each of `target` samples mixes, and how much of each: both `(taps, target)`."""
    step = source / target
    stretch = max(step, 1.0)
    center = (np.arange(target) + 0.5) * step
    first = np.floor(center - _BICUBIC_RADIUS * stretch + 0.5).astype(np.int64)
    index = first + np.arange(int(np.ceil(2 * _BICUBIC_RADIUS * stretch)) + 1)[:, None]
    weight = _bicubic((index + 0.5 - center) / stretch)
    weight[(index < 0) | (index >= source)] = 0.0
    weight /= weight.sum(axis=0)
    return np.clip(index, 0, source - 1), weight.astype(np.float32)


def _bicubic(x: Float64Array) -> Float64Array:
    """Keys' cubic convolution kernel."""
    x = np.abs(x)
    near = ((_BICUBIC_A + 2) * x - (_BICUBIC_A + 3)) * x**2 + 1
    far = _BICUBIC_A * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < _BICUBIC_RADIUS, far, 0.0))
