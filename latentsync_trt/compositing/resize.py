"""Painted faces at the size that they have in the frame. Pure."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.face.align import inverse, rescaled, steps
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.types import AlignedFace, Float32Array, Float64Array, UInt16Array

_RESIZE_GRAPH = Path(__file__).resolve().parents[1] / "assets" / "graphs" / "resize.onnx"


@dataclass(frozen=True, slots=True, eq=False)
class FittedFace:
    """A painted face at about the size that it has in its frame."""

    aligned: AlignedFace
    """The face before it was painted."""
    painted: UInt16Array
    """The whole face `(r, r, 3)` RGB, 257 × the 8-bit level, perhaps larger than the network's."""
    levels: Float32Array
    """The same, `(h, w, 3)`, in levels from 0 to 255; values may overshoot."""
    matrix: Float64Array
    """Frame pixels → pixels of `levels`, `(2, 3)`."""


def fit_face(face: AlignedFace, painted: UInt16Array) -> FittedFace:
    """Returns what was painted in the place of a face, r × r, with r at least the network's R."""
    # The crop is as enlarged as what was painted; less where it would be larger than in the frame,
    # as warping would skip pixels.
    enlargement = len(painted) / len(face.image)
    crop_width, crop_height = face.crop_size_px
    frame_px_per_column, frame_px_per_row = steps(inverse(face.matrix))
    x_scale = min(enlargement, frame_px_per_column)
    y_scale = min(enlargement, frame_px_per_row)
    width = max(1, round(crop_width * x_scale))
    height = max(1, round(crop_height * y_scale))
    levels = resize_antialiased(painted * np.float32(1 / 257), (width, height))
    return FittedFace(face, painted, levels, rescaled(face, (width, height)))


def resize_antialiased(image: Float32Array, size_px: tuple[int, int]) -> Float32Array:
    """Returns `image`, float32 `(H, W, C)`, at another width and height; values may overshoot.

    Bicubic (a = −0.5) with antialiasing, as PyTorch's `interpolate(antialias=True)`, by a small
    graph, in half the time of other libraries' filters. Thread-safe.
    """
    size = np.array(size_px[::-1], np.int64)
    (resized,) = _resizer().run({"image": image[None], "size": size})
    return resized[0]


def warped(image: Float32Array, matrix: Float64Array, size_px: tuple[int, int]) -> Float32Array:
    """Returns samples of `image` at a rectangle of `size_px` (width, height), 0 outside the image;
    `matrix`: pixels of the rectangle → image pixels.
    """
    width, height = size_px
    samples = np.empty((height, width, *image.shape[2:]), np.float32)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    cv2.warpAffine(image, matrix, size_px, samples, flags)
    return samples


@cache
def _resizer() -> Session:
    return Session(_RESIZE_GRAPH, SessionSettings(intra_op_threads=1))
