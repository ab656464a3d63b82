"""How lips follow the mouth that the built-in sentence requires, which its phonemes tell.

All curves have one value per frame at the model's rate.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.measure.lips import CLOSED_GAP, closed_rate
from latentsync_trt.types import BoolArray, Float32Array, runs_of_true

SPOKEN_MOUTH_FILE = Path(__file__).with_name("speech.csv")

_MOST_LAG_FRAMES = 8
_LEAST_FRAMES = 3
"""With fewer frames every correlation is 1 or −1."""


@dataclass(frozen=True, slots=True, eq=False)
class SpokenMouth:
    """The mouth that belongs to a recording of speech."""

    opening: Float32Array
    """Shape `(n,)`, from 0 = shut to about 1 = fully open."""
    shut: BoolArray
    """Shape `(n,)`: where lips touch, for m, b or p."""
    silent: BoolArray
    """Shape `(n,)`: where nothing is said."""


def spoken_mouth() -> SpokenMouth:
    """Returns the mouth that belongs to the built-in sentence."""
    rows = np.loadtxt(SPOKEN_MOUTH_FILE, np.float32, delimiter=",", skiprows=1, encoding="ascii")
    return SpokenMouth(rows[:, 0], rows[:, 1] > 0, rows[:, 2] > 0)


@dataclass(frozen=True, slots=True)
class SyncScore:
    """How lips follow the known mouth of their speech."""

    opening: float
    """Correlation of the gap between the lips with the opening, in [−1, 1]."""
    lag_frames: int
    """The delay of the lips at which both agree best."""
    closures: float
    """Share of m, b and p with a frame in which the lips touch; NaN without any."""
    silence: float
    """Share of the silent frames in which the lips touch; NaN without any."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two curves agree."""

    correlation: float
    """Without a delay, in [−1, 1]; 0 if a curve is flat."""
    lag_frames: int
    """The delay of the first curve at which they agree best."""


def score(gaps: Float32Array, mouth: SpokenMouth) -> SyncScore:
    """Compares the lips of a clip, `(n,)`, with its known mouth; raises `InputError` if fewer than
    three frames show a face.
    """
    closures = math.nan
    spans = runs_of_true(mouth.shut)
    if spans:
        closures = fmean(bool((gaps[start:end] < CLOSED_GAP).any()) for start, end in spans)
    opening = agreement(gaps, mouth.opening)
    silence = closed_rate(gaps, mouth.silent)
    return SyncScore(opening.correlation, opening.lag_frames, closures, silence)


def agreement(measured: Float32Array, target: Float32Array) -> Agreement:
    """Compares two curves `(n,)`; raises `InputError` if fewer than three frames are not NaN in
    both.
    """
    reach = min(_MOST_LAG_FRAMES, max(len(measured) - 1, 0))
    correlations = dict[int, float]()
    padded = np.pad(measured.astype(np.float64), reach, constant_values=math.nan)
    for lag in range(-reach, reach + 1):
        shifted = padded[reach + lag :][: len(target)]
        compared = ~(np.isnan(shifted) | np.isnan(target))
        if compared.sum() < _LEAST_FRAMES:
            continue
        x = shifted[compared]
        y = target[compared].astype(np.float64)
        correlations[lag] = 0.0
        if np.ptp(x) and np.ptp(y):
            correlations[lag] = float(np.corrcoef(x, y)[0, 1])
    if 0 not in correlations:
        raise InputError("too few frames show a face: nothing to compare", usage=False)
    best = max(correlations, key=lambda lag: (correlations[lag], -abs(lag)))
    return Agreement(correlations[0], best)
