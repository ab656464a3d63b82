"""Calibration ranges: percentiles and merging."""

import numpy as np
import pytest

from latentsync_trt.quantize.ranges import BINS, ActivationRange
from latentsync_trt.types import Float32Array

VALUES, CHANNELS = 40_000, 8


def range_of(values: Float32Array) -> ActivationRange:
    """The range of values that are all sampled."""
    magnitudes = np.abs(values)
    return ActivationRange.of_step(float(magnitudes.max()), magnitudes.ravel())


def normal(seed: int, scale: float = 1.0) -> Float32Array:
    values = np.random.default_rng(seed).standard_normal((VALUES // CHANNELS, CHANNELS), np.float32)
    return values * np.float32(scale)


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_percentiles_are_those_of_the_values(percentile: float) -> None:
    values = normal(2)
    found = range_of(values)
    exact = np.percentile(np.abs(values), percentile)
    assert abs(found.amax(percentile) - exact) <= found.upper / BINS


def test_no_percentile_exceeds_the_maximum() -> None:
    assert range_of(np.full((100, 2), 3.0, np.float32)).amax(99.99) == 3.0


def test_a_percentile_clips_an_outlier_and_100_clips_nothing() -> None:
    values = normal(4)
    largest = float(np.abs(values).max())
    values[0, 0] = 20 * largest
    assert range_of(values).amax(100) == np.abs(values).max()
    assert range_of(values).amax(99.99) < largest


@pytest.mark.parametrize("scale", [1.0, 0.03, 1e-4, 1e-9, 700.0])
def test_merging_equals_observing_both_at_once(scale: float) -> None:
    """A histogram that has to widen must not move what is in it."""
    first, second = normal(6), normal(7, scale)
    both = range_of(np.concatenate([first, second]))
    for one, other in ((first, second), (second, first)):
        found = range_of(one).merged(range_of(other))
        assert found.upper == both.upper
        assert found.largest == both.largest
        np.testing.assert_array_equal(found.counts, both.counts)


def test_an_input_that_is_always_zero_merges() -> None:
    zero, values = range_of(np.zeros((VALUES // CHANNELS, CHANNELS), np.float32)), range_of(normal(8))
    assert [zero.amax(100), zero.amax(99.99)] == [0.0, 0.0]
    found = values.merged(zero)
    assert found.amax(100) == values.amax(100)
    assert found.counts.sum() == 2 * VALUES
    assert found.counts[0] == values.counts[0] + VALUES
    assert zero.merged(zero).counts.sum() == 2 * VALUES
