"""The fixed mouth mask that the networks were trained with, for any resolution.

In the network's pose the generated region has a straight upper edge below the eyes with a notch for
the nose bridge, almost vertical sides along the cheeks, and an arc under the chin.
"""

from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.types import Float32Array

LATENT_SCALE = 8
"""Face pixels per latent pixel."""

# Both sides of the region in the 256 × 256 picture of the public release, pixel for pixel: rows, and of
# each the first generated column and the first kept one beyond. On straight lines in between, rounded.
_DRAWN_PX = 256
_LEFT = (
    (95, 129, 170, 179, 189, 196, 207, 214, 217, 219, 222, 232, 235, 237, 238, 241, 242),
    (9, 9, 12, 17, 23, 29, 39, 48, 52, 56, 60, 80, 87, 93, 95, 108, 131),
)
_RIGHT = (
    (95, 127, 128, 169, 178, 196, 205, 213, 222, 228, 231, 234, 239, 242),
    (247, 247, 248, 245, 240, 228, 220, 212, 200, 190, 184, 176, 165, 153),
)
_NOSE_ROWS, _NOSE_COLUMNS = slice(95, 128), slice(78, 178)


@lru_cache(maxsize=8)
def mouth_mask(resolution: int) -> Float32Array:
    """The mask of an aligned face, H = W = `resolution`: float32 `(H, W)`, 1 = kept, 0 = generated; read-only.

    Resized as in training, by Lanczos' filter in 8 bits: near the outline, values are in between at other sizes than
    256 px.
    """
    rows, columns = np.arange(_DRAWN_PX)[:, None], np.arange(_DRAWN_PX)
    left, right = (np.rint(np.interp(rows, at, edge)) for at, edge in (_LEFT, _RIGHT))
    inside = (rows >= _LEFT[0][0]) & (rows <= _LEFT[0][-1]) & (columns >= left) & (columns < right)
    drawn = np.where(inside, 0, 255).astype(np.uint8)
    drawn[_NOSE_ROWS, _NOSE_COLUMNS] = 255
    resized = cv2.resize(drawn, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)
    mask = np.asarray(resized / 255, np.float32)
    mask.flags.writeable = False
    return mask


def latent_mask(resolution: int) -> Float32Array:
    """`mouth_mask` on the latent grid: float32 `(h, w)` in [0, 1], the top-left pixel of each 8×8 block.

    This is nearest-neighbor resizing, as in training.
    """
    return np.ascontiguousarray(mouth_mask(resolution)[::LATENT_SCALE, ::LATENT_SCALE])
