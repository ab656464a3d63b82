"""Step graphs that also tell how large the inputs of their layers are.

They are reduced inside the graph: at full size the inputs of a single step are 19 GB.
"""

from collections.abc import Mapping
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError, OutputError
from latentsync_trt.quantize.layers import Layer, layers_of
from latentsync_trt.quantize.shapes import shapes_of
from latentsync_trt.quantize.slices import slice_attention
from latentsync_trt.runtime.networks.observer import ObservedGraph, ObservedTensor

SAMPLE = 1 << 16
"""Most values of a tensor that a step gives out: its 99.99th percentile is then within 4 % of that of all values."""

_WINDOWS = "windows"  # the dimension that counts them

_CONSTANTS = {"observed.all": -1, "observed.first": 0, "observed.end": np.iinfo(np.int64).max}


def write_observed(bundle: Bundle, graph: str, folder: Path) -> ObservedGraph:
    """Writes the step graph `graph` of `bundle`, observed, to `folder`; it reads the bundle's own weights.

    Variable dimensions are fixed: one window, all others as they usually are.

    Raises:
        BundleError: the graph cannot be read, or does not say how large its tensors are.
        OutputError: it cannot be written.
    """
    source, path = bundle.graph_path(graph), folder / f"{graph}.onnx"
    dimensions = {name: span.optimum for name, span in bundle.manifest.ranges.items()}
    dimensions |= {_WINDOWS: 1} if dimensions else {}
    try:
        model = onnx.load(source, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise BundleError(f"{source}: cannot be read as an ONNX graph; export the model again") from error
    shapes = shapes_of(model, dimensions)
    slice_attention(model, shapes)
    readers: dict[str, list[Layer]] = {}
    for layer in layers_of(model):
        readers.setdefault(layer.activation, []).append(layer)
    _add_constants(model, _CONSTANTS)
    tensors = []
    for name, layers in readers.items():
        if name not in shapes:
            raise BundleError(f"{source}: does not say how large {name} is, which {layers[0].node} reads; export again")
        tensors.append(_observe(model, name, layers, shapes[name]))
    try:
        onnx.save(model, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror})") from error
    return ObservedGraph(path, bundle.folder, tuple(tensors), dimensions)


def sample_stride(shape: tuple[int, ...], channel_axis: int, sample: int = SAMPLE) -> int:
    """Every how many-th value of a tensor makes a sample of about `sample` values that meets all channels alike."""
    stride = max(1, prod(shape) // sample)
    # With a factor in common, the values would come from the same channels, or the same columns, again and again.
    while gcd(stride, prod(shape[channel_axis:])) != 1:
        stride += 1
    return stride


def _observe(model: Any, name: str, layers: list[Layer], shape: tuple[int, ...]) -> ObservedTensor:
    """Adds to `model` what tells of the tensor `name`."""
    axis = 1 if layers[0].convolution else len(shape) - 1
    own = f"{name}.observed"
    others = np.array([i for i in range(len(shape)) if i != axis], np.int64)
    stride = np.array([sample_stride(shape, axis)], np.int64)
    model.graph.initializer.extend(
        [numpy_helper.from_array(others, f"{own}.axes"), numpy_helper.from_array(stride, f"{own}.stride")]
    )
    every = ["observed.first", "observed.end", "observed.first", f"{own}.stride"]
    model.graph.node.extend(
        [
            helper.make_node("Abs", [name], [f"{own}.abs"]),
            helper.make_node("ReduceMax", [f"{own}.abs", f"{own}.axes"], [f"{own}.amax"], keepdims=0),
            helper.make_node("Reshape", [f"{own}.abs", "observed.all"], [f"{own}.flat"]),
            helper.make_node("Slice", [f"{own}.flat", *every], [f"{own}.sample"]),
        ]
    )
    dtype = _dtype_of(model, layers[0].weight)
    model.graph.output.extend(
        [
            helper.make_tensor_value_info(f"{own}.amax", dtype, [shape[axis]]),
            helper.make_tensor_value_info(f"{own}.sample", dtype, [-(-prod(shape) // int(stride[0]))]),
        ]
    )
    return ObservedTensor(tuple(layer.weight for layer in layers), f"{own}.amax", f"{own}.sample")


def _dtype_of(model: Any, weight: str) -> int:
    """The element type of a layer's weights, which is that of its input."""
    return next(entry.data_type for entry in model.graph.initializer if entry.name == weight)


def _add_constants(model: Any, constants: Mapping[str, int]) -> None:
    model.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in constants.items()
    )
