"""The outline of a face from its mesh, and what a painted face must cover. Pure."""

from collections.abc import Sequence

import cv2
import numpy as np

from latentsync_trt.types import Float32Array, UInt8Array

OVAL = np.array(
    [
        *(10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377),
        *(152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109),
    ]
)
"""FaceMesh's points on the outline of the face, clockwise from the forehead."""

LIPS = np.array([*(61, 185, 40, 39, 37, 0, 267, 269, 270, 409), *(291, 375, 321, 405, 314, 17, 84, 181, 91, 146)])
"""FaceMesh's points on the outer edge of the lips, clockwise from the left corner in the image."""

_SIDE, _BELOW = 0.6, 0.85
"""Vertical components of directions, as seen from the center: from the one to the other, jaws become chins."""

_FROM, _TO = 0.25, 0.6
"""Distances between the chins, as parts of the reach: below the one the patch's soft edge hides the lower chin; above
the other all of the reach is needed. Less would leave a part of the lower chin, as a line."""

_SUBPIXEL_BITS = 4


def covering(source: Float32Array, painted: Float32Array, reach_px: float) -> tuple[Float32Array, Float32Array]:
    """Both outlines `(n, 2)`, the source's extended below its chin where the painted chin is clearly higher.

    What is pasted fades out before the edge of the outlines' union, so the source's chin would remain as a second one.
    It is extended over the neck by at most `reach_px`, not over what is beside the face.
    """
    away = source - painted.mean(axis=0)
    away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-6)
    below = np.clip((away[:, 1] - _SIDE) / (_BELOW - _SIDE), 0, 1)
    chin = np.flatnonzero(below)
    outside = np.array([-cv2.pointPolygonTest(painted, point, True) for point in source[chin].tolist()])
    extension = below[chin] * reach_px * np.clip((outside / reach_px - _FROM) / (_TO - _FROM), 0, 1)
    extended = source.copy()
    extended[chin] = source[chin] + away[chin] * extension[:, None]
    return extended, painted


def filled(outlines: Sequence[Float32Array], size: tuple[int, int]) -> Float32Array:
    """The union of outlines `(n, 2)` (x, y) as a picture of `size` (width, height): float32 in [0, 1]."""
    return drawn(outlines, size).astype(np.float32) / np.float32(255)


def drawn(outlines: Sequence[Float32Array], size: tuple[int, int]) -> UInt8Array:
    """`filled`, as uint8 from 0 to 255."""
    union = np.zeros(size[::-1], np.uint8)
    for outline in outlines:
        points = np.rint(outline * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        cv2.fillPoly(union, [points], 255, cv2.LINE_AA, _SUBPIXEL_BITS)
    return union
