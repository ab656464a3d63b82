"""What the bench counts and computes: operations of known graphs, spreads of known numbers, inputs of graphs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from latentsync_trt.bench.flops import operations
from latentsync_trt.bench.material import generated_part, random_inputs
from latentsync_trt.bench.rows import Spread
from latentsync_trt.bench.setting import measure
from latentsync_trt.bundle.manifest import DimensionRange
from latentsync_trt.errors import BundleError
from latentsync_trt.runtime.sessions.session import TensorInfo
from tests.small import small_bundle

OPSET = 23
FLOAT = TensorProto.FLOAT


def _graph(path: Path, nodes: list, inputs: dict, outputs: dict, weights: dict | None = None) -> Path:
    """Writes a graph of float tensors with these shapes."""
    tensors = [
        helper.make_tensor(name, FLOAT, shape, np.zeros(shape, np.float32).ravel())
        for name, shape in (weights or {}).items()
    ]
    ends = (
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in values.items()]
        for values in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, "known", *ends, initializer=tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)]), path)
    return path


def test_operations_of_a_known_graph_are_counted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["features"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["tokens", "matrix"], ["projected"]),  # its output's shape is not in the file
        helper.make_node("Gemm", ["row", "matrix"], ["wide"], transB=1),
        helper.make_node("Attention", ["q", "k", "v"], ["seen"]),
        helper.make_node("MatMul", ["matrix", "matrix"], ["folded"]),
        helper.make_node("Add", ["tokens", "tokens"], ["sum"]),
    ]
    inputs = {"image": [2, 3, 8, 8], "tokens": [4, 10, 6], "row": [1, 6]}
    inputs |= {"q": [2, 4, 10, 16], "k": [2, 4, 20, 16], "v": [2, 4, 20, 16]}
    outputs = {"features": [2, 5, 8, 8], "wide": [1, 6], "seen": [2, 4, 10, 16]}
    weights = {"kernel": (5, 3, 3, 3), "bias": (5,), "matrix": (6, 6)}
    counts = operations(_graph(tmp_path / "g.onnx", nodes, inputs, outputs, weights), {})
    assert counts == {
        "Conv": 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3),
        "MatMul": 2 * (4 * 10 * 6) * 6,
        "Gemm": 2 * 6 * 6,
        "Attention": 2 * (2 * 4 * 10 * 20 * 16) * 2,
    }


def test_attention_counts_the_same_in_three_dimensions(tmp_path: Path) -> None:
    heads = helper.make_node("Attention", ["q", "k", "v"], ["seen"], q_num_heads=4, kv_num_heads=4)
    inputs = {"q": [2, 10, 64], "k": [2, 20, 64], "v": [2, 20, 64]}
    graph = _graph(tmp_path / "g.onnx", [heads], inputs, {"seen": [2, 10, 64]})
    assert operations(graph, {}) == {"Attention": 2 * (2 * 4 * 10 * 20 * 16) * 2}


def test_variable_dimensions_take_their_sizes(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    inputs = {"a": ["2*windows*frames", 3], "b": [3, 5]}
    graph = _graph(tmp_path / "g.onnx", [node], inputs, {"c": ["2*windows*frames", 5]})
    assert operations(graph, {"windows": 2, "frames": 16}) == {"MatMul": 2 * 64 * 3 * 5}
    with pytest.raises(BundleError, match="MatMul c: the graph does not state the shape"):
        operations(graph, {"windows": 2})


def test_a_cached_step_computes_a_fraction_of_a_full_one() -> None:
    full, cached = (
        sum(operations(small_bundle() / f"{name}.onnx", {}).values())
        for name in ("denoise_step", "denoise_step_cached")
    )
    assert 0 < cached < full / 2


def test_spread_of_known_numbers() -> None:
    found = Spread.of([float(value) for value in range(101)])
    assert (found.median_ms, found.p5_ms, found.p95_ms, found.runs) == (50.0, 5.0, 95.0, 101)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_a_change_counts_where_the_ranges_lie_apart() -> None:
    before = Spread(10.0, 9.0, 11.0, 20)
    assert Spread(8.0, 7.0, 8.9, 20).against(before) == "faster"
    assert Spread(8.0, 7.0, 9.1, 20).against(before) == "within noise"
    assert Spread(12.0, 11.1, 13.0, 20).against(before) == "slower"


def test_warm_up_runs_are_not_timed() -> None:
    calls: list[int] = []
    times_ms = measure(lambda: calls.append(1), runs=3, warm_up=2)
    assert len(times_ms) == 3
    assert len(calls) == 5


def test_inputs_are_random_and_never_zero() -> None:
    tensors = [
        TensorInfo("latents", ("windows", 4, 2), np.dtype(np.float32)),
        TensorInfo("hidden", (2, 3), np.dtype(np.float16)),
        TensorInfo("timestep", (), np.dtype(np.int64)),
        TensorInfo("coefficients", (5,), np.dtype(np.float32)),
    ]
    made = random_inputs(tensors, {"windows": DimensionRange(1, 3, 4)})
    assert made["latents"].shape == (3, 4, 2)
    assert [made[tensor.name].dtype for tensor in tensors] == [tensor.dtype for tensor in tensors]
    assert all(np.all(array != 0) for array in made.values())
    assert np.unique(made["latents"]).size == made["latents"].size


def test_the_generated_part_is_the_lower_face() -> None:
    rows, columns = generated_part(128)
    assert 40 < rows.start < 60 < 110 < rows.stop < 128
    assert columns.start < 10
    assert columns.stop > 118
