"""Graphs in eight bits: what is rounded, to which numbers, and what is left as it was."""

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
from latentsync_trt.errors import BundleError, InputError
from latentsync_trt.quantize.cast import EightBit, cast_weight, scale_of
from latentsync_trt.quantize.layers import layers_of
from latentsync_trt.quantize.mixed import MixedSteps
from latentsync_trt.quantize.options import RESIDUAL_READERS, QuantizeOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.runtime.sessions.session import Session
from tests.quantize import block, toy_layers
from tests.quantize.block import CONVOLUTION, GRAPH, LINEAR

FLOAT32_ROUNDING = 1e-5
"""Sums of 72 products near one in another order."""

COARSE = 2**-4
"""Half of the last of three bits of mantissa: FP8 is no nearer than that."""

LARGEST = {"int8": 127.0, "fp8": 448.0}


def everything(kind: EightBit = "int8", **fields: Any) -> QuantizeOptions:
    return QuantizeOptions(kind, kept=(), **fields)


def written(bundle: Bundle, folder: Path, options: QuantizeOptions, kept: tuple[str, ...] = ()) -> Path:
    """The step in eight bits, with amax 4 for every input."""
    folder.mkdir()
    channels = bundle.manifest.graphs[GRAPH].inputs[0].shape[1]
    with MixedSteps(bundle, block.ranges(int(channels)), options, folder) as steps:
        return steps.write(GRAPH, kept)


def rounded(values: NDArray[np.float32], scale: NDArray[np.float32] | float, kind: EightBit) -> NDArray[np.float32]:
    """What eight bits leave of values."""
    parts = np.clip(values / scale, -LARGEST[kind], LARGEST[kind])
    eight = np.rint(parts) if kind == "int8" else parts.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return eight * scale


def expected(kind: EightBit) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The step's two outputs, worked out by hand: `next_latents` and `hidden`."""
    state, tensors = block.latents(), block.weights()
    conv, linear = tensors[CONVOLUTION], tensors[LINEAR]
    conv = rounded(conv, np.abs(conv).max(axis=(1, 2, 3), keepdims=True) / LARGEST[kind], kind)
    linear = rounded(linear, np.abs(linear).max(axis=0, keepdims=True) / LARGEST[kind], kind)
    padded = np.pad(rounded(state, 4 / LARGEST[kind], kind), ((0, 0), (0, 0), (1, 1), (1, 1)))
    convolved = sum(
        np.einsum("oi,nihw->nohw", conv[:, :, y, x], padded[:, :, y : y + block.SIDE, x : x + block.SIDE])
        for y in range(3)
        for x in range(3)
    )
    hidden = (convolved + tensors[block.BIAS][:, None, None] + state).reshape(1, 8, -1).transpose(0, 2, 1)
    return rounded(hidden, 4 / LARGEST[kind], kind) @ linear, hidden


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return block.write_block(tmp_path_factory.mktemp("block") / "bundle")


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_layers_round_and_nothing_else_does(bundle: Bundle, tmp_path: Path, kind: EightBit) -> None:
    """The skip reads the exact state, and `hidden` leaves the graph exact, though both feed layers."""
    found = Session(written(bundle, tmp_path / "work", everything(kind))).run({"latents": block.latents()})
    for got, wanted in zip(found, expected(kind), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=FLOAT32_ROUNDING)


