"""A bundle of variable shapes whose step graph has a convolution, and two linear layers that read the same tensor."""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from latentsync_trt.bundle.manifest import Bundle, DimensionRange, GraphEntry, TensorEntry
from tests.toy import DEPTH, FRAMES, TOKENS, WIDTH, bundle_of

CONVOLUTION, LINEAR, OTHER = "net.conv.weight", "net.to_q.weight", "net.to_kv.weight"

_STATE = ("windows", 4, "frames", WIDTH, WIDTH)
_INPUTS = (
    TensorEntry("latents", "float32", _STATE),
    TensorEntry("audio", "float32", ("windows", "frames", TOKENS, DEPTH)),
    TensorEntry("history", "float32", _STATE),
)
_OUTPUTS = (TensorEntry("next_latents", "float32", _STATE), TensorEntry("next_history", "float32", _STATE))


def write_layers(folder: Path, dtype: type[np.floating] = np.float32, *, largest_windows: int = 4) -> Bundle:
    """Writes the bundle into a new folder; `dtype`: of its layers."""
    folder.mkdir(parents=True)
    entry = _write(folder, dtype)
    # Most runs of such a bundle would take two windows at once.
    ranges = {"windows": DimensionRange(1, 2, largest_windows), "frames": DimensionRange(2, FRAMES, 8)}
    return bundle_of(folder, "layers", {"denoise_step": entry}, ranges)


def weights() -> dict[str, NDArray[np.float32]]:
    """Of the layers, by name."""
    random = np.random.default_rng(3)
    shapes = {CONVOLUTION: (4, 4, 1, 1), LINEAR: (DEPTH, 2), OTHER: (DEPTH, 3)}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _write(folder: Path, dtype: type[np.floating]) -> GraphEntry:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Cast", ["latents"], ["state"], to=element),
        helper.make_node("Transpose", ["state"], ["frames_first"], perm=[0, 2, 1, 3, 4]),
        helper.make_node("Reshape", ["frames_first", "pictures"], ["flat"]),
        helper.make_node("Conv", ["flat", CONVOLUTION], ["convolved"], name="conv"),
        helper.make_node("Cast", ["audio"], ["features"], to=element),
        helper.make_node("MatMul", ["features", LINEAR], ["q"], name="to_q"),
        helper.make_node("MatMul", ["features", OTHER], ["kv"], name="to_kv"),
        *(helper.make_node("ReduceMean", [name], [f"{name}_mean"], keepdims=0) for name in ("convolved", "q", "kv")),
        helper.make_node("Sum", ["convolved_mean", "q_mean", "kv_mean"], ["update"]),
        helper.make_node("Cast", ["update"], ["exact"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["latents", "exact"], ["next_latents"]),
        helper.make_node("Add", ["history", "latents"], ["next_history"]),
    ]
    constants = [numpy_helper.from_array(value.astype(dtype), name) for name, value in weights().items()]
    pictures = numpy_helper.from_array(np.array([-1, 4, WIDTH, WIDTH], np.int64), "pictures")
    inputs, outputs = ([_info(entry) for entry in entries] for entries in (_INPUTS, _OUTPUTS))
    stated = [
        helper.make_tensor_value_info("flat", element, ["windows*frames", 4, WIDTH, WIDTH]),
        helper.make_tensor_value_info("features", element, ["windows", "frames", TOKENS, DEPTH]),
    ]
    graph = helper.make_graph(nodes, "denoise_step", inputs, outputs, [*constants, pictures], value_info=stated)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "denoise_step.onnx")
    return GraphEntry("denoise_step.onnx", "unet.weights", _INPUTS, _OUTPUTS)


def _info(entry: TensorEntry) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(entry.name, TensorProto.FLOAT, entry.shape)
