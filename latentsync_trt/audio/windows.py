"""Which audio features each video frame attends to. Pure."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import Float32Array

FEATURES_PER_S = 50
_PER_FRAME = FEATURES_PER_S // MODEL_FPS
_BEFORE, _AFTER = 4, 6
"""A frame attends to 10 features (200 ms): from 4 before its own position to 5 after it."""

POSITIONS = _BEFORE + _AFTER


def frame_count(duration_s: Fraction) -> int:
    """Number of video frames, at the model's rate, that cover `duration_s` seconds."""
    return ceil(duration_s * MODEL_FPS)


def centers(times_s: Sequence[Fraction]) -> NDArray[np.int64]:
    """The features nearest to `times_s`, the later of two equally near."""
    return np.array([floor(time_s * FEATURES_PER_S + Fraction(1, 2)) for time_s in times_s], np.int64)


def attended_positions(centers: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Indices of the features around `centers (n,)`, `(n, 10)`: 4 before to 5 after each, clipped to the `total`."""
    return np.clip(centers[:, None] + np.arange(-_BEFORE, _AFTER), 0, total - 1)


def audio_windows(features: Float32Array, duration_s: Fraction) -> Float32Array:
    """Windows of all frames, at the model's rate, of a recording, float32 `(n, 10·L, D)`, n = ceil(duration × 25).

    Args:
        features: float32 `(T, L, D)`, 50 per second. duration_s: length of the recording.
    """
    frames = np.arange(frame_count(duration_s))
    attended = features[attended_positions(_PER_FRAME * frames, len(features))]
    return np.ascontiguousarray(attended.reshape(len(frames), POSITIONS * features.shape[1], features.shape[2]))
