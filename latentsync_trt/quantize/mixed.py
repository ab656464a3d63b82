"""The steps of a bundle with some layers in eight bits and the others as they were, in a folder to work in.

Where pairs go is found out once a graph, with all layers in eight bits; weights are rounded once each. A choice of
layers to keep then costs the writing of a graph without weights, so that many choices can be tried.
"""

import shutil
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.external_data_helper import load_external_data_for_tensor
from onnx_ir.passes.common import RemoveUnusedNodesPass

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import InputError
from latentsync_trt.quantize.cast import DTYPES, cast_weight, scale_of
from latentsync_trt.quantize.insert import Pair, pair_of, weight_source, with_pairs
from latentsync_trt.quantize.layers import Layer, layers_of
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.ranges import LayerInput, Ranges
from latentsync_trt.quantize.smooth import divisors, with_factors

STEP_PREFIX = "denoise_step"

_EIGHT_BIT_WEIGHTS = "eight_bit.weights"
_INFERRED = "onnx.infer"
"""What ONNX Runtime's quantizer is told, and what nobody else need know."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cast:
    """One layer's numbers: `weight` in eight bits, `scales (O,)`, `amax` of its input, `factor (I,)` for its input."""

    weight: ir.ExternalTensor
    scales: NDArray[Any]
    amax: float
    factor: NDArray[Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A graph with every layer that has a range in eight bits; `originals`: by node, its layer as it was, and the
    tensor of its weights."""

    model: ir.Model
    originals: Mapping[str, tuple[Layer, ir.TensorProtocol]]


class MixedSteps:
    """Writes the step graphs of `bundle` into `folder`; a context manager.

    Args:
        ranges: what was seen of the layers' inputs. options: all but `kept` is fixed here.
        folder: exists; takes a copy of the bundle's weights, and all weights in eight bits.
    """

    def __init__(self, bundle: Bundle, ranges: Ranges, options: QuantizeOptions, folder: Path) -> None:
        self.bundle = bundle
        self.folder = folder
        self._ranges, self._options = ranges, options
        self._casts: dict[str, _Cast] = {}
        self._prepared: dict[str, _Prepared] = {}
        self._stack = ExitStack()
        self._weights = WeightsFile(folder / _EIGHT_BIT_WEIGHTS)
        self.graphs = tuple(name for name in bundle.manifest.graphs if name.startswith(STEP_PREFIX))

    def __enter__(self) -> Self:
        for name in {self.bundle.manifest.graphs[graph].weights for graph in self.graphs}:
            shutil.copyfile(self.bundle.folder / name, self.folder / name)
        self._stack.enter_context(self._weights)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def layers(self, graph: str) -> tuple[Layer, ...]:
        """The layers of a graph."""
        return layers_of(onnx.load(self.bundle.graph_path(graph), load_external_data=False))

    def all_layers(self) -> tuple[Layer, ...]:
        """The layers of all graphs, each once, as the first graph that has it names its parts."""
        found: dict[str, Layer] = {}
        for graph in self.graphs:
            for layer in self.layers(graph):
                found.setdefault(layer.weight, layer)
        return tuple(found.values())

    def write(self, graph: str, kept: Collection[str]) -> Path:
        """Writes a graph with all layers in eight bits but those with weights named in `kept`; returns its file.

        Raises:
            InputError: the ranges lack a layer.
            BundleError: two layers of the graph share their weights.
        """
        prepared = self._prepare(graph)
        self._check_ranges(prepared, kept)
        model = prepared.model.clone()
        layers = [(node, *original) for node in model.graph if (original := prepared.originals.get(node.name or ""))]
        for node, layer, tensor in layers:
            if layer.weight in kept:
                _restore(model.graph, node, layer, tensor)
        for node, layer, _ in layers:
            if layer.weight not in kept:
                self._fill(node, layer, prepared)
        RemoveUnusedNodesPass()(model)
        path = self.folder / f"{graph}.onnx"
        ir.save(model, path)
        return path

    def _prepare(self, graph: str) -> _Prepared:
        if graph not in self._prepared:
            model = onnx.load(self.bundle.graph_path(graph), load_external_data=False)
            self._prepared[graph] = self._placed(graph, model)
        return self._prepared[graph]

    def _placed(self, graph: str, model: Any) -> _Prepared:
        initializers = {initializer.name: initializer for initializer in model.graph.initializer}
        layers = layers_of(model)
        originals = {layer.node: (layer, _tensor(initializers[layer.weight], self.folder)) for layer in layers}
        for layer in layers:
            if layer.weight in self._ranges and layer.weight not in self._casts:
                self._casts[layer.weight] = self._cast(layer, initializers[layer.weight])
        seen = [layer for layer in layers if layer.weight in self._casts]
        if not seen:
            raise InputError(f"calibration saw nothing of the {len(layers)} layers of {graph}; calibrate this bundle")
        factors = {name: cast.factor for name, cast in self._casts.items() if cast.factor is not None}
        placed = with_pairs(model, with_factors(model, seen, factors))
        placed.metadata_props.pop(_INFERRED, None)
        return _Prepared(placed, originals)

    def _cast(self, layer: Layer, initializer: Any) -> _Cast:
        """Rounds a layer's weights and puts them into the file; one tensor is in memory at a time."""
        weight = _array(initializer, self.folder)
        seen = self._ranges[layer.weight]
        _check_channels(layer, weight, seen)
        amax, factor = seen.amax(self._options.method, self._options.percentile), None
        alpha = self._options.smooth_alpha
        if alpha is not None and not layer.convolution:
            factor = (1 / divisors(seen.channel_amax, weight, alpha)).astype(weight.dtype)
            exact = factor.astype(np.float32)
            weight = (weight.astype(np.float32) / exact[:, None]).astype(weight.dtype)
            # What the method cuts off of the whole input it cuts off of the smoothed one.
            amax *= float((seen.channel_amax * exact).max() / max(float(seen.channel_amax.max()), 1e-30))
        rounded, scales = cast_weight(weight, layer.output_axis, self._options.precision)
        return _Cast(self._weights.place(ir.tensor(rounded, name=layer.weight)), scales, amax, factor)

    def _fill(self, node: ir.Node, layer: Layer, prepared: _Prepared) -> None:
        """Gives the pair before a layer, and its weights, their numbers."""
        kind, cast = self._options.precision, self._casts[layer.weight]
        weights = weight_source(node)
        _replace(weights, 0, cast.weight)
        _describe(weights, ir.DataType.from_numpy(cast.scales.dtype), cast.weight.shape)
        _replace(weights, 1, ir.tensor(cast.scales))
        _replace(weights, 2, ir.tensor(np.zeros(cast.scales.shape, DTYPES[kind])))
        pair = pair_of(node)
        if pair is None:
            raise InputError(f"{node.name}: reads its input exact, and its weights in eight bits")
        # Layers of one graph may share a tensor that others, in other graphs, saw more of: the widest range serves all.
        readers = [prepared.originals[reader.name][0].weight for reader in pair.readers if reader.name]
        amax = max(self._casts[weight].amax for weight in readers)
        _describe(pair.quantize, ir.DataType.from_numpy(DTYPES[kind]), pair.source.shape)
        _describe(pair.dequantize, ir.DataType.from_numpy(cast.scales.dtype), pair.source.shape)
        for half in (pair.quantize, pair.dequantize):
            _replace(half, 1, ir.tensor(scale_of(amax, kind, cast.scales.dtype)))
            _replace(half, 2, ir.tensor(np.zeros((), DTYPES[kind])))

    def _check_ranges(self, prepared: _Prepared, kept: Collection[str]) -> None:
        weights = [layer.weight for layer, _ in prepared.originals.values()]
        missing = [weight for weight in weights if weight not in self._casts and weight not in kept]
        if missing:
            raise InputError(
                f"calibration saw nothing of {len(missing)} of {len(weights)} layers, e.g. {missing[0]}; "
                "calibrate again"
            )


def _restore(graph: ir.Graph, node: ir.Node, layer: Layer, tensor: ir.TensorProtocol) -> None:
    """Lets a layer read its input and weights as they were."""
    if layer.weight not in graph.initializers:
        graph.register_initializer(ir.Value(name=layer.weight, const_value=tensor))
    pair = pair_of(node)
    if pair is not None:
        node.replace_input_with(0, _unsmoothed(pair, layer))
        node.replace_input_with(1, graph.initializers[layer.weight])


def _unsmoothed(pair: Pair, layer: Layer) -> ir.Value:
    product = pair.source.producer()
    if pair.source.name == layer.activation or product is None or product.inputs[0] is None:
        return pair.source
    return product.inputs[0]


def _replace(node: ir.Node, index: int, tensor: ir.TensorProtocol) -> None:
    """Gives an initializer that a node reads another content."""
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"{node.name}: input {index} is missing")
    tensor.name = value.name
    value.const_value = tensor
    value.dtype, value.shape = tensor.dtype, ir.Shape(tensor.shape.numpy())


def _describe(node: ir.Node, dtype: ir.DataType, shape: ir.Shape | None) -> None:
    """States what a node gives, which some readers of the file want to know without working it out."""
    node.outputs[0].dtype, node.outputs[0].shape = dtype, shape


def _array(initializer: Any, folder: Path) -> NDArray[Any]:
    tensor = onnx.TensorProto()
    tensor.CopyFrom(initializer)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        load_external_data_for_tensor(tensor, str(folder))
    return onnx.numpy_helper.to_array(tensor)


def _tensor(initializer: Any, folder: Path) -> ir.TensorProtocol:
    return ir.serde.deserialize_tensor(initializer, base_path=folder)


def _check_channels(layer: Layer, weight: NDArray[Any], seen: LayerInput) -> None:
    channels = weight.shape[1 if layer.convolution else 0]
    if len(seen.channel_amax) != channels:
        raise InputError(
            f"{layer.weight}: takes {channels} channels, calibration saw {len(seen.channel_amax)}; "
            "calibrate this bundle"
        )
