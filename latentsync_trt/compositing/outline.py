"""Outlines of faces: where a painted face replaces the source's, and outlines as pictures. Pure."""

from collections.abc import Sequence

import cv2
import numpy as np

from latentsync_trt.face.geometry import as_complex
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

FEATHER_PERCENT = 1.25
"""Part of the pasted square's side over which a painted face fades out: that hides the seam, and
still covers the source's lips.
"""

OVAL = np.array(
    [
        *(10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377),
        *(152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109),
    ]
)
"""FaceMesh's points on the outline of the face, clockwise from the forehead."""

LIPS = np.array(
    [
        *(61, 185, 40, 39, 37, 0, 267, 269, 270, 409),
        *(291, 375, 321, 405, 314, 17, 84, 181, 91, 146),
    ]
)
"""FaceMesh's points on the outer edge of the lips, clockwise from the left corner in the image."""

_JAW_DIRECTION = 0.6
_CHIN_DIRECTION = 0.85
"""Vertical components of directions, as seen from the center of a face: from the first to the
second, jaws become chins.
"""
_HIDDEN_GAP = 0.25
_FULL_GAP = 0.6
"""Distances between two chins, as parts of the reach. Up to the first, the patch's soft edge hides
the lower chin; from the second on, all of the reach is needed: less would leave a line of the lower
chin.
"""
_LEAST_SQUARED_LENGTH = 1e-12
"""Keeps the division by the length of an edge finite, where two corners are equal."""
_SUBPIXEL_BITS = 4


def cover_chin(source: Float32Array, painted: Float32Array, reach_px: float) -> Float32Array:
    """Returns the outline `source (n, 2)`, extended below its chin where the `painted` chin is
    clearly higher.

    What is pasted fades out before the edge of the outlines' union, so the source's chin would
    remain as a second one. It is extended over the neck by at most `reach_px`, not over what is
    beside the face.
    """
    points = as_complex(source)
    directions = points - as_complex(painted).mean()
    directions /= np.maximum(np.abs(directions), 1e-6)
    chin_share = (directions.imag - _JAW_DIRECTION) / (_CHIN_DIRECTION - _JAW_DIRECTION)
    chin_share = np.clip(chin_share, 0, 1)
    (indices,) = chin_share.nonzero()
    if not indices.size:
        return source
    chin = slice(indices[0], indices[-1] + 1)
    gaps = _outside_px(source[chin], painted) / reach_px
    needed = np.clip((gaps - _HIDDEN_GAP) / (_FULL_GAP - _HIDDEN_GAP), 0, 1)
    distances_px = chin_share[chin] * reach_px * needed
    points[chin] += directions[chin] * distances_px
    return points.view(np.float64).astype(np.float32).reshape(source.shape)


def _outside_px(points: Float32Array, outline: Float32Array) -> Float64Array:
    """Returns the distance of each of `points (k, 2)` from the closed `outline (n, 2)`, negative
    inside; float64 `(k,)`.
    """
    corners = as_complex(np.concatenate([outline, outline[:1]]))
    edges = corners[1:] - corners[:-1]
    conjugate_edges = edges.conj()
    squared_lengths = np.maximum((edges * conjugate_edges).real, _LEAST_SQUARED_LENGTH)
    from_corners = as_complex(points)[:, None] - corners
    from_starts = from_corners[:, :-1]
    products = from_starts * conjugate_edges  # dot product + i · cross product
    along_edge = np.clip(products.real / squared_lengths, 0, 1)
    distances = np.abs(from_starts - along_edge * edges).min(axis=1)

    # A horizontal line through a point that is inside crosses an odd number of edges on one side.
    is_above = from_corners.imag > 0
    is_crossed = is_above[:, 1:] != is_above[:, :-1]
    is_crossed &= (products.imag > 0) == (edges.imag > 0)
    is_inside = np.logical_xor.reduce(is_crossed, axis=1)
    return np.where(is_inside, -distances, distances)


def drawn(outlines: Sequence[Float32Array], size_px: tuple[int, int]) -> UInt8Array:
    """Returns the union of outlines `(n, 2)` (x, y) as a picture of `size_px` (width, height): 255
    inside, 0 outside, with soft edges.
    """
    union = np.zeros(size_px[::-1], np.uint8)
    for outline in outlines:
        points = np.rint(outline * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        cv2.fillPoly(union, [points], 255, cv2.LINE_AA, _SUBPIXEL_BITS)
    return union
