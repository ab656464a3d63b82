"""Bands of detail in a picture: a Laplacian pyramid. Pure."""

from collections.abc import Sequence

import cv2
import numpy as np

from latentsync_trt.types import Float32Array

BANDS = 5
"""The finest band holds detail of less than a pixel, the next one of about one, each other one of
twice the size: a blur takes most of the finest, and one gain for both would not fit.
"""

_HALO_PX = 5
"""An edge spreads over about as many pixels in a blurred picture that detail is given back to."""
_HALO_KERNEL = np.ones((_HALO_PX, _HALO_PX), np.uint8)
_OVERSHOOT = 3.4
"""How many levels a pixel may leave the range of those around it: more shows as a halo, and the
texture of skin needs less.
"""


def split_bands(image: Float32Array) -> list[Float32Array]:
    """Returns the bands of `image (h, w)` or `(h, w, channels)`, the finest first; the third and
    each after it have half the size of the one before.
    """
    smooth = np.asarray(cv2.GaussianBlur(image, (3, 3), 0.85), np.float32)
    bands = [image - smooth]
    image = smooth
    for _ in range(BANDS - 1):
        coarser = np.asarray(cv2.pyrDown(image), np.float32)
        bands.append(image - _enlarged(coarser, image))
        image = coarser
    return bands


def amplify_bands(luma: Float32Array, gains: Sequence[float]) -> None:
    """Multiplies the bands of `luma (h, w)` by their gains, and limits halos at edges."""
    lowest = np.empty_like(luma)
    highest = np.empty_like(luma)
    cv2.erode(luma, _HALO_KERNEL, dst=lowest)
    cv2.dilate(luma, _HALO_KERNEL, dst=highest)
    bands = split_bands(luma)
    added = bands[-1] * (gains[-1] - 1)
    for band, gain in zip(bands[-2:0:-1], gains[-2:0:-1], strict=True):
        added = _enlarged(added, band) + band * (gain - 1)
    luma += added + bands[0] * (gains[0] - 1)
    np.clip(luma, lowest - _OVERSHOOT, highest + _OVERSHOOT, out=luma)


def _enlarged(image: Float32Array, target: Float32Array) -> Float32Array:
    """Returns a picture of half the size of `target` at that size."""
    return np.asarray(cv2.pyrUp(image, dstsize=target.shape[1::-1]), np.float32)
