"""The fixed mouth mask, computed from geometry for any resolution.

In the network's pose the generated region has a straight upper edge below the eyes with a notch for
the nose bridge, almost vertical sides along the cheeks, and an arc under the chin.
"""

from functools import lru_cache

import numpy as np

from latentsync_trt.types import Float32Array, Float64Array

LATENT_SCALE = 8
"""Face pixels per latent pixel."""

# Coordinates in 1/256 of the face, (x, y) from the top-left corner of the image.
_UNIT = 256.0
_TOP, _CHIN = 95.0, 243.0
_NOSE_LEFT, _NOSE_RIGHT, _NOSE_BOTTOM = 78.0, 178.0, 128.0
# Each side: a polyline down the cheek, then a cubic Bézier arc from its last point to the chin.
_LEFT_CHEEK = ((9.0, _TOP), (9.0, 130.5), (12.0, 169.0))
_LEFT_JAW = ((27.0, 209.5), (81.0, _CHIN), (128.0, _CHIN))
_RIGHT_CHEEK = ((247.5, _TOP), (247.5, 134.5), (245.0, 168.5))
_RIGHT_JAW = ((214.0, 238.0), (143.0, _CHIN), (152.0, _CHIN))
_ARC_SEGMENTS = 64

_ROWS_PER_PIXEL = 8
"""Sub-rows averaged for a row of pixels; horizontally the coverage is exact."""


@lru_cache(maxsize=8)
def mouth_mask(resolution: int) -> Float32Array:
    """The mask of an aligned face, H = W = `resolution`: float32 `(H, W)`, 1 = kept, 0 = generated; read-only.

    Pixels on the outline have values in between: the kept fraction of their area.
    """
    y = (np.arange(resolution * _ROWS_PER_PIXEL) + 0.5) * _UNIT / (resolution * _ROWS_PER_PIXEL)
    left = _edge(_LEFT_CHEEK, _LEFT_JAW, y)
    right = _edge(_RIGHT_CHEEK, _RIGHT_JAW, y)
    inside = (y >= _TOP) & (y < _CHIN)
    beside_nose = inside & (y < _NOSE_BOTTOM)
    generated = _coverage(left, np.where(inside, right, left), resolution)
    generated -= _coverage(np.full_like(y, _NOSE_LEFT), np.where(beside_nose, _NOSE_RIGHT, _NOSE_LEFT), resolution)
    mask = (1.0 - generated.reshape(resolution, _ROWS_PER_PIXEL, resolution).mean(axis=1)).astype(np.float32)
    mask.flags.writeable = False
    return mask


def latent_mask(resolution: int) -> Float32Array:
    """`mouth_mask` on the latent grid: float32 `(h, w)`, 0 or 1, from the top-left pixel of each 8×8 block.

    This is nearest-neighbor resizing, as in training; values on the outline are rounded.
    """
    nearest = mouth_mask(resolution)[::LATENT_SCALE, ::LATENT_SCALE]
    return np.asarray(nearest >= 0.5, np.float32)


def _edge(
    cheek: tuple[tuple[float, float], ...], jaw: tuple[tuple[float, float], ...], y: Float64Array
) -> Float64Array:
    """x of one side of the outline at each `y`."""
    start, control_1, control_2, end = np.array((cheek[-1], *jaw))
    t = np.linspace(0.0, 1.0, _ARC_SEGMENTS + 1)[:, None]
    arc = (1 - t) ** 3 * start + 3 * t * (1 - t) ** 2 * control_1 + 3 * t**2 * (1 - t) * control_2 + t**3 * end
    outline = np.concatenate([np.array(cheek[:-1]), arc])
    return np.asarray(np.interp(y, outline[:, 1], outline[:, 0]), np.float64)


def _coverage(left: Float64Array, right: Float64Array, resolution: int) -> Float64Array:
    """Fraction of each pixel of each row that lies between `left` and `right` (n,): `(n, resolution)` in [0, 1]."""
    scale = resolution / _UNIT
    pixel = np.arange(resolution)
    return np.clip(np.minimum(pixel + 1.0, scale * right[:, None]) - np.maximum(pixel, scale * left[:, None]), 0.0, 1.0)
