"""Attention in slices: the same numbers, with the scores of a slice in memory instead of all."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from latentsync_trt.quantize.shapes import shapes_of
from latentsync_trt.quantize.slices import slice_attention

BATCH, HEADS, TOKENS, WIDTH = 5, 2, 6, 4
SCORES_BYTES = HEADS * TOKENS * TOKENS * 4
"""Of one entry of the batch."""


def attention(batch: int | str = BATCH, **attributes: float) -> onnx.ModelProto:
    shape = [batch, HEADS, TOKENS, WIDTH]
    q, k, v, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("q", "k", "v", "out"))
    node = helper.make_node("Attention", ["q", "k", "v"], ["out"], name="attention", **attributes)
    graph = helper.make_graph([node], "graph", [q, k, v], [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def run(model: onnx.ModelProto) -> NDArray[np.float32]:
    onnx.checker.check_model(model)
    random = np.random.default_rng(4)
    inputs = {name: random.standard_normal((BATCH, HEADS, TOKENS, WIDTH), np.float32) for name in "qkv"}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, inputs)
    return np.asarray(out)


def slices(model: onnx.ModelProto) -> list[int]:
    """How much of the batch each takes."""
    (sizes,) = model.graph.initializer
    return [int(size) for size in onnx.numpy_helper.to_array(sizes)]


@pytest.mark.parametrize(
    ("most_bytes", "wanted"),
    [(SCORES_BYTES, [1, 1, 1, 1, 1]), (2 * SCORES_BYTES, [2, 2, 1]), (SCORES_BYTES - 1, [1, 1, 1, 1, 1])],
)
def test_slices_compute_what_the_whole_does(most_bytes: int, wanted: list[int]) -> None:
    plain, sliced = attention(scale=0.7), attention(scale=0.7)
    slice_attention(sliced, shapes_of(sliced, {}), most_bytes)
    assert slices(sliced) == wanted
    assert [node.op_type for node in sliced.graph.node].count("Attention") == len(wanted)
    np.testing.assert_array_equal(run(sliced), run(plain))


def test_what_fits_or_is_not_known_stays_whole() -> None:
    for model, most_bytes in ((attention(), BATCH * SCORES_BYTES), (attention("batch"), 1)):
        before = model.SerializeToString()
        slice_attention(model, shapes_of(model, {}), most_bytes)
        assert model.SerializeToString() == before
    variable = attention("batch")
    slice_attention(variable, shapes_of(variable, {"batch": BATCH}), SCORES_BYTES)
    assert slices(variable) == [1] * BATCH
