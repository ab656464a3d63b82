"""How much the edge of a patch shows. Pure."""

import cv2
import numpy as np

from latentsync_trt.types import Float32Array, Patch, Picture

_SIDE_PX = 96
"""Side of a square with the area of the patch, after it was resized for the measure."""

_REACH_PX = 2
"""How far from the edge levels are compared: 2 % of the side of what is pasted."""

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
    area = float((patch.weight >= 0.5).sum())
    if area == 0:
        return 0.0
    scale = min(1.0, _SIDE_PX / area**0.5)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    source = _shrunk(frame[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width], size).astype(np.float32)
    painted = _shrunk(patch.rgb, size).astype(np.float32) / np.float32(257)
    inside = (_shrunk(patch.weight, size) >= 0.5).astype(np.float32)
    rim = (inside - cv2.erode(inside, np.ones((2 * _REACH_PX + 1,) * 2, np.uint8))) > 0
    if not rim.any():
        return 0.0
    step = _mean_around((painted - source) * inside[..., None]) / np.maximum(_mean_around(inside), 1e-6)[..., None]
    gradient = _gradient(_mean_around(source))
    return float(np.abs(step[rim]).mean() / (gradient[rim].mean() + _LEAST_GRADIENT))


def _shrunk(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _mean_around(image: Float32Array) -> Float32Array:
    side = 2 * _REACH_PX + 1
    return np.asarray(cv2.blur(image, (side, side)), np.float32)


def _gradient(image: Float32Array) -> Float32Array:
    """Difference over the measure's reach to both sides, in the direction in which it is larger: `(H, W, C)`."""
    reach = 2 * _REACH_PX
    padded = np.pad(image, ((_REACH_PX, _REACH_PX), (_REACH_PX, _REACH_PX), (0, 0)), "edge")
    down = padded[reach:, _REACH_PX:-_REACH_PX] - padded[:-reach, _REACH_PX:-_REACH_PX]
    across = padded[_REACH_PX:-_REACH_PX, reach:] - padded[_REACH_PX:-_REACH_PX, :-reach]
    return np.maximum(np.abs(down), np.abs(across))
