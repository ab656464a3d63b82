"""Calibration ranges: how large the inputs of each layer get."""

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

    `largest`: exact maximum of |x|. `counts (BINS,)` float64: histogram of sampled |x| from 0 to `upper`.
    """

    largest: float
    counts: Float64Array

    @classmethod
    def of_step(cls, largest: float, sample: Float32Array) -> Self:
        """The range of one step: the maximum of |x|, and a sample of |x| `(n,)`, none larger."""
        upper = _power_of_two(largest)
        return cls(largest, np.histogram(sample, BINS, range=(0, upper or 1))[0].astype(np.float64))

    @property
    def upper(self) -> float:
        """The power of two at or above the maximum, so that histograms merge bin by bin; 0 if x is always 0."""
        return _power_of_two(self.largest)

    def merged(self, other: "ActivationRange") -> "ActivationRange":
        """The range of both observations of the same layer."""
        upper = max(self.upper, other.upper)
        counts = self._counts_up_to(upper) + other._counts_up_to(upper)
        return ActivationRange(max(self.largest, other.largest), counts)

    def amax(self, percentile: float) -> float:
        """The |x| that is mapped to the largest 8-bit number.

        Args:
            percentile: share of the sampled |x| that is not clipped, above 0, at most 100; 100 is the maximum.
        """
        if percentile == 100 or self.largest == 0:
            return self.largest
        wanted, running = self.counts.sum() * percentile / 100, np.cumsum(self.counts)
        index = min(int(np.searchsorted(running, wanted)), BINS - 1)
        below = running[index] - self.counts[index]
        part = (wanted - below) / self.counts[index] if self.counts[index] else 1.0
        return min(self.largest, float((index + part) * self.upper / BINS))

    def _counts_up_to(self, upper: float) -> Float64Array:
        """The histogram from 0 to `upper`, a power of two not below its own."""
        if self.largest == 0:
            return np.concatenate([[self.counts.sum()], np.zeros(BINS - 1)])
        counts = self.counts
        for _ in range(min(round(math.log2(upper / self.upper)), int(math.log2(BINS)))):
            counts = np.concatenate([counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2)])
        return counts


Ranges = Mapping[str, ActivationRange]
"""Calibration ranges by the name of a layer's weights: those of full, cached, guided and unguided steps are merged."""


def _power_of_two(largest: float) -> float:
    return 0.0 if largest <= 0 else 2.0 ** math.ceil(math.log2(largest))
