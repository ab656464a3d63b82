"""Calibration ranges: how large the inputs of each layer get.

Layers are identified by the name of their weights, which is the same in all step graphs, so that a layer's ranges from
full, cached, guided and unguided steps merge into one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from latentsync_trt.types import Float32Array, Float64Array

BINS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class ActivationRange:
    """Magnitudes of the input x of one layer.

    `channel_amax (C,)` float32: exact maximum of |x| per input channel. `counts (BINS,)` float64: histogram of sampled
    |x| from 0 to `upper`, a power of two, or 0 if x is always 0.
    """

    channel_amax: Float32Array
    counts: Float64Array
    upper: float

    @classmethod
    def of_step(cls, channel_amax: Float32Array, sample: Float32Array) -> Self:
        """The range of one step: maximum of |x| per channel `(C,)`, and a sample of |x| `(n,)`, none larger."""
        upper = _power_of_two(float(channel_amax.max()))
        counts = np.histogram(sample, BINS, range=(0, upper or 1))[0].astype(np.float64)
        return cls(channel_amax.astype(np.float32), counts, upper)

    def merged(self, other: "ActivationRange") -> "ActivationRange":
        """The range of both observations of the same layer."""
        upper = max(self.upper, other.upper)
        counts = self._counts_up_to(upper) + other._counts_up_to(upper)
        return ActivationRange(np.maximum(self.channel_amax, other.channel_amax), counts, upper)

    def amax(self, percentile: float) -> float:
        """The |x| that is mapped to the largest 8-bit number.

        Args:
            percentile: share of the sampled |x| that is not clipped, above 0, at most 100; 100 is the maximum.
        """
        largest = float(self.channel_amax.max())
        if percentile == 100 or self.upper == 0:
            return largest
        wanted, running = self.counts.sum() * percentile / 100, np.cumsum(self.counts)
        index = min(int(np.searchsorted(running, wanted)), BINS - 1)
        below = running[index] - self.counts[index]
        part = (wanted - below) / self.counts[index] if self.counts[index] else 1.0
        return min(largest, float((index + part) * self.upper / BINS))

    def _counts_up_to(self, upper: float) -> Float64Array:
        """The histogram from 0 to `upper`, a power of two not below its own."""
        if self.upper == 0:
            return np.concatenate([[self.counts.sum()], np.zeros(BINS - 1)])
        counts = self.counts
        for _ in range(min(round(math.log2(upper / self.upper)), int(math.log2(BINS)))):
            counts = np.concatenate([counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2)])
        return counts


Ranges = Mapping[str, ActivationRange]
"""Calibration ranges by the name of a layer's weights."""


def _power_of_two(largest: float) -> float:
    """The power of two at or above `largest`: histograms that end at such values merge exactly, bin by bin."""
    return 0.0 if largest <= 0 else 2.0 ** math.ceil(math.log2(largest))
