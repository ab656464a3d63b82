"""How large the inputs of layers get, which decides how they are rounded to 8 bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Self

import numpy as np

from latentsync_trt.types import Float32Array, Float64Array

BINS = 2048
"""How many bins the histograms of magnitudes have."""


@dataclass(frozen=True, slots=True, eq=False)
class ActivationRange:
    """Magnitudes of the input x of one layer."""

    largest: float
    """The exact maximum of |x|."""
    counts: Float64Array
    """A histogram of sampled |x| from 0 to `upper`, `(BINS,)`."""

    @classmethod
    def of_step(cls, largest: float, sample: Float32Array) -> Self:
        """Returns the range of one step.

        Args:
            largest: the maximum of |x|.
            sample: some of |x|, `(n,)`, none larger.
        """
        limit = _power_of_two(largest) or 1
        counts, _ = np.histogram(sample, BINS, range=(0, limit))
        return cls(largest, counts.astype(np.float64))

    @property
    def upper(self) -> float:
        """The power of two at or above the maximum, so that histograms merge bin by bin; 0 if x is
        always 0.
        """
        return _power_of_two(self.largest)

    def merged(self, other: "ActivationRange") -> "ActivationRange":
        """Returns the range of both."""
        upper = max(self.upper, other.upper)
        counts = self._counts_up_to(upper) + other._counts_up_to(upper)
        largest = max(self.largest, other.largest)
        return ActivationRange(largest, counts)

    def amax(self, percentile: float) -> float:
        """Returns the |x| that is mapped to the largest 8-bit number.

        Args:
            percentile: share of the sampled |x| that is not clipped, above 0, at most 100; 100 is
                the maximum.
        """
        if percentile == 100 or self.largest == 0:
            return self.largest
        wanted = self.counts.sum() * percentile / 100
        running = np.cumsum(self.counts)
        index = min(int(np.searchsorted(running, wanted)), BINS - 1)
        count = self.counts[index]
        part = 1.0
        if count:
            part = (wanted - (running[index] - count)) / count
        return min(self.largest, float((index + part) * self.upper / BINS))

    def _counts_up_to(self, upper: float) -> Float64Array:
        """Returns the histogram from 0 to `upper`, a power of two not below its own."""
        if self.largest == 0:
            return np.concatenate([[self.counts.sum()], np.zeros(BINS - 1)])
        counts = self.counts
        doublings = round(log2(upper / self.upper))
        for _ in range(min(doublings, int(log2(BINS)))):
            pairs = counts.reshape(-1, 2).sum(axis=1)
            counts = np.concatenate([pairs, np.zeros(BINS // 2)])
        return counts


def _power_of_two(largest: float) -> float:
    if largest <= 0:
        return 0.0
    return 2.0 ** ceil(log2(largest))


ActivationRanges = Mapping[str, ActivationRange]
"""Calibration ranges by the name of a layer's weights: those of full, cached, guided and unguided
steps are merged.
"""
