"""A bundle with one step graph of one block: a convolution with a skip connection around it, and a linear layer whose
input is also an output of the graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from latentsync_trt.bundle.manifest import Bundle, FileEntry, GraphEntry, Manifest, TensorEntry, sha256_file
from latentsync_trt.quantize.ranges import ActivationRange, Ranges

SIDE = 4
CONVOLUTION, BIAS, LINEAR = "net.conv.weight", "net.conv.bias", "net.to_q.weight"
GRAPH = "denoise_step"


def write_block(folder: Path, channels: int = 8, dtype: type[np.floating] = np.float32) -> Bundle:
    """Writes the bundle into a new folder, its weights into a file of their own; `dtype`: of its layers.

    It lacks all graphs but the step.
    """
    folder.mkdir(parents=True)
    latents = TensorEntry("latents", "float32", (1, channels, SIDE, SIDE))
    hidden = TensorEntry("hidden", np.dtype(dtype).name, (1, SIDE * SIDE, channels))
    following = TensorEntry("next_latents", "float32", (1, SIDE * SIDE, channels))
    model = _model(latents, (following, hidden), weights(channels), dtype)
    onnx.save(
        model,
        folder / f"{GRAPH}.onnx",
        save_as_external_data=True,
        location="unet.weights",
        size_threshold=60,  # with the 33 bytes that Python adds: shapes stay in the graph, float32 biases do not
    )
    manifest = Manifest(
        name="block",
        model="block",
        resolution_px=8 * SIDE,
        frames=1,
        precision="fp16" if dtype is np.float16 else "fp32",
        shapes="static",
        audio_layers=1,
        audio_width=1,
        opset=23,
        unet={},
        graphs={GRAPH: GraphEntry(f"{GRAPH}.onnx", "unet.weights", (latents,), (following, hidden))},
        files={path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in folder.iterdir()},
    )
    return Bundle(folder, manifest)


def weights(channels: int = 8) -> dict[str, NDArray[np.float32]]:
    """Of the layers, and the convolution's bias, by name; activations stay near one."""
    random = np.random.default_rng(5)
    conv = random.standard_normal((channels, channels, 3, 3), np.float32) / np.float32(np.sqrt(9 * channels))
    linear = random.standard_normal((channels, channels), np.float32) / np.float32(np.sqrt(channels))
    return {CONVOLUTION: conv, LINEAR: linear, BIAS: random.standard_normal(channels, np.float32) / 4}


def ranges(channels: int = 8, amax: float = 4.0) -> Ranges:
    """Calibration ranges in which every channel of every input reaches `amax`."""
    return {name: reaching(np.full(channels, amax, np.float32)) for name in (CONVOLUTION, LINEAR)}


def reaching(channel_amax: NDArray[np.float32]) -> ActivationRange:
    """The range of an input whose channels reach these values."""
    return ActivationRange.of_step(channel_amax, channel_amax)


def latents(channels: int = 8) -> NDArray[np.float32]:
    """An input of the step."""
    return np.random.default_rng(6).standard_normal((1, channels, SIDE, SIDE), np.float32)


def _model(source: TensorEntry, outputs: tuple[TensorEntry, ...], tensors: dict[str, Any], dtype: Any) -> Any:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    channels = source.shape[1]
    nodes = [
        helper.make_node("Cast", ["latents"], ["state"], to=element),
        helper.make_node("Conv", ["state", CONVOLUTION, BIAS], ["convolved"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["convolved", "state"], ["sum"], name="skip"),
        helper.make_node("Reshape", ["sum", "flat"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["hidden"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["hidden", LINEAR], ["q"], name="to_q"),
        helper.make_node("Cast", ["q"], ["next_latents"], to=TensorProto.FLOAT),
    ]
    stated = {
        "state": source.shape,
        "convolved": source.shape,
        "sum": source.shape,
        "rows": (1, channels, SIDE * SIDE),
        "q": (1, SIDE * SIDE, channels),
    }
    constants = [numpy_helper.from_array(value.astype(dtype), name) for name, value in tensors.items()]
    flat = numpy_helper.from_array(np.array([1, channels, SIDE * SIDE], np.int64), "flat")
    infos = [
        helper.make_tensor_value_info(entry.name, helper.np_dtype_to_tensor_dtype(np.dtype(entry.dtype)), entry.shape)
        for entry in (source, *outputs)
    ]
    graph = helper.make_graph(
        nodes,
        GRAPH,
        infos[:1],
        infos[1:],
        [*constants, flat],
        value_info=[helper.make_tensor_value_info(name, element, shape) for name, shape in stated.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model)
    return model
