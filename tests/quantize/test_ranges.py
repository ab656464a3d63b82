"""Calibration ranges: percentiles, merging, and files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import BINS, ActivationRange
from latentsync_trt.quantize.work import WorkFolder, load_arrays, save_arrays
from latentsync_trt.types import Float32Array
from tests.small import small_bundle

VALUES, CHANNELS = 40_000, 8


def range_of(values: Float32Array) -> ActivationRange:
    """The range of `(n, C)` values that are all sampled."""
    magnitudes = np.abs(values)
    return ActivationRange.of_step(magnitudes.max(axis=0), magnitudes.ravel())


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
        np.testing.assert_array_equal(found.channel_amax, both.channel_amax)
        np.testing.assert_array_equal(found.counts, both.counts)


def test_an_input_that_is_always_zero_merges() -> None:
    zero, values = range_of(np.zeros((VALUES // CHANNELS, CHANNELS), np.float32)), range_of(normal(8))
    assert [zero.amax(100), zero.amax(99.99)] == [0.0, 0.0]
    found = values.merged(zero)
    assert found.amax(100) == values.amax(100)
    assert found.counts.sum() == 2 * VALUES
    assert found.counts[0] == values.counts[0] + VALUES
    assert zero.merged(zero).counts.sum() == 2 * VALUES


@pytest.mark.parametrize("names", [("unet.a.weight", "unet.b.weight"), ()])
def test_saved_ranges_are_loaded(tmp_path: Path, names: tuple[str, ...]) -> None:
    work = WorkFolder(tmp_path, Bundle.load(small_bundle(), verify=False), [], CalibrateOptions())
    assert work.ranges() == (0, {})
    ranges = {name: range_of(normal(seed)[:, : 3 + seed]) for seed, name in enumerate(names)}
    work.save_ranges(4, ranges)
    windows, again = work.ranges()
    assert (windows, list(again)) == (4, list(ranges))
    for name, layer in ranges.items():
        np.testing.assert_array_equal(again[name].channel_amax, layer.channel_amax)
        np.testing.assert_array_equal(again[name].counts, layer.counts)
        assert again[name].upper == layer.upper
    assert [path.name for path in work.folder.iterdir()] == ["ranges.npz"]


@pytest.mark.parametrize("damage", [lambda _: b"", lambda _: b"something else", lambda content: content[:-100]])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "ranges.npz"
    save_arrays(path, {"a": np.arange(1000)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"ranges\.npz: cannot be read.*calibrate again"):
        load_arrays(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"ranges\.npz: cannot be written"):
        save_arrays(tmp_path / "file" / "ranges.npz", {})
