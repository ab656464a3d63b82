"""Pictures with non-square pixels, shown to the detector with square ones. Pure."""

from fractions import Fraction
from typing import Any

import cv2
import numpy as np

from latentsync_trt.types import Face, Float32Array, Float64Array, Picture, UInt8Array

_SAMPLE_MARGIN_PX = 2
"""A bilinear sample needs one more pixel on each side; the second covers rounding."""


def square(picture: Picture, aspect: Fraction) -> Picture:
    """A picture whose pixels are `aspect` times as wide as high, stretched horizontally to square ones."""
    return picture if aspect == 1 else SquarePixels(picture, aspect)


def of_stored(matrix: Float64Array, stored: Picture, shown: Picture) -> Float64Array:
    """The `(2, 3)` matrix of pixels in `stored` for the `matrix (2, 3)` of those in `shown`, made by `square`."""
    scale, offset_px = _stretch(stored, shown)
    return np.column_stack([matrix[:, 0] * scale, matrix[:, 1], matrix[:, 0] * offset_px + matrix[:, 2]])


def face_of_stored(face: Face, stored: Picture, shown: Picture) -> Face:
    """The `face` found in `shown`, made by `square`, in pixels of `stored`."""
    if stored.shape[1] == shown.shape[1]:
        return face
    scale, offset_px = _stretch(stored, shown)

    def moved(points: Float32Array) -> Float32Array:
        return np.asarray((points - (offset_px, 0)) / (scale, 1), np.float32)

    landmarks = None if face.landmarks is None else moved(face.landmarks)
    return Face(moved(face.box.reshape(2, 2)).reshape(4), moved(face.points), face.score, landmarks)


class SquarePixels:
    """What `square` returns: a `types.Picture` that converts only the parts that are read."""

    def __init__(self, stored: Picture, aspect: Fraction) -> None:
        height, width = stored.shape[:2]
        self._stored, self._shape = stored, (height, max(1, round(width * aspect)), 3)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3."""
        return self._shape

    def __getitem__(self, place: tuple[slice, slice]) -> UInt8Array:
        """A part, given by two slices without steps."""
        (top, bottom), (left, right) = (
            span.indices(size)[:2] for span, size in zip(place, self._shape[:2], strict=True)
        )
        size = max(right - left, 0), max(bottom - top, 0)
        if 0 in size:
            return np.zeros((*size[::-1], 3), np.uint8)
        scale, offset_px = _stretch(self._stored, self)
        first = max(0, int((left - offset_px) / scale) - _SAMPLE_MARGIN_PX)
        end = int((right - offset_px) / scale) + _SAMPLE_MARGIN_PX + 1
        matrix = np.array([[scale, 0.0, scale * first + offset_px - left], [0.0, 1.0, 0.0]])
        part = self._stored[top:bottom, first:end]
        stretched = cv2.warpAffine(part, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(stretched, np.uint8)

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        """The whole picture."""
        return np.array(self[:, :], dtype, copy=copy)


def _stretch(stored: Picture, shown: Picture) -> tuple[float, float]:
    """Factor and offset in pixels from columns of `stored` to those of `shown`."""
    scale = shown.shape[1] / stored.shape[1]
    # Pixel centers lie half a pixel from the edge in both pictures.
    return scale, (scale - 1) / 2
