"""Drawing on a white picture with antialiased lines and text: what figures need, and no more."""

import os
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.errors import OutputError
from latentsync_trt.types import UInt8Array

Color = tuple[int, int, int]
Points = NDArray[np.floating] | list[tuple[float, float]]

INK: Color = (34, 38, 46)
FAINT: Color = (112, 120, 132)
RULE: Color = (222, 225, 230)

# Coordinates are passed in 1/16 of a pixel.
_SHIFT = 4

# OpenCV 5 draws these names with an outline font, OpenCV 4 with strokes; both give a scale of 1 about 30 pixels a line.
_REGULAR, _BOLD = cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX
_SCALE_PER_PX = 1 / 30


class Canvas:
    """A picture of `width_px` × `height_px`; colors are RGB, positions (x, y) in pixels, text is ASCII."""

    def __init__(self, width_px: int, height_px: int) -> None:
        self.pixels: UInt8Array = np.full((height_px, width_px, 3), 255, np.uint8)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size_px: float = 20,
        color: Color = INK,
        *,
        bold: bool = False,
        anchor: float = 0.0,
    ) -> float:
        """Writes `text` on the base line `y`; `anchor`: 0 = begins at `x`, 0.5 = is centerd there, 1 = ends there.

        Returns its width in pixels.
        """
        font, scale = (_BOLD if bold else _REGULAR), size_px * _SCALE_PER_PX
        (width, _), _ = cv2.getTextSize(text, font, scale, 1)
        cv2.putText(self.pixels, text, (round(x - anchor * width), round(y)), font, scale, color, 1, cv2.LINE_AA)
        return float(width)

    def line(self, points: Points, color: Color, width_px: int = 1) -> None:
        """A polyline through `points (n, 2)`."""
        cv2.polylines(self.pixels, [_fixed(points)], False, color, width_px, cv2.LINE_AA, _SHIFT)

    def dashed(self, left: float, right: float, y: float, color: Color, dash_px: int = 8) -> None:
        """A level dashed line."""
        for start in np.arange(left, right, 2 * dash_px).tolist():
            self.line([(start, y), (min(start + dash_px, right), y)], color)

    def area(self, points: Points, color: Color) -> None:
        """A filled polygon."""
        cv2.fillPoly(self.pixels, [_fixed(points)], color, cv2.LINE_AA, _SHIFT)

    def box(self, left: float, top: float, right: float, bottom: float, color: Color) -> None:
        """A filled rectangle, whole pixels."""
        self.pixels[round(top) : round(bottom), round(left) : round(right)] = color

    def dot(self, x: float, y: float, radius_px: float, color: Color, *, filled: bool = True) -> None:
        """A disc, or a ring two pixels wide."""
        center, radius = (round(x * 2**_SHIFT), round(y * 2**_SHIFT)), round(radius_px * 2**_SHIFT)
        cv2.circle(self.pixels, center, radius, color, -1 if filled else 2, cv2.LINE_AA, _SHIFT)

    def paste(self, left_px: int, top_px: int, image: UInt8Array) -> None:
        """Puts a picture `(h, w, 3)` there."""
        self.pixels[top_px : top_px + image.shape[0], left_px : left_px + image.shape[1]] = image

    def save(self, path: Path) -> None:
        """Writes a PNG, complete or not at all; raises `OutputError` if that cannot be."""
        _, png = cv2.imencode(".png", cv2.cvtColor(self.pixels, cv2.COLOR_RGB2BGR))
        staged = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            staged.write_bytes(png.tobytes())
            staged.replace(path)
        except OSError as error:
            staged.unlink(missing_ok=True)
            raise OutputError(f"{path}: cannot be written ({error.strerror})") from error


def _fixed(points: Points) -> NDArray[np.int32]:
    return np.rint(np.asarray(points, np.float64) * 2**_SHIFT).astype(np.int32)
