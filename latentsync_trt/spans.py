"""Spans of time, and runs of frames."""

from collections.abc import Sequence

import numpy as np

from latentsync_trt.types import BoolArray, Float64Array


def within(times_s: Float64Array, spans_s: Sequence[tuple[float, float]]) -> BoolArray:
    """Whether each of `times_s (n,)` is in one of the spans, which ascend and are apart."""
    edges = np.array(spans_s, np.float64).reshape(-1)
    return np.asarray(np.searchsorted(edges, times_s, side="right") % 2 == 1, np.bool_)


def runs_of_true(values: BoolArray) -> list[tuple[int, int]]:
    """First and past-the-last index of each run of True in `values (n,)`."""
    edges = np.flatnonzero(np.diff(values.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
