"""Step graphs in mixed precision: QuantizeLinear/DequantizeLinear pairs around most layers, the others unchanged.

Layers are convolutions and linear layers. Each is identified by the name of its weights, which is
the same in all step graphs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, GraphEntry
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import BundleError
from latentsync_trt.quantize.calibration_options import CalibrateOptions, EightBit
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.types import Float32Array

Sizes = tuple[int, ...]

DTYPES: dict[EightBit, np.dtype[Any]] = {"int8": np.dtype(np.int8), "fp8": np.dtype(ml_dtypes.float8_e4m3fn)}
"""FP8 with four exponent bits (E4M3), as TensorRT supports it."""

_LARGEST: dict[EightBit, float] = {"int8": 127.0, "fp8": 448.0}

# float16's smallest normal number: smaller scales lose bits, and 0 would divide by zero.
_SMALLEST_SCALE = 2.0**-14


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A Conv or MatMul node with weights of its own, `(O, I, kh, kw)` or `(I, O)`. `activation`: its input."""

    name: str
    node: ir.Node
    activation: ir.Value
    weights: ir.TensorProtocol

    @property
    def convolution(self) -> bool:
        """True for a convolution, False for a linear layer."""
        return self.node.op_type == "Conv"

    @property
    def output_axis(self) -> int:
        """The axis of the weights along which output channels lie."""
        return 0 if self.convolution else 1


def layers_of(model: ir.Model) -> tuple[Layer, ...]:
    """The layers of a graph, in its order."""
    layers = []
    for node in model.graph:
        if node.op_type in ("Conv", "MatMul"):
            activation, weights = node.inputs[:2]
            if activation is not None and weights is not None and weights.name and weights.const_value is not None:
                layers.append(Layer(weights.name, node, activation, weights.const_value))
    return tuple(layers)


def step_graphs(bundle: Bundle) -> tuple[str, ...]:
    """The names of a bundle's step graphs."""
    return tuple(name for name in STEP_GRAPHS if name in bundle.manifest.graphs)


def layer_names(bundle: Bundle) -> tuple[str, ...]:
    """The names of the layers of all step graphs, each once."""
    graphs = (ir.load(bundle.graph_path(name)) for name in step_graphs(bundle))
    return tuple(dict.fromkeys(layer.name for graph in graphs for layer in layers_of(graph)))


def usual_dimensions(bundle: Bundle) -> dict[str, int]:
    """Usual values of a bundle's variable dimensions, by name."""
    return {name: span.optimum for name, span in bundle.manifest.ranges.items()}


def sizes_of(value: ir.Value, dimensions: Mapping[str, int]) -> Sizes | None:
    """The shape of a value, None if the graph does not state it.

    Args:
        dimensions: values of the variable dimensions; shapes may contain expressions such as "2*windows*frames".
    """
    if value.shape is None:
        return None
    sizes = value.shape.evaluate(dimensions)
    return sizes.numpy() if sizes.is_static() else None


def multiply_adds(bundle: Bundle, graph: str) -> dict[str, int]:
    """Multiply-adds of each layer of a step graph, by name; variable dimensions at their usual values.

    Raises:
        BundleError: the graph does not state the shape of a layer's output.
    """
    counts: dict[str, int] = {}
    dimensions = usual_dimensions(bundle)
    for layer in layers_of(ir.load(bundle.graph_path(graph))):
        sizes, weights = sizes_of(layer.node.outputs[0], dimensions), layer.weights.shape.numpy()
        if sizes is None:
            raise BundleError(f"{graph}: states no shape for the output of {layer.node.name}; export the model again")
        counts[layer.name] = prod(sizes) * prod(weights[1:] if layer.convolution else weights[:1])
    return counts


