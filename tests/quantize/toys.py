"""Two bundles of one small step graph each.

Block: a convolution with a skip connection around it, and a linear layer whose input is also an
output of the graph. Layers: variable shapes, a convolution, and two linear layers that read the
same tensor.
"""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from latentsync_trt.bundle.manifest import Bundle, DimensionRange, GraphEntry, TensorEntry
from latentsync_trt.quantize.ranges import ActivationRange, ActivationRanges
from tests.toy import DEPTH, FRAMES, TOKENS, WIDTH, bundle_of

GRAPH = "denoise_step"
SIDE = 4
CONVOLUTION = "net.conv.weight"
BIAS = "net.conv.bias"
LINEAR = "net.to_q.weight"
OTHER = "net.to_kv.weight"

_BLOCK = """
denoise_step (float[1,{c},4,4] latents) => (float[1,16,{c}] next_latents, {t}[1,16,{c}] hidden)
<{t}[1,{c},4,4] state, {t}[1,{c},4,4] convolved, {t}[1,{c},4,4] sum, {t}[1,{c},16] rows,
 {t}[1,16,{c}] q,
 int64[3] flat = {{1, {c}, 16}}>
{{
  state = Cast<to = {e}>(latents)
  [conv] convolved = Conv<pads = [1, 1, 1, 1]>(state, "net.conv.weight", "net.conv.bias")
  [skip] sum = Add(convolved, state)
  rows = Reshape(sum, flat)
  hidden = Transpose<perm = [0, 2, 1]>(rows)
  [to_q] q = MatMul(hidden, "net.to_q.weight")
  next_latents = Cast<to = 1>(q)
}}
"""

_LAYERS = """
denoise_step (float["windows",4,"frames",2,2] latents, float["windows","frames",3,5] audio,
              float["windows",4,"frames",2,2] history)
=> (float["windows",4,"frames",2,2] next_latents, float["windows",4,"frames",2,2] next_history)
<{t}["windows*frames",4,2,2] flat, {t}["windows","frames",3,5] features,
 {t}["windows*frames",4,2,2] convolved,
 {t}["windows","frames",3,2] q, {t}["windows","frames",3,3] kv, int64[4] pictures = {{-1, 4, 2, 2}}>
{{
  state = Cast<to = {e}>(latents)
  frames_first = Transpose<perm = [0, 2, 1, 3, 4]>(state)
  flat = Reshape(frames_first, pictures)
  [conv] convolved = Conv(flat, "net.conv.weight")
  features = Cast<to = {e}>(audio)
  [to_q] q = MatMul(features, "net.to_q.weight")
  [to_kv] kv = MatMul(features, "net.to_kv.weight")
  convolved_mean = ReduceMean<keepdims = 0>(convolved)
  q_mean = ReduceMean<keepdims = 0>(q)
  kv_mean = ReduceMean<keepdims = 0>(kv)
  update = Sum(convolved_mean, q_mean, kv_mean)
  exact = Cast<to = 1>(update)
  next_latents = Add(latents, exact)
  next_history = Add(history, latents)
}}
"""

_STATE = ("windows", 4, "frames", WIDTH, WIDTH)
_LAYERS_INPUTS = (
    TensorEntry("latents", "float32", _STATE),
    TensorEntry("audio", "float32", ("windows", "frames", TOKENS, DEPTH)),
    TensorEntry("history", "float32", _STATE),
)
_LAYERS_OUTPUTS = (
    TensorEntry("next_latents", "float32", _STATE),
    TensorEntry("next_history", "float32", _STATE),
)


def write_block(folder: Path, channels: int = 8, dtype: type[np.floating] = np.float32) -> Bundle:
    """Writes the block's bundle into a new folder; `dtype`: of its layers."""
    inputs = (TensorEntry("latents", "float32", (1, channels, SIDE, SIDE)),)
    shape = (1, SIDE * SIDE, channels)
    outputs = (
        TensorEntry("next_latents", "float32", shape),
        TensorEntry("hidden", np.dtype(dtype).name, shape),
    )
    _write(folder, _BLOCK, block_weights(channels), dtype)
    entry = GraphEntry(f"{GRAPH}.onnx", "unet.weights", inputs, outputs)
    return bundle_of(folder, "block", {GRAPH: entry}, {})


def write_layers(folder: Path, dtype: type[np.floating] = np.float32) -> Bundle:
    """Writes the layers' bundle into a new folder; `dtype`: of its layers."""
    random = np.random.default_rng(3)
    shapes = {CONVOLUTION: (4, 4, 1, 1), LINEAR: (DEPTH, 2), OTHER: (DEPTH, 3)}
    _write(
        folder,
        _LAYERS,
        {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()},
        dtype,
    )
    entry = GraphEntry(f"{GRAPH}.onnx", "unet.weights", _LAYERS_INPUTS, _LAYERS_OUTPUTS)
    # Most runs of such a bundle would take two windows at once.
    ranges = {"windows": DimensionRange(1, 2, 4), "frames": DimensionRange(2, FRAMES, 8)}
    return bundle_of(folder, "layers", {GRAPH: entry}, ranges)


def _write(
    folder: Path, text: str, weights: dict[str, NDArray[np.float32]], dtype: type[np.floating]
) -> None:
    folder.mkdir(parents=True)
    names = {np.float32: "float", np.float16: "float16"}
    fields = {
        "t": names[dtype],
        "e": helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
        "c": len(weights[CONVOLUTION]),
    }
    model = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 23]>' + text.format(**fields)
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(dtype), name) for name, value in weights.items()
    )
    onnx.checker.check_model(model)
    onnx.save(model, folder / f"{GRAPH}.onnx")


def block_weights(channels: int = 8) -> dict[str, NDArray[np.float32]]:
    """Of the block's layers, and the convolution's bias, by name; activations stay near one."""
    random = np.random.default_rng(5)
    conv = random.standard_normal((channels, channels, 3, 3), np.float32) / np.float32(
        np.sqrt(9 * channels)
    )
    linear = random.standard_normal((channels, channels), np.float32) / np.float32(
        np.sqrt(channels)
    )
    return {
        CONVOLUTION: conv,
        LINEAR: linear,
        BIAS: random.standard_normal(channels, np.float32) / 4,
    }


def block_latents(channels: int = 8) -> NDArray[np.float32]:
    """An input of the block."""
    return np.random.default_rng(6).standard_normal((1, channels, SIDE, SIDE), np.float32)


def block_ranges() -> ActivationRanges:
    """Calibration ranges in which the inputs of the block reach 4."""
    return {name: reaching(4.0) for name in (CONVOLUTION, LINEAR)}


def layers_ranges(amax: float = 1.0, other_amax: float = 1.0) -> ActivationRanges:
    """The same for the layers; `other_amax`: of the second linear layer, which reads what the first
    does.
    """
    return {CONVOLUTION: reaching(amax), LINEAR: reaching(amax), OTHER: reaching(other_amax)}


def reaching(amax: float) -> ActivationRange:
    """The range of an input that reaches this value."""
    return ActivationRange.of_step(amax, np.full(1, amax, np.float32))