def test_layers_that_are_kept_are_as_they_were(bundle: Bundle, tmp_path: Path) -> None:
    path = written(bundle, tmp_path / "work", everything(), kept=(CONVOLUTION, LINEAR))
    assert {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}.isdisjoint(
        {"QuantizeLinear", "DequantizeLinear"}
    )
    given = {"latents": block.latents()}
    for got, wanted in zip(Session(path).run(given), Session(bundle.graph_path(GRAPH)).run(given), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_one_layer_may_be_kept_and_another_not(bundle: Bundle, tmp_path: Path) -> None:
    model = onnx.load(written(bundle, tmp_path / "work", everything(), kept=(LINEAR,)), load_external_data=False)
    nodes = {node.name: node for node in model.graph.node}
    held = {initializer.name: initializer for initializer in model.graph.initializer}
    assert nodes["to_q"].input[:] == ["hidden", LINEAR]
    assert nodes["conv"].input[0] != "state"
    assert nodes["skip"].input[1] == "state"
    assert CONVOLUTION not in held
    assert held[LINEAR].data_type == TensorProto.FLOAT


def test_the_same_steps_can_be_written_with_other_choices(bundle: Bundle, tmp_path: Path) -> None:
    given = {"latents": block.latents()}
    with MixedSteps(bundle, block.ranges(), everything(), tmp_path) as steps:
        first = Session(steps.write(GRAPH, ())).run(given)
        other = Session(steps.write(GRAPH, (CONVOLUTION,))).run(given)
        again = Session(steps.write(GRAPH, ())).run(given)
    assert np.abs(other[1] - first[1]).max() > FLOAT32_ROUNDING
    np.testing.assert_array_equal(again[1], first[1])


@pytest.mark.parametrize(("kept", "widest"), [((), 3.0), ((toy_layers.OTHER,), 1.0)])
def test_layers_that_read_one_tensor_take_the_widest_range(
    tmp_path: Path, kept: tuple[str, ...], widest: float
) -> None:
    toy = toy_layers.write_layers(tmp_path / "toy")
    reached = {toy_layers.CONVOLUTION: (4, 1.0), toy_layers.LINEAR: (5, 1.0), toy_layers.OTHER: (5, 3.0)}
    ranges = {name: block.seen(np.full(count, amax, np.float32)) for name, (count, amax) in reached.items()}
    (tmp_path / "work").mkdir()
    with MixedSteps(toy, ranges, everything(), tmp_path / "work") as steps:
        model = onnx.load(steps.write(GRAPH, kept), load_external_data=False)
    held = {initializer.name: initializer for initializer in model.graph.initializer}
    rounding = [node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "heard"]
    assert [float(numpy_helper.to_array(held[node.input[1]])) for node in rounding] == [pytest.approx(widest / 127)]


def test_half_precision_keeps_its_scales_in_half_precision(tmp_path: Path) -> None:
    """TensorRT refuses other ones."""
    half = block.write_block(tmp_path / "half", dtype=np.float16)
    path = written(half, tmp_path / "work", everything())
    model = onnx.load(path, load_external_data=False)
    types = {initializer.name: initializer.data_type for initializer in model.graph.initializer}
    pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert {types[node.input[1]] for node in pairs} == {TensorProto.FLOAT16}
    assert {types[node.input[2]] for node in pairs} == {TensorProto.INT8}
    assert np.isfinite(Session(path).run({"latents": block.latents()})[0]).all()


def test_shapes_are_stated(bundle: Bundle, tmp_path: Path) -> None:
    """`bench` counts arithmetic by them."""
    model = onnx.load(written(bundle, tmp_path / "work", everything()), load_external_data=False)
    stated = {value.name: value for value in [*model.graph.value_info, *model.graph.output]}
    for node in model.graph.node:
        for name in node.output:
            assert stated[name].type.tensor_type.HasField("shape"), name


@pytest.mark.parametrize("output_axis", [0, 1])
def test_int8_weights_are_those_of_onnx_runtime(output_axis: int) -> None:
    weight = np.random.default_rng(8).standard_normal((6, 5), np.float32)
    eight, scales = cast_weight(weight, output_axis, "int8")
    zeros = np.zeros(len(scales), np.int8)
    tensor = numpy_helper.from_array(weight, "weight")
    theirs = quantize_onnx_initializer(tensor, TensorProto.INT8, zeros, scales, output_axis)
    np.testing.assert_array_equal(eight, numpy_helper.to_array(theirs))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_weights_too_small_for_a_fitting_scale_are_not_lost(kind: EightBit) -> None:
    """In float16 the scale for 0.004 would be below normal numbers."""
    weight = np.full((4, 2), 0.004, np.float16)
    eight, scales = cast_weight(weight, 1, kind)
    restored = eight.astype(np.float32) * scales.astype(np.float32)
    np.testing.assert_allclose(restored, weight.astype(np.float32), rtol=COARSE)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_channel_of_zeros_stays_zero(kind: EightBit) -> None:
    eight, scales = cast_weight(np.zeros((3, 2), np.float16), 1, kind)
    assert (eight.astype(np.float32) == 0).all()
    assert (scales > 0).all()


def test_the_largest_weight_is_no_nan_when_its_scale_was_rounded_down() -> None:
    weight = np.linspace(0.5, 0.52, 200, dtype=np.float16).reshape(1, -1)
    eight, scales = cast_weight(weight, 1, "fp8")
    restored = eight.astype(np.float32) * scales.astype(np.float32)
    np.testing.assert_allclose(restored, weight.astype(np.float32), rtol=COARSE)


def test_a_scale_reaches_the_range() -> None:
    assert float(scale_of(127.0, "int8", np.dtype(np.float32))) == 1.0
    assert float(scale_of(448.0, "fp8", np.dtype(np.float16))) == 1.0


def test_a_layer_that_was_not_seen_is_named(bundle: Bundle, tmp_path: Path) -> None:
    some = {CONVOLUTION: block.ranges()[CONVOLUTION]}
    with MixedSteps(bundle, some, everything(), tmp_path) as steps:
        with pytest.raises(InputError, match=r"nothing of 1 of 2 layers, e\.g\. net\.to_q\.weight; calibrate again"):
            steps.write(GRAPH, ())
        assert steps.write(GRAPH, (LINEAR,)).is_file()


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (block.ranges(channels=9), "takes 8 channels, calibration saw 9"),
        ({}, f"nothing of the 2 layers of {GRAPH}"),
    ],
)
def test_ranges_of_another_model_are_refused(bundle: Bundle, tmp_path: Path, ranges: Ranges, message: str) -> None:
    with MixedSteps(bundle, ranges, everything(), tmp_path) as steps, pytest.raises(InputError, match=message):
        steps.write(GRAPH, ())