def scale_of(amax: Float32Array | float, kind: EightBit, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The scale that maps `amax` to the largest 8-bit number; same shape, in `dtype`."""
    return np.asarray(np.maximum(np.asarray(amax, np.float64) / _LARGEST[kind], _SMALLEST_SCALE), dtype)


def round_weights(weights: NDArray[Any], output_axis: int, kind: EightBit) -> tuple[NDArray[Any], NDArray[Any]]:
    """8-bit weights of the same shape, and the per-channel scales `(O,)` in the weights' dtype."""
    exact = weights.astype(np.float32)
    others = tuple(axis for axis in range(weights.ndim) if axis != output_axis)
    scales = scale_of(np.abs(exact).max(axis=others), kind, weights.dtype)
    exact /= np.expand_dims(scales.astype(np.float32), others)
    if kind == "int8":
        np.rint(exact, out=exact)
    # A scale that was rounded down puts the largest weight slightly out of range, which FP8's cast would turn into NaN.
    np.clip(exact, -_LARGEST[kind], _LARGEST[kind], out=exact)
    return exact.astype(DTYPES[kind]), scales


def write_steps(
    bundle: Bundle, ranges: Ranges, options: CalibrateOptions, kept: Collection[str], folder: Path
) -> dict[str, GraphEntry]:
    """Writes the step graphs with all layers but those named in `kept` in 8 bits, and the weights that they use.

    Returns their entries in the manifest, without other forms.
    """
    entries = {name: replace(bundle.manifest.graphs[name], forms={}) for name in step_graphs(bundle)}
    for file in {entry.weights for entry in entries.values()}:
        with WeightsFile(folder / file) as weights:
            quantizer = _Quantizer(ranges, options, weights)
            for name, entry in entries.items():
                if entry.weights == file:
                    model = ir.load(bundle.graph_path(name))
                    quantizer.quantize(model, kept)
                    weights.move_out(model)
                    ir.save(model, folder / entry.file)
    return entries


class _Quantizer:
    """Rounds the layers of graphs that share one weights file; the weights of each layer are rounded once."""

    def __init__(self, ranges: Ranges, options: CalibrateOptions, file: WeightsFile) -> None:
        self._ranges, self._options, self._file = ranges, options, file
        self._rounded: dict[str, tuple[ir.ExternalTensor, NDArray[Any]]] = {}
        self._zero = np.zeros((), DTYPES[options.precision])

    def quantize(self, model: ir.Model, kept: Collection[str]) -> None:
        readers: dict[ir.Value, list[Layer]] = {}
        for layer in layers_of(model):
            if layer.name not in kept:
                self._dequantize_weights(model.graph, layer)
                readers.setdefault(layer.activation, []).append(layer)
        for activation, layers in readers.items():
            self._round_activation(model.graph, activation, layers)
        RemoveUnusedNodesPass()(model)

    def _dequantize_weights(self, graph: ir.Graph, layer: Layer) -> None:
        if layer.name not in self._rounded:
            eight_bit, scales = round_weights(layer.weights.numpy(), layer.output_axis, self._options.precision)
            tensor = ir.tensor(eight_bit, name=f"{layer.name}_{self._options.precision}")
            self._rounded[layer.name] = self._file.add(tensor), scales
        tensor, scales = self._rounded[layer.name]
        inputs = [
            _initializer(graph, f"{layer.name}_{self._options.precision}", tensor),
            _initializer(graph, f"{layer.name}_scales", scales),
            _initializer(graph, f"{layer.name}_zeros", np.full(scales.shape, self._zero)),
        ]
        exact = ir.Value(name=f"{layer.name}_dequantized", shape=inputs[0].shape, type=inputs[1].type)
        axis = {"axis": layer.output_axis}
        node = ir.node("DequantizeLinear", inputs, axis, outputs=[exact], name=f"{exact.name}_node")
        graph.insert_before(layer.node, node)
        layer.node.replace_input_with(1, exact)

    def _round_activation(self, graph: ir.Graph, activation: ir.Value, layers: list[Layer]) -> None:
        """Inserts one pair before the layers that read an activation; its other readers keep the exact values."""
        # In other graphs layers may have observed a wider range of it: the widest serves all.
        amax = max(self._ranges[layer.name].amax(self._options.percentile) for layer in layers)
        dtype = self._rounded[layers[0].name][1].dtype
        scale = _initializer(graph, f"{activation.name}_scale", scale_of(amax, self._options.precision, dtype))
        zero = _initializer(graph, f"{activation.name}_zero", self._zero)
        eight_bit = ir.Value(name=f"{activation.name}_quantized", shape=activation.shape, type=zero.type)
        exact = ir.Value(name=f"{activation.name}_dequantized", shape=activation.shape, type=scale.type)
        nodes = [
            ir.node("QuantizeLinear", [activation, scale, zero], outputs=[eight_bit], name=f"{eight_bit.name}_node"),
            ir.node("DequantizeLinear", [eight_bit, scale, zero], outputs=[exact], name=f"{exact.name}_node"),
        ]
        graph.insert_before(layers[0].node, nodes)
        for layer in layers:
            layer.node.replace_input_with(0, exact)


def _initializer(graph: ir.Graph, name: str, content: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    tensor = ir.tensor(content, name=name) if isinstance(content, np.ndarray) else content
    value = ir.Value(name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
    value.const_value = tensor
    graph.register_initializer(value)
    return value
