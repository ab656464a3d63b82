"""Step graphs in 8 bits: their layers round weights and inputs."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from latentsync_trt.bundle.external import WeightsFile
from latentsync_trt.bundle.manifest import Bundle, GraphEntry
from latentsync_trt.quantize.calibration_options import CalibrateOptions, EightBit
from latentsync_trt.quantize.layers import Layer, layers_by_activation, layers_of, step_graphs
from latentsync_trt.quantize.ranges import ActivationRanges
from latentsync_trt.types import Float32Array

DTYPES: dict[EightBit, np.dtype[Any]] = {
    "int8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""8-bit types. FP8 has four exponent bits (E4M3), as TensorRT supports it."""

_LARGEST: dict[EightBit, float] = {"int8": 127.0, "fp8": 448.0}
"""The largest number that is used of each type."""

_SMALLEST_SCALE = 2.0**-14
"""float16's smallest normal number: smaller scales lose bits, and 0 would divide by zero."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundedWeights:
    """Weights of a layer in 8 bits."""

    eight_bit: NDArray[Any]
    """Of the weights' shape."""
    scales: NDArray[Any]
    """The scale of each output channel, `(O,)`, in the weights' own dtype."""


def _scale_of(amax: Float32Array | float, kind: EightBit, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns the scale that maps `amax` to the largest 8-bit number; same shape, in `dtype`."""
    scale = np.asarray(amax, np.float64) / _LARGEST[kind]
    return np.asarray(np.maximum(scale, _SMALLEST_SCALE), dtype)


def round_weights(weights: NDArray[Any], output_axis: int, kind: EightBit) -> RoundedWeights:
    """Returns weights in 8 bits, with a scale for each output channel."""
    exact = weights.astype(np.float32)
    others = tuple(axis for axis in range(weights.ndim) if axis != output_axis)
    largest = np.abs(exact).max(axis=others)
    scales = _scale_of(largest, kind, weights.dtype)
    exact /= np.expand_dims(scales.astype(np.float32), others)
    if kind == "int8":
        np.rint(exact, out=exact)
    # A scale that was rounded down puts the largest weight slightly out of range, which FP8's cast
    # would turn into NaN.
    np.clip(exact, -_LARGEST[kind], _LARGEST[kind], out=exact)
    return RoundedWeights(exact.astype(DTYPES[kind]), scales)


def write_steps(
    bundle: Bundle,
    ranges: ActivationRanges,
    options: CalibrateOptions,
    kept: Collection[str],
    folder: Path,
) -> dict[str, GraphEntry]:
    """Writes the step graphs with QuantizeLinear/DequantizeLinear pairs around all layers but those
    named in `kept`, and the weights that they use.

    Returns their entries in the manifest, without other forms.
    """
    entries = {}
    for name in step_graphs(bundle):
        entries[name] = replace(bundle.manifest.graphs[name], forms={})
    first = next(iter(entries.values()))
    weights = WeightsFile(folder / first.weights)
    quantizer = _Quantizer(ranges, options, weights)
    for name, entry in entries.items():
        model = ir.load(bundle.graph_path(name))
        quantizer.quantize(model, kept)
        weights.move_out(model)
        ir.save(model, folder / entry.file)
    return entries


class _Quantizer:
    """Rounds the layers of graphs; the weights of each layer are rounded once."""

    def __init__(
        self, ranges: ActivationRanges, options: CalibrateOptions, file: WeightsFile
    ) -> None:
        self._ranges = ranges
        self._percentile = options.percentile
        self._kind = options.precision
        self._file = file
        self._weights: dict[str, ir.ExternalTensor] = {}
        self._scales: dict[str, NDArray[Any]] = {}
        self._zero = np.zeros((), DTYPES[options.precision])

    def quantize(self, model: ir.Model, kept: Collection[str]) -> None:
        layers = [layer for layer in layers_of(model) if layer.name not in kept]
        for layer in layers:
            self._dequantize_weights(model.graph, layer)
        for activation, readers in layers_by_activation(layers).items():
            self._round_activation(model.graph, activation, readers)
        RemoveUnusedNodesPass()(model)

    def _dequantize_weights(self, graph: ir.Graph, layer: Layer) -> None:
        name = f"{layer.name}_{self._kind}"
        if layer.name not in self._weights:
            rounded = round_weights(layer.weights.numpy(), layer.output_axis, self._kind)
            tensor = ir.tensor(rounded.eight_bit, name=name)
            self._weights[layer.name] = self._file.add(tensor)
            self._scales[layer.name] = rounded.scales
        scales = self._scales[layer.name]
        zeros = np.full(scales.shape, self._zero)
        inputs = [
            _initializer(graph, name, self._weights[layer.name]),
            _initializer(graph, f"{layer.name}_scales", scales),
            _initializer(graph, f"{layer.name}_zeros", zeros),
        ]
        output = _output_like(inputs[0], inputs[1], f"{layer.name}_dequantized")
        _insert(layer.node, "DequantizeLinear", inputs, output, axis=layer.output_axis)
        layer.node.replace_input_with(1, output)

    def _round_activation(self, graph: ir.Graph, activation: ir.Value, layers: list[Layer]) -> None:
        """Inserts one pair before the layers that read an activation; its other readers keep the
        exact values.
        """
        # In other graphs layers may have observed a wider range of it: the widest serves all.
        ranges = [self._ranges[layer.name] for layer in layers]
        amax = max(span.amax(self._percentile) for span in ranges)
        dtype = self._scales[layers[0].name].dtype
        name = activation.name
        content = _scale_of(amax, self._kind, dtype)
        scale = _initializer(graph, f"{name}_scale", content)
        zero = _initializer(graph, f"{name}_zero", self._zero)
        first = layers[0].node
        eight_bit = _output_like(activation, zero, f"{name}_quantized")
        _insert(first, "QuantizeLinear", [activation, scale, zero], eight_bit)
        exact = _output_like(eight_bit, scale, f"{name}_dequantized")
        _insert(first, "DequantizeLinear", [eight_bit, scale, zero], exact)
        for layer in layers:
            layer.node.replace_input_with(0, exact)


def _initializer(graph: ir.Graph, name: str, content: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    tensor = ir.tensor(content, name=name)
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _output_like(shaped: ir.Value, typed: ir.Value, name: str) -> ir.Value:
    """Returns a new value with the shape of one value and the type of another."""
    return ir.Value(name=name, shape=shaped.shape, type=typed.type)


def _insert(
    before: ir.Node, op: str, inputs: list[ir.Value], output: ir.Value, **attributes: int
) -> None:
    node = ir.node(op, inputs, attributes, outputs=[output], name=f"{output.name}_node")
    if before.graph is not None:
        before.graph.insert_before(before, node)
