"""How much the edge of a patch shows. Pure."""

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.types import Float32Array, Patch, Picture

_SIDE_PX = 96
"""Side of a square with the area of the patch, after it was resized for the measure."""

_REACH_PX = 2
"""How far from the edge levels are compared: 2 % of the side of what is pasted."""
_AROUND_PX = 2 * _REACH_PX + 1

_LEAST_GRADIENT = 1.0
"""One 8-bit level: smaller steps are not seen, in plain surfaces neither."""


def seam_score(frame: Picture, patch: Patch) -> float:
    """The step in brightness and color that `patch` adds at its edge, relative to the source's own there.

    0 = none; around 1 = as large as the source's own changes over the same distance, which hide it. 0 for a patch
    without an edge in the frame.

    Args:
        frame: uint8 `(H, W, 3)` RGB, the frame to which `patch` belongs.
    """
    height, width = patch.weight.shape
    area = np.count_nonzero(patch.weight >= 0.5)
    if area == 0:
        return 0.0
    scale = min(1.0, _SIDE_PX / area**0.5)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    source = _shrunk(frame[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width], size).astype(np.float32)
    inside = (_shrunk(patch.weight, size) >= 0.5).astype(np.float32)
    y, x = np.nonzero(inside - cv2.erode(inside, np.ones((_AROUND_PX, _AROUND_PX), np.uint8)))  # the rim
    if not y.size:
        return 0.0
    added = _shrunk(patch.rgb, size).astype(np.float32)
    added /= 257
    added -= source
    added *= inside[..., None]
    step = _mean_around(added)[y, x] / np.maximum(_mean_around(inside)[y, x], 1e-6)[:, None]
    gradient = _gradient(_mean_around(source), y, x)
    return float(np.abs(step).mean() / (gradient.mean() + _LEAST_GRADIENT))


def _shrunk(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _mean_around(image: Float32Array) -> Float32Array:
    return np.asarray(cv2.blur(image, (_AROUND_PX, _AROUND_PX)), np.float32)


def _gradient(image: Float32Array, y: NDArray[np.intp], x: NDArray[np.intp]) -> Float32Array:
    """Difference at pixels over the measure's reach to both sides, in the direction in which it is larger: `(n, C)`."""
    bottom, right = image.shape[0] - 1, image.shape[1] - 1
    down = image[np.minimum(y + _REACH_PX, bottom), x] - image[np.maximum(y - _REACH_PX, 0), x]
    across = image[y, np.minimum(x + _REACH_PX, right)] - image[y, np.maximum(x - _REACH_PX, 0)]
    return np.maximum(np.abs(down), np.abs(across))
