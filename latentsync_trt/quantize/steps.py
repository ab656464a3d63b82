"""Step graphs in mixed precision: QuantizeLinear/DequantizeLinear pairs around some layers, the others unchanged.

Every weight is rounded once and stored in a file, so that another choice of layers only needs a new graph.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.quantize.layers import Layer, layers_of
from latentsync_trt.quantize.options import CalibrateOptions
from latentsync_trt.quantize.ranges import Ranges
from latentsync_trt.quantize.rounding import DTYPES, round_weights, scale_of, smoothing_divisors


def step_graphs(bundle: Bundle) -> tuple[str, ...]:
    """The names of a bundle's step graphs."""
    return tuple(name for name in STEP_GRAPHS if name in bundle.manifest.graphs)


@dataclass(frozen=True, slots=True, eq=False)
class _Rounded:
    """A layer in 8 bits: `weights` with `scales (O,)`, `amax` of its input, SmoothQuant's `factors (I,)` if any."""

    weights: ir.ExternalTensor
    scales: NDArray[Any]
    amax: float
    factors: NDArray[Any] | None


class QuantizedSteps:
    """Step graphs of a bundle with some layers in 8 bits; a context manager.

    Args:
        ranges: calibration ranges of the layers. options: precision, percentile, smoothing, and what to keep.
        folder: exists; takes the 8-bit weights and, for `write`, a copy of the bundle's.
    """

    def __init__(self, bundle: Bundle, ranges: Ranges, options: CalibrateOptions, folder: Path) -> None:
        self.bundle, self.folder = bundle, folder
        self._ranges, self._options = ranges, options
        self._rounded: dict[str, _Rounded] = {}
        self._weights = WeightsFile(folder / "eight_bit.weights")

    def __enter__(self) -> Self:
        self._weights.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._weights.__exit__()

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers of all graphs, each once."""
        graphs = (ir.load(self.bundle.graph_path(name)) for name in step_graphs(self.bundle))
        return tuple(dict.fromkeys(layer.name for graph in graphs for layer in layers_of(graph)))

    def kept(self) -> tuple[str, ...]:
        """The names of the layers that the options keep in the bundle's own precision."""
        return tuple(name for name in self.layers if self._options.keeps(name))

    def write(self, graph: str, kept: Collection[str]) -> Path:
        """Writes a graph with its weights beside it; returns its file. Arguments as for `model`."""
        path = self.folder / f"{graph}.onnx"
        weights = self.bundle.manifest.graphs[graph].weights
        if not (self.folder / weights).exists():
            shutil.copyfile(self.bundle.folder / weights, self.folder / weights)
        ir.save(self.model(graph, kept), path)
        return path

    def model(self, graph: str, kept: Collection[str]) -> ir.Model:
        """A graph in which all layers but those named in `kept` are in 8 bits."""
        model = ir.load(self.bundle.graph_path(graph))
        readers: dict[ir.Value, list[Layer]] = {}
        for layer in layers_of(model):
            if layer.name not in kept:
                self._dequantize_weights(model.graph, layer)
                readers.setdefault(self._smoothed(model.graph, layer), []).append(layer)
        for activation, layers in readers.items():
            self._round_activation(model.graph, activation, layers)
        RemoveUnusedNodesPass()(model)
        return model

    def _round(self, layer: Layer) -> _Rounded:
        if layer.name not in self._rounded:
            self._rounded[layer.name] = self._round_anew(layer)
        return self._rounded[layer.name]

    def _round_anew(self, layer: Layer) -> _Rounded:
        found, options = self._ranges[layer.name], self._options
        weights, amax, factors = layer.weights.numpy(), found.amax(options.percentile), None
        if options.smooth is not None and not layer.convolution:
            factors = (1 / smoothing_divisors(found.channel_amax, weights, options.smooth)).astype(weights.dtype)
            exact = factors.astype(np.float32)
            weights = (weights.astype(np.float32) / exact[:, None]).astype(weights.dtype)
            # The smoothed input is clipped by the same share as the percentile clips the original one.
            amax *= float((found.channel_amax * exact).max() / max(float(found.channel_amax.max()), 1e-30))
        eight_bit, scales = round_weights(weights, layer.output_axis, options.precision)
        tensor = ir.tensor(eight_bit, name=f"{layer.name}_{options.precision}")
        return _Rounded(self._weights.add(tensor), scales, amax, factors)

    def _dequantize_weights(self, graph: ir.Graph, layer: Layer) -> None:
        rounded = self._round(layer)
        weights = _initializer(graph, f"{layer.name}_{self._options.precision}", rounded.weights)
        scales = _initializer(graph, f"{layer.name}_scales", rounded.scales)
        zeros = _initializer(graph, f"{layer.name}_zeros", np.zeros(rounded.scales.shape, self._dtype))
        exact = ir.Value(name=f"{layer.name}_dequantized", shape=weights.shape, type=scales.type)
        inputs, axis = [weights, scales, zeros], {"axis": layer.output_axis}
        node = ir.node("DequantizeLinear", inputs, axis, outputs=[exact], name=f"{exact.name}_node")
        graph.insert_before(layer.node, node)
        layer.node.replace_input_with(1, exact)

    def _smoothed(self, graph: ir.Graph, layer: Layer) -> ir.Value:
        """The input of a layer, multiplied by its factors, if any."""
        factors = self._round(layer).factors
        if factors is None:
            return layer.activation
        value = _initializer(graph, f"{layer.name}_smoothing", factors)
        product = ir.Value(name=f"{layer.name}_smoothed", shape=layer.activation.shape, type=layer.activation.type)
        node = ir.node("Mul", [layer.activation, value], outputs=[product], name=f"{layer.node.name}_smoothing")
        graph.insert_before(layer.node, node)
        return product

    def _round_activation(self, graph: ir.Graph, activation: ir.Value, layers: list[Layer]) -> None:
        """Inserts one pair before the layers that read an activation; its other readers keep the exact values."""
        rounded = [self._round(layer) for layer in layers]
        # In other graphs layers may have observed a wider range of it: the widest serves all.
        amax, dtype = max(one.amax for one in rounded), rounded[0].scales.dtype
        scale = _initializer(graph, f"{activation.name}_scale", scale_of(amax, self._options.precision, dtype))
        zero = _initializer(graph, f"{activation.name}_zero", np.zeros((), self._dtype))
        eight_bit = ir.Value(name=f"{activation.name}_quantized", shape=activation.shape, type=zero.type)
        exact = ir.Value(name=f"{activation.name}_dequantized", shape=activation.shape, type=scale.type)
        nodes = [
            ir.node("QuantizeLinear", [activation, scale, zero], outputs=[eight_bit], name=f"{eight_bit.name}_node"),
            ir.node("DequantizeLinear", [eight_bit, scale, zero], outputs=[exact], name=f"{exact.name}_node"),
        ]
        graph.insert_before(layers[0].node, nodes)
        for layer in layers:
            layer.node.replace_input_with(0, exact)

    @property
    def _dtype(self) -> np.dtype[Any]:
        return DTYPES[self._options.precision]


def _initializer(graph: ir.Graph, name: str, content: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    tensor = ir.tensor(content, name=name) if isinstance(content, np.ndarray) else content
    value = ir.Value(name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype))
    value.const_value = tensor
    graph.register_initializer(value)
    return value
