"""Repeated times as three numbers: the median and where nine of ten lie. Pure but for the clock of `measure`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, Self

import numpy as np

from latentsync_trt.errors import InputError

LOWER_PERCENT, UPPER_PERCENT = 5, 95

Change = Literal["faster", "slower", "within noise"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds of `runs` runs: the median, and the 5th and 95th percentile (interpolated where runs are few)."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Self:
        """The spread of measured times; raises `InputError` if there are none."""
        if not times_ms:
            raise InputError("no run was timed: --runs must be at least 1")
        lower, median, upper = np.percentile(times_ms, [LOWER_PERCENT, 50, UPPER_PERCENT]).tolist()
        return cls(median, lower, upper, len(times_ms))

    def against(self, before: Self) -> Change:
        """What became of `before`: a change counts where nine of ten runs lie clear of one another."""
        if self.p95_ms < before.p5_ms:
            return "faster"
        return "slower" if self.p5_ms > before.p95_ms else "within noise"


def measure(run: Callable[[], object], *, runs: int, warm_up: int) -> list[float]:
    """Milliseconds of each of `runs` calls, after `warm_up` that do not count; `run` must return when it is done."""
    for _ in range(warm_up):
        run()
    times_ms = []
    for _ in range(runs):
        start_s = perf_counter()
        run()
        times_ms.append(1000 * (perf_counter() - start_s))
    return times_ms
