"""Calibration ranges, 8-bit numbers, and step graphs in mixed precision: what is rounded and what
stays exact.
"""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.quant_utils import quantize_onnx_initializer

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.calibration_options import CalibrateOptions, EightBit
from latentsync_trt.quantize.ranges import BINS, ActivationRange, ActivationRanges
from latentsync_trt.quantize.steps import RoundedWeights, round_weights, write_steps
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.types import Float32Array
from tests.quantize import toys
from tests.quantize.toys import BIAS, CONVOLUTION, GRAPH, LINEAR, OTHER, SIDE

FLOAT32_ROUNDING = 1e-5
"""Sums of 72 products near one in another order."""

LARGEST = {"int8": 127.0, "fp8": 448.0}


def written(
    bundle: Bundle,
    folder: Path,
    kind: EightBit = "int8",
    kept: tuple[str, ...] = (),
    ranges: ActivationRanges | None = None,
) -> Path:
    """The step in 8 bits; without `ranges`, all inputs reach 4."""
    folder.mkdir(exist_ok=True)
    write_steps(
        bundle,
        ranges or toys.block_ranges(),
        CalibrateOptions(kind, percentile=100.0),
        kept,
        folder,
    )
    return folder / f"{GRAPH}.onnx"


def loaded(path: Path) -> Any:
    return onnx.load(path, load_external_data=False)


def rounded(
    values: NDArray[np.float32], scale: NDArray[np.float32] | float, kind: EightBit
) -> NDArray[np.float32]:
    parts = np.clip(values / scale, -LARGEST[kind], LARGEST[kind])
    if kind == "int8":
        eight_bit = np.rint(parts)
    else:
        eight_bit = parts.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return eight_bit * scale


def expected(kind: EightBit) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The step's two outputs, computed with NumPy: `next_latents` and `hidden`."""
    state = toys.block_latents()
    tensors = toys.block_weights()
    conv = tensors[CONVOLUTION]
    linear = tensors[LINEAR]
    conv = rounded(conv, np.abs(conv).max(axis=(1, 2, 3), keepdims=True) / LARGEST[kind], kind)
    linear = rounded(linear, np.abs(linear).max(axis=0, keepdims=True) / LARGEST[kind], kind)
    padded = np.pad(rounded(state, 4 / LARGEST[kind], kind), ((0, 0), (0, 0), (1, 1), (1, 1)))
    convolved = sum(
        np.einsum("oi,nihw->nohw", conv[:, :, y, x], padded[:, :, y : y + SIDE, x : x + SIDE])
        for y in range(3)
        for x in range(3)
    )
    hidden = (convolved + tensors[BIAS][:, None, None] + state).reshape(1, 8, -1).transpose(0, 2, 1)
    return rounded(hidden, 4 / LARGEST[kind], kind) @ linear, hidden


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return toys.write_block(tmp_path_factory.mktemp("block") / "bundle")


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_only_inputs_and_weights_of_layers_are_rounded(
    bundle: Bundle, tmp_path: Path, kind: EightBit
) -> None:
    """The skip connection reads the exact state, and `hidden` leaves the graph exact, though both
    feed layers.
    """
    outputs = Session(written(bundle, tmp_path, kind)).run({"latents": toys.block_latents()})
    for got, wanted in zip(outputs, expected(kind), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=FLOAT32_ROUNDING)


@pytest.mark.parametrize(("kept", "widest"), [((), 3.0), ((OTHER,), 1.0)])
def test_layers_that_read_one_tensor_share_the_widest_range(
    tmp_path: Path, kept: tuple[str, ...], widest: float
) -> None:
    toy = toys.write_layers(tmp_path / "toy")
    model = loaded(
        written(toy, tmp_path / "work", "int8", kept, toys.layers_ranges(other_amax=3.0))
    )
    initializers = {initializer.name: initializer for initializer in model.graph.initializer}
    pairs = [
        node
        for node in model.graph.node
        if node.op_type == "QuantizeLinear" and node.input[0] == "features"
    ]
    scales = [float(numpy_helper.to_array(initializers[node.input[1]])) for node in pairs]
    assert scales == [pytest.approx(widest / 127)]


