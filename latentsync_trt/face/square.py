"""Pictures with non-square pixels, shown to the detector with square ones. Pure."""

from fractions import Fraction
from typing import Any

import cv2
import numpy as np

from latentsync_trt.types import Float64Array, Picture, UInt8Array

_SAMPLE_MARGIN_PX = 2
"""A bilinear sample needs one more pixel on each side; the second covers rounding."""


class SquarePixels:
    """A `types.Picture` stretched horizontally so that its pixels are square; converts only the parts that are read.

    Args:
        stored: a picture whose pixels are `aspect` times as wide as high.
    """

    def __init__(self, stored: Picture, aspect: Fraction) -> None:
        self._stored = stored
        height, width = stored.shape[:2]
        self._shape = height, max(1, round(width * aspect)), 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and 3."""
        return self._shape

    @property
    def from_stored(self) -> Float64Array:
        """`(2, 3)`: stored pixels → square pixels."""
        scale = self._shape[1] / self._stored.shape[1]
        # Pixel centers lie half a pixel from the edge in both pictures.
        return np.array([[scale, 0.0, (scale - 1) / 2], [0.0, 1.0, 0.0]])

    def __getitem__(self, place: tuple[slice, slice]) -> UInt8Array:
        """A part, given by two slices without steps."""
        (top, bottom), (left, right) = (
            span.indices(size)[:2] for span, size in zip(place, self._shape[:2], strict=True)
        )
        if top >= bottom or left >= right:
            return np.zeros((max(bottom - top, 0), max(right - left, 0), 3), np.uint8)
        scale, offset = self.from_stored[0, 0], self.from_stored[0, 2]
        first = max(0, int((left - offset) / scale) - _SAMPLE_MARGIN_PX)
        end = int((right - offset) / scale) + _SAMPLE_MARGIN_PX + 1
        part = self._stored[top:bottom, first:end]
        matrix = np.array([[scale, 0.0, scale * first + offset - left], [0.0, 1.0, 0.0]])
        size = (right - left, bottom - top)
        stretched = cv2.warpAffine(part, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        return np.asarray(stretched, np.uint8)

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> UInt8Array:
        """The whole picture."""
        return np.array(self[:, :], dtype, copy=copy)


def of_stored(matrix: Float64Array, from_stored: Float64Array) -> Float64Array:
    """The `(2, 3)` matrix of stored pixels for the `matrix (2, 3)` of square ones."""
    linear = matrix[:, :2] @ from_stored[:, :2]
    return np.column_stack([linear, matrix[:, :2] @ from_stored[:, 2] + matrix[:, 2]])
