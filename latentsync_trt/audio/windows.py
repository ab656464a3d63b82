"""What of the speech each video frame hears. Pure."""

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS

FEATURES_PER_S = 50
POSITIONS_BEFORE, POSITIONS_AFTER = 4, 5
POSITIONS = POSITIONS_BEFORE + 1 + POSITIONS_AFTER
_STRIDE = FEATURES_PER_S // MODEL_FPS


def window_positions(frame: int, total: int) -> NDArray[np.int64]:
    """The 10 feature positions that video frame `frame` hears: 2i − 4 … 2i + 5, clamped to the `total` there are."""
    centre = frame * _STRIDE
    return np.clip(np.arange(centre - POSITIONS_BEFORE, centre + POSITIONS_AFTER + 1), 0, total - 1)