def test_float16_graphs_have_float16_scales(tmp_path: Path) -> None:
    """TensorRT refuses other ones."""
    path = written(toys.write_block(tmp_path / "half", dtype=np.float16), tmp_path / "work")
    model = loaded(path)
    types = {initializer.name: initializer.data_type for initializer in model.graph.initializer}
    pairs = [
        node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    assert {types[node.input[1]] for node in pairs} == {TensorProto.FLOAT16}
    assert {types[node.input[2]] for node in pairs} == {TensorProto.INT8}
    assert np.isfinite(Session(path).run({"latents": toys.block_latents()})[0]).all()


@pytest.mark.parametrize(
    ("pattern", "layer", "kept"),
    [
        ("resnets.0.conv1", "unet.mid_block.resnets.0.conv1.weight", True),
        ("resnets.1", "unet.mid_block.resnets.11.conv1.weight", False),
    ],
)
def test_keep_matches_parts_of_names(pattern: str, layer: str, kept: bool) -> None:
    assert CalibrateOptions(keep=(pattern,)).keeps(layer) is kept


VALUES = 40_000
CHANNELS = 8


def range_of(values: Float32Array) -> ActivationRange:
    """The range of values that are all sampled."""
    magnitudes = np.abs(values)
    return ActivationRange.of_step(float(magnitudes.max()), magnitudes.ravel())


def normal(seed: int, scale: float = 1.0) -> Float32Array:
    values = np.random.default_rng(seed).standard_normal((VALUES // CHANNELS, CHANNELS), np.float32)
    return values * np.float32(scale)


def test_percentiles_are_those_of_the_values() -> None:
    values = normal(2)
    observed = range_of(values)
    for percentile in (90.0, 99.9):
        exact = np.percentile(np.abs(values), percentile)
        assert abs(observed.amax(percentile) - exact) <= observed.upper / BINS
    assert observed.amax(100) == np.abs(values).max()
    assert range_of(np.full((100, 2), 3.0, np.float32)).amax(99.99) == 3.0


@pytest.mark.parametrize("scale", [1.0, 1e-9, 700.0])
def test_merging_equals_observing_both_at_once(scale: float) -> None:
    """A histogram that has to widen must not move what is in it."""
    first = normal(6)
    second = normal(7, scale)
    of_all = range_of(np.concatenate([first, second]))
    for one, other in ((first, second), (second, first)):
        merged = range_of(one).merged(range_of(other))
        assert merged.upper == of_all.upper
        assert merged.largest == of_all.largest
        np.testing.assert_array_equal(merged.counts, of_all.counts)


def test_an_input_that_is_always_zero_merges() -> None:
    zero = range_of(np.zeros((VALUES // CHANNELS, CHANNELS), np.float32))
    values = range_of(normal(8))
    assert [zero.amax(100), zero.amax(99.99)] == [0.0, 0.0]
    merged = values.merged(zero)
    assert merged.amax(100) == values.amax(100)
    assert merged.counts[0] == values.counts[0] + VALUES


def restored_of(rounded_weights: RoundedWeights) -> NDArray[np.float32]:
    """Weights of linear layers as the graph computes them."""
    scales = rounded_weights.scales.astype(np.float32)
    return rounded_weights.eight_bit.astype(np.float32) * scales


COARSE = 2**-4
"""Half of the last of three mantissa bits: the precision of FP8."""


@pytest.mark.parametrize("output_axis", [0, 1])
def test_int8_weights_match_onnx_runtime(output_axis: int) -> None:
    weights = np.random.default_rng(8).standard_normal((6, 5), np.float32)
    rounded_weights = round_weights(weights, output_axis, "int8")
    zeros = np.zeros(len(rounded_weights.scales), np.int8)
    tensor = numpy_helper.from_array(weights, "weight")
    reference = quantize_onnx_initializer(
        tensor, TensorProto.INT8, zeros, rounded_weights.scales, output_axis
    )
    np.testing.assert_array_equal(rounded_weights.eight_bit, numpy_helper.to_array(reference))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_float16_weights_too_small_for_their_scale_are_not_lost(kind: EightBit) -> None:
    """The scale for 0.004 would be below float16's normal numbers; that of zeros must not be
    zero.
    """
    weights = np.full((4, 2), 0.004, np.float16)
    rounded_weights = round_weights(weights, 1, kind)
    restored = restored_of(rounded_weights)
    np.testing.assert_allclose(restored, weights.astype(np.float32), rtol=COARSE)
    zeros = round_weights(np.zeros((3, 2), np.float16), 1, kind)
    assert (zeros.eight_bit.astype(np.float32) == 0).all()
    assert (zeros.scales > 0).all()


def test_the_largest_fp8_weight_is_not_nan_when_its_scale_was_rounded_down() -> None:
    weights = np.linspace(0.5, 0.52, 200, dtype=np.float16).reshape(1, -1)
    rounded_weights = round_weights(weights, 1, "fp8")
    restored = restored_of(rounded_weights)
    np.testing.assert_allclose(restored, weights.astype(np.float32), rtol=COARSE)
