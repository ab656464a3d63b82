"""Outlines of faces: where the painted face replaces the source's, and as pictures. Pure."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

FEATHER_PERCENT = 1.25
"""Part of the pasted square's side over which a painted face fades out: the seam is hidden, and the
source's lips are.
"""

OVAL = np.array(
    [
        *(10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377),
        *(152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109),
    ]
)
"""FaceMesh's points on the outline of the face, clockwise from the forehead."""

_SIDE = 0.6
_BELOW = 0.85
"""Vertical components of directions, as seen from the center: from the one to the other, jaws
become chins.
"""
_FROM = 0.25
_TO = 0.6
"""Distances between the chins, as parts of the reach: below the one the patch's soft edge hides the
lower chin; above the other all of the reach is needed. Less would leave a part of the lower chin,
as a line.
"""
_LEAST_LENGTH = 1e-12
"""Squared, of an edge; equal corners have none."""
_SUBPIXEL_BITS = 4


def covering(
    source: Float32Array, painted: Float32Array, reach_px: float
) -> tuple[Float32Array, Float32Array]:
    """Both outlines `(n, 2)`, the source's extended below its chin where the painted chin is
    clearly higher.

    What is pasted fades out before the edge of the outlines' union, so the source's chin would
    remain as a second one. It is extended over the neck by at most `reach_px`, not over what is
    beside the face.
    """
    points = _as_complex(source)
    outline = _as_complex(painted)
    away = points - outline.mean()
    away /= np.maximum(np.abs(away), 1e-6)
    below = np.clip((away.imag - _SIDE) / (_BELOW - _SIDE), 0, 1)
    (places,) = below.nonzero()
    if not places.size:
        return source, painted
    chin = slice(places[0], places[-1] + 1)
    parts = outside_px(source[chin], painted) / reach_px
    points[chin] += away[chin] * (
        below[chin] * reach_px * np.clip((parts - _FROM) / (_TO - _FROM), 0, 1)
    )
    return points.view(np.float64).astype(np.float32).reshape(source.shape), painted


def _as_complex(points: Float32Array) -> NDArray[np.complex128]:
    """A copy of points `(n, 2)` as x + iy."""
    return points.astype(np.float64, "C").view(np.complex128)[:, 0]


def outside_px(points: Float32Array, outline: Float32Array) -> Float64Array:
    """Distance of each of `points (k, 2)` from the closed `outline (n, 2)`, negative inside;
    float64 `(k,)`.
    """
    closed = _as_complex(np.concatenate([outline, outline[:1]]))
    edges = closed[1:] - closed[:-1]
    back = edges.conj()
    apart = _as_complex(points)[:, None] - closed
    is_above = apart.imag > 0
    apart = apart[:, :-1]
    turned = apart * back  # dot product + i · cross product
    along = np.clip(turned.real / np.maximum((edges * back).real, _LEAST_LENGTH), 0, 1)
    # Of a horizontal line through the point: the edges that cross it on one side.
    crossed = (is_above[:, 1:] != is_above[:, :-1]) & ((turned.imag > 0) == (edges.imag > 0))
    distance = np.abs(apart - along * edges).min(axis=1)
    return np.where(np.logical_xor.reduce(crossed, axis=1), -distance, distance)


def filled(outlines: Sequence[Float32Array], size: tuple[int, int]) -> Float32Array:
    """The union of outlines `(n, 2)` (x, y) as a picture of `size` (width, height): float32 in [0,
    1].
    """
    union = np.zeros(size[::-1], np.uint8)
    draw(outlines, union)
    return np.multiply(union, np.float32(1 / 255), dtype=np.float32)


def draw(outlines: Sequence[Float32Array], union: UInt8Array) -> None:
    for outline in outlines:
        points = np.rint(outline * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        cv2.fillPoly(union, [points], 255, cv2.LINE_AA, _SUBPIXEL_BITS)
