"""Ranges: what they keep of what was seen, how they merge, and where each method ends them."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.quantize.ranges import BINS, LayerInput, load, merged, merged_ranges, observed, save
from latentsync_trt.types import Float32Array

VALUES, CHANNELS = 40_000, 8

ENTROPY_BIN = 1 / 512
"""ONNX Runtime searches among so many ends, of the histogram's width."""


def seen(values: Float32Array, timestep: int = 1) -> LayerInput:
    """All of `(n, C)` values as one step shows them."""
    magnitudes = np.abs(values)
    return observed(magnitudes.max(axis=0), magnitudes.ravel(), timestep)


def normal(seed: int, scale: float = 1.0) -> Float32Array:
    values = np.random.default_rng(seed).standard_normal((VALUES // CHANNELS, CHANNELS), np.float32)
    return values * np.float32(scale)


def test_max_is_the_largest_magnitude() -> None:
    values = normal(1)
    assert seen(values).amax("max") == np.abs(values).max()


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9])
def test_a_percentile_is_that_of_the_values(percentile: float) -> None:
    values = normal(2)
    found = seen(values)
    exact = np.percentile(np.abs(values), percentile)
    assert abs(found.amax("percentile", percentile) - exact) <= found.upper / BINS


def test_all_of_the_values_are_the_largest() -> None:
    values = normal(3)
    assert seen(values).amax("percentile", 100.0) == pytest.approx(np.abs(values).max(), abs=8 / BINS)


def test_no_method_goes_beyond_the_largest_value() -> None:
    values = np.full((100, 2), 3.0, np.float32)
    found = seen(values)
    assert [found.amax("max"), found.amax("percentile"), found.amax("entropy")] == [3.0, 3.0, 3.0]


def test_percentile_and_entropy_cut_off_a_value_far_from_the_others() -> None:
    values = normal(4)
    bulk = float(np.abs(values).max())
    values[0, 0] = 20 * bulk
    found = seen(values)
    assert found.amax("max") == np.abs(values).max()
    assert found.amax("percentile") < bulk
    assert found.amax("entropy") < found.amax("max") / 2


def test_entropy_keeps_values_that_are_spread_evenly() -> None:
    values = np.linspace(-1, 1, VALUES, dtype=np.float32).reshape(-1, CHANNELS)
    assert seen(values).amax("entropy") >= 1 - 2 * ENTROPY_BIN


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1])
def test_a_percentile_outside_its_limits_is_refused(percentile: float) -> None:
    with pytest.raises(InputError, match="percentile"):
        seen(normal(5)).amax("percentile", percentile)


@pytest.mark.parametrize("scale", [1.0, 0.03, 1e-4, 1e-9, 700.0])
def test_merging_is_as_good_as_seeing_both_at_once(scale: float) -> None:
    """Where a tensor grows from step to step its histogram must widen without moving what is in it."""
    first, second = normal(6), normal(7, scale)
    both = seen(np.concatenate([first, second]))
    for found in (merged(seen(first), seen(second)), merged(seen(second), seen(first))):
        assert found.upper == both.upper
        np.testing.assert_array_equal(found.channel_amax, both.channel_amax)
        np.testing.assert_array_equal(found.counts, both.counts)


def test_each_timestep_keeps_its_own_largest_value() -> None:
    first, again, later = (seen(normal(seed, scale), t) for seed, scale, t in ((1, 1, 901), (2, 3, 901), (3, 2, 1)))
    found = merged(merged(first, later), again)
    assert found.step_amax == {1: later.amax(), 901: again.amax()}


def test_an_input_that_was_always_zero_has_a_range_of_zero_and_merges() -> None:
    zero, values = seen(np.zeros((VALUES // CHANNELS, CHANNELS), np.float32)), seen(normal(8))
    assert [zero.amax("max"), zero.amax("percentile"), zero.amax("entropy")] == [0.0, 0.0, 0.0]
    found = merged(values, zero)
    assert found.amax() == values.amax()
    assert found.counts.sum() == 2 * VALUES
    assert found.counts[0] == values.counts[0] + VALUES
    assert merged(zero, zero).counts.sum() == 2 * VALUES


def test_layers_of_other_widths_do_not_merge() -> None:
    with pytest.raises(InputError, match="8 and of 4 channels"):
        merged(seen(normal(9)), seen(normal(9)[:, :4]))


def test_a_layer_that_only_one_graph_has_stays() -> None:
    first, second = seen(normal(10)), seen(normal(11, 2.0))
    found = merged_ranges({"both": first, "one": first}, {"both": second, "other": second})
    assert set(found) == {"both", "one", "other"}
    assert found["both"].amax() == second.amax()
    assert found["one"] is first


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "ranges.npz"
    ranges = {
        "unet.a.weight": merged(seen(normal(12), 901), seen(normal(13), 1)),
        "unet.b.weight": seen(normal(14)[:, :3]),
    }
    save(ranges, path)
    again = load(path)
    assert list(again) == list(ranges)
    for name, layer in ranges.items():
        np.testing.assert_array_equal(again[name].channel_amax, layer.channel_amax)
        np.testing.assert_array_equal(again[name].counts, layer.counts)
        assert (again[name].upper, again[name].step_amax) == (layer.upper, layer.step_amax)
    assert [path.name for path in tmp_path.iterdir()] == ["ranges.npz"]


def test_no_layers_can_be_saved_too(tmp_path: Path) -> None:
    save({}, tmp_path / "ranges.npz")
    assert load(tmp_path / "ranges.npz") == {}


@pytest.mark.parametrize("content", [b"", b"nothing of ours", None])
def test_what_is_no_ranges_file_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "ranges.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"ranges\.npz.*calibrate again"):
        load(path)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranges.npz"
    save({"a": seen(normal(15))}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        load(path)


def test_a_place_that_takes_no_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        save({}, tmp_path / "file" / "ranges.npz")