def test_layers_must_not_share_weights(bundle: Bundle) -> None:
    model = onnx.load(bundle.graph_path(GRAPH), load_external_data=False)
    again = model.graph.node.add()
    again.CopyFrom(next(node for node in model.graph.node if node.name == "to_q"))
    again.name = "to_k"
    with pytest.raises(BundleError, match=r"net\.to_q\.weight: used by to_q and by to_k"):
        layers_of(model)


@pytest.mark.parametrize(
    ("pattern", "weight", "meant"),
    [
        ("conv_in", "unet.conv_in.weight", True),
        ("conv_in", "unet.mid_block.conv_inner.weight", False),
        ("samplers", "unet.down_blocks.0.downsamplers.0.conv.weight", True),
        ("conv_out", "unet.conv_in.weight", False),
        ("resnets.0.conv1", "unet.mid_block.resnets.0.conv1.weight", True),
        ("unet.conv_in.weight", "unet.conv_in.weight", True),
        ("resnets.1", "unet.mid_block.resnets.11.conv1.weight", False),
    ],
)
def test_names_of_what_is_kept(pattern: str, weight: str, meant: bool) -> None:
    assert QuantizeOptions(kept=(pattern,)).keeps(weight) is meant


def test_what_is_kept_if_nobody_says() -> None:
    assert QuantizeOptions().kept == RESIDUAL_READERS


@pytest.mark.parametrize("fields", [{"precision": "int4"}, {"method": "mean"}, {"smooth_alpha": 1.5}])
def test_options_outside_their_limits(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"not one of|give one of 0 to 1"):
        QuantizeOptions(**fields)
