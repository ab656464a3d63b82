"""Step graphs for calibration: observed ones, which also return magnitudes of their layers' inputs,
and 8-bit ones.

Layers are convolutions and linear layers. Each is identified by the name of its weights, which is
the same in all step graphs.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, gcd, log2, prod
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir import convenience
from onnx_ir.passes.common import RemoveUnusedNodesPass

from latentsync_trt.bundle.external import WeightsFile
from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, GraphEntry
from latentsync_trt.errors import BundleError
from latentsync_trt.quantize.calibration_options import CalibrateOptions, EightBit
from latentsync_trt.types import Float32Array, Float64Array

DTYPES: dict[EightBit, np.dtype[Any]] = {
    "int8": np.dtype(np.int8),
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""FP8 with four exponent bits (E4M3), as TensorRT supports it."""

_LARGEST: dict[EightBit, float] = {"int8": 127.0, "fp8": 448.0}

# float16's smallest normal number: smaller scales lose bits, and 0 would divide by zero.
_SMALLEST_SCALE = 2.0**-14

SAMPLE = 1 << 16
"""Most values of a tensor that a step returns: their 99.99th percentile is within 4 % of that of
all values.
"""

ATTENTION_BYTES = 1 << 29
"""Size of attention scores above which a batch is split: those of one picture of 64 × 64 tokens
with eight heads.
"""

_SCORE_BYTES = 4  # of float32; float16 takes half

Sizes = tuple[int, ...]

BINS = 2048
"""Of the histograms of magnitudes."""


@dataclass(frozen=True, slots=True, eq=False)
class ActivationRange:
    """Magnitudes of the input x of one layer.

    `largest`: exact maximum of |x|. `counts (BINS,)` float64: histogram of sampled |x| from 0 to
    `upper`.
    """

    largest: float
    counts: Float64Array

    @classmethod
    def of_step(cls, largest: float, sample: Float32Array) -> Self:
        """The range of one step: the maximum of |x|, and a sample of |x| `(n,)`, none larger."""
        empty = cls(largest, np.zeros(BINS))
        return cls(
            largest, np.histogram(sample, BINS, range=(0, empty.upper or 1))[0].astype(np.float64)
        )

    @property
    def upper(self) -> float:
        """The power of two at or above the maximum, so that histograms merge bin by bin; 0 if x is
        always 0.
        """
        if self.largest <= 0:
            return 0.0
        return 2.0 ** ceil(log2(self.largest))

    def merged(self, other: "ActivationRange") -> "ActivationRange":
        upper = max(self.upper, other.upper)
        counts = self._counts_up_to(upper) + other._counts_up_to(upper)
        return ActivationRange(max(self.largest, other.largest), counts)

    def amax(self, percentile: float) -> float:
        """The |x| that is mapped to the largest 8-bit number.

        Args:
            percentile: share of the sampled |x| that is not clipped, above 0, at most 100; 100 is
                the maximum.
        """
        if percentile == 100 or self.largest == 0:
            return self.largest
        wanted = self.counts.sum() * percentile / 100
        running = np.cumsum(self.counts)
        index = min(int(np.searchsorted(running, wanted)), BINS - 1)
        below = running[index] - self.counts[index]
        part = (wanted - below) / self.counts[index] if self.counts[index] else 1.0
        return min(self.largest, float((index + part) * self.upper / BINS))

    def _counts_up_to(self, upper: float) -> Float64Array:
        """The histogram from 0 to `upper`, a power of two not below its own."""
        if self.largest == 0:
            return np.concatenate([[self.counts.sum()], np.zeros(BINS - 1)])
        counts = self.counts
        for _ in range(min(round(log2(upper / self.upper)), int(log2(BINS)))):
            counts = np.concatenate([counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2)])
        return counts


Ranges = Mapping[str, ActivationRange]
"""Calibration ranges by the name of a layer's weights: those of full, cached, guided and unguided
steps are merged.
"""


@dataclass(frozen=True, slots=True)
class ObservedGraph:
    """A step graph, maybe with more outputs; `dimensions` fix its variable dimensions.

    `layers`: an input of layers → the names of their weights. Of the input "x" the graph returns
    "x_amax", its largest magnitude, and "x_sample", some of them `(n,)`.
    """

    path: Path
    weights_folder: Path
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dimensions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A Conv or MatMul node with weights of its own, `(O, I, kh, kw)` or `(I, O)`. `activation`:
    its input.
    """

    name: str
    node: ir.Node
    activation: ir.Value
    weights: ir.TensorProtocol

    @property
    def output_axis(self) -> int:
        """The axis of the weights along which output channels lie."""
        if self.node.op_type == "Conv":
            return 0
        return 1


Readers = dict[ir.Value, list[Layer]]
"""Activation → the layers that read it."""


def layers_of(model: ir.Model) -> tuple[Layer, ...]:
    layers = []
    for node in model.graph:
        if node.op_type in ("Conv", "MatMul"):
            activation, weights = node.inputs[:2]
            if (
                activation is not None
                and weights is not None
                and weights.name
                and weights.const_value is not None
            ):
                layers.append(Layer(weights.name, node, activation, weights.const_value))
    return tuple(layers)


def step_graphs(bundle: Bundle) -> tuple[str, ...]:
    return tuple(name for name in STEP_GRAPHS if name in bundle.manifest.graphs)


def layer_names(bundle: Bundle) -> tuple[str, ...]:
    """The names of the layers of all step graphs, each once."""
    graphs = (ir.load(bundle.graph_path(name)) for name in step_graphs(bundle))
    return tuple(dict.fromkeys(layer.name for graph in graphs for layer in layers_of(graph)))


def multiply_adds(bundle: Bundle, graph: str) -> dict[str, int]:
    """Multiply-adds of each layer of a step graph, by name; variable dimensions at their usual
    values.

    Raises:
        BundleError: the graph does not state the shape of a layer's output.
    """
    counts: dict[str, int] = {}
    dimensions = _usual_dimensions(bundle)
    for layer in layers_of(ir.load(bundle.graph_path(graph))):
        outputs = prod(_sizes_of(layer.node.outputs[0], dimensions, graph))
        counts[layer.name] = outputs * (
            layer.weights.size // layer.weights.shape.numpy()[layer.output_axis]
        )
    return counts


def _usual_dimensions(bundle: Bundle) -> dict[str, int]:
    return {name: span.optimum for name, span in bundle.manifest.ranges.items()}


def _sizes_of(value: ir.Value | None, dimensions: Mapping[str, int], graph: str) -> Sizes:
    """The shape of a value; `dimensions` are those in expressions such as "2*windows*frames"."""
    sizes = None if value is None or value.shape is None else value.shape.evaluate(dimensions)
    if value is None or sizes is None or not sizes.is_static():
        raise BundleError(
            f"{graph}: states no shape for {value and value.name}; export the model again"
        )
    return sizes.numpy()


def write_observed(bundle: Bundle, graph: str, folder: Path) -> ObservedGraph:
    """Writes an observed step graph to `folder`; it reads the bundle's own weights.

    Variable dimensions are fixed: one window, all others at their usual values. The graph
    reduces the inputs of its layers itself, because at full size those of one step take 19 GB.

    Raises:
        BundleError: the graph does not state the shape of a layer's input.
    """
    dimensions = _usual_dimensions(bundle) | ({"windows": 1} if bundle.manifest.ranges else {})
    model = ir.load(bundle.graph_path(graph))
    split_attention(model, dimensions)
    readers: Readers = {}
    for layer in layers_of(model):
        readers.setdefault(layer.activation, []).append(layer)
    names: dict[str, tuple[str, ...]] = {}
    for value, layers in readers.items():
        _observe(model.graph, value, _sizes_of(value, dimensions, graph), layers[0])
        names[str(value.name)] = tuple(layer.name for layer in layers)
    path = folder / f"{graph}.onnx"
    ir.save(model, path)
    return ObservedGraph(path, bundle.folder, names, dimensions)


def sample_stride(sizes: Sizes, channel_axis: int) -> int:
    """The n for which every n-th value of a tensor forms a sample of about `SAMPLE` values, even
    over the channels.
    """
    stride = max(1, prod(sizes) // SAMPLE)
    # With a common factor the sample would repeat the same channels or the same columns.
    while gcd(stride, prod(sizes[channel_axis:])) != 1:
        stride += 1
    return stride


def _observe(graph: ir.Graph, value: ir.Value, sizes: Sizes, layer: Layer) -> None:
    """Adds the outputs for `value`, which `layer` reads."""
    stride = sample_stride(sizes, 1 if layer.node.op_type == "Conv" else len(sizes) - 1)
    tape = ir.tape.Tape(graph)

    def integers(name: str, *content: int) -> ir.Value:
        return tape.initializer(ir.tensor(list(content), ir.DataType.INT64), f"{value.name}_{name}")

    every_nth = [
        integers("first", 0),
        integers("end", prod(sizes)),
        integers("axis", 0),
        integers("stride", stride),
    ]
    magnitudes = tape.op("Abs", [value])
    amax = tape.op("ReduceMax", [magnitudes], {"keepdims": 0})
    sample = tape.op("Slice", [tape.op("Reshape", [magnitudes, integers("flat", -1)]), *every_nth])
    for output, name, shape in (
        (amax, "amax", []),
        (sample, "sample", [-(-prod(sizes) // stride)]),
    ):
        output.name = f"{value.name}_{name}"
        output.shape = ir.Shape(shape)
        output.type = ir.TensorType(layer.weights.dtype)
        graph.outputs.append(output)


def split_attention(
    model: ir.Model, dimensions: Mapping[str, int], most_bytes: int = ATTENTION_BYTES
) -> None:
    """Splits the batch of Attention nodes whose scores take more than `most_bytes`.

    A provider without a fused kernel stores the scores of a whole batch at once: up to 9 GB in a
    512 px float16 step.
    """
    for node in tuple(model.graph):
        if node.op_type != "Attention":
            continue
        queries, keys = (
            _sizes_of(value, dimensions, str(model.graph.name)) for value in node.inputs[:2]
        )
        batch, heads, tokens, _ = queries
        most = max(1, most_bytes // (heads * tokens * keys[2] * _SCORE_BYTES))
        if most < batch:
            _split(model.graph, node, [min(most, batch - begin) for begin in range(0, batch, most)])


def _split(graph: ir.Graph, node: ir.Node, lengths: list[int]) -> None:
    tape = ir.tape.Tape()
    output = node.outputs[0]
    sizes = ir.Value(
        name=f"{output.name}_lengths", const_value=ir.tensor(lengths, ir.DataType.INT64)
    )
    graph.register_initializer(sizes)
    parts = [
        tape.op_multi_out("Split", [value, sizes], {"axis": 0}, num_outputs=len(lengths))
        for value in node.inputs
    ]
    attended = [
        tape.op("Attention", list(part), node.attributes) for part in zip(*parts, strict=True)
    ]
    joined = tape.op("Concat", attended, {"axis": 0})
    convenience.replace_nodes_and_values(graph, node, [node], list(tape.nodes), [output], [joined])


def _scale_of(amax: Float32Array | float, kind: EightBit, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The scale that maps `amax` to the largest 8-bit number; same shape, in `dtype`."""
    return np.asarray(
        np.maximum(np.asarray(amax, np.float64) / _LARGEST[kind], _SMALLEST_SCALE), dtype
    )


def round_weights(
    weights: NDArray[Any], output_axis: int, kind: EightBit
) -> tuple[NDArray[Any], NDArray[Any]]:
    """8-bit weights of the same shape, and the per-channel scales `(O,)` in the weights' dtype."""
    exact = weights.astype(np.float32)
    others = tuple(axis for axis in range(weights.ndim) if axis != output_axis)
    scales = _scale_of(np.abs(exact).max(axis=others), kind, weights.dtype)
    exact /= np.expand_dims(scales.astype(np.float32), others)
    if kind == "int8":
        np.rint(exact, out=exact)
    # A scale that was rounded down puts the largest weight slightly out of range, which FP8's cast
    # would turn into NaN.
    np.clip(exact, -_LARGEST[kind], _LARGEST[kind], out=exact)
    return exact.astype(DTYPES[kind]), scales


def write_steps(
    bundle: Bundle, ranges: Ranges, options: CalibrateOptions, kept: Collection[str], folder: Path
) -> dict[str, GraphEntry]:
    """Writes the step graphs with QuantizeLinear/DequantizeLinear pairs around all layers but those
    named in `kept`.

    Also writes the weights that they use. Returns their entries in the manifest, without other
    forms.
    """
    entries = {
        name: replace(bundle.manifest.graphs[name], forms={}) for name in step_graphs(bundle)
    }
    (file,) = {entry.weights for entry in entries.values()}
    weights = WeightsFile(folder / file)
    quantizer = _Quantizer(ranges, options, weights)
    for name, entry in entries.items():
        model = ir.load(bundle.graph_path(name))
        quantizer.quantize(model, kept)
        weights.move_out(model)
        ir.save(model, folder / entry.file)
    return entries


class _Quantizer:
    """Rounds the layers of graphs; the weights of each layer are rounded once."""

    def __init__(self, ranges: Ranges, options: CalibrateOptions, file: WeightsFile) -> None:
        self._ranges = ranges
        self._options = options
        self._file = file
        self._rounded: dict[str, tuple[ir.ExternalTensor, NDArray[Any]]] = {}
        self._zero = np.zeros((), DTYPES[options.precision])

    def quantize(self, model: ir.Model, kept: Collection[str]) -> None:
        readers: Readers = {}
        for layer in layers_of(model):
            if layer.name not in kept:
                self._dequantize_weights(model.graph, layer)
                readers.setdefault(layer.activation, []).append(layer)
        for activation, layers in readers.items():
            self._round_activation(model.graph, activation, layers)
        RemoveUnusedNodesPass()(model)

    def _dequantize_weights(self, graph: ir.Graph, layer: Layer) -> None:
        name = f"{layer.name}_{self._options.precision}"
        if layer.name not in self._rounded:
            eight_bit, scales = round_weights(
                layer.weights.numpy(), layer.output_axis, self._options.precision
            )
            self._rounded[layer.name] = self._file.add(ir.tensor(eight_bit, name=name)), scales
        tensor, scales = self._rounded[layer.name]
        inputs = [
            _initializer(graph, name, tensor),
            _initializer(graph, f"{layer.name}_scales", scales),
            _initializer(graph, f"{layer.name}_zeros", np.full(scales.shape, self._zero)),
        ]
        exact = _insert(
            layer.node,
            "DequantizeLinear",
            inputs,
            f"{layer.name}_dequantized",
            {"axis": layer.output_axis},
        )
        layer.node.replace_input_with(1, exact)

    def _round_activation(self, graph: ir.Graph, activation: ir.Value, layers: list[Layer]) -> None:
        """Inserts one pair before the layers that read an activation; its other readers keep the
        exact values.
        """
        # In other graphs layers may have observed a wider range of it: the widest serves all.
        amax = max(self._ranges[layer.name].amax(self._options.percentile) for layer in layers)
        dtype = self._rounded[layers[0].name][1].dtype
        scale = _initializer(
            graph, f"{activation.name}_scale", _scale_of(amax, self._options.precision, dtype)
        )
        zero = _initializer(graph, f"{activation.name}_zero", self._zero)
        first = layers[0].node
        name = activation.name
        eight_bit = _insert(first, "QuantizeLinear", [activation, scale, zero], f"{name}_quantized")
        exact = _insert(first, "DequantizeLinear", [eight_bit, scale, zero], f"{name}_dequantized")
        for layer in layers:
            layer.node.replace_input_with(0, exact)


def _initializer(graph: ir.Graph, name: str, content: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    if isinstance(content, np.ndarray):
        tensor = ir.tensor(content, name=name)
    else:
        tensor = content
    value = ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype)
    )
    value.const_value = tensor
    graph.register_initializer(value)
    return value


def _insert(
    before: ir.Node,
    op: str,
    inputs: list[ir.Value],
    name: str,
    attributes: Mapping[str, int] | None = None,
) -> ir.Value:
    """The output of a new node; `inputs`: values, scales and zeros."""
    kind = inputs[1 if op == "DequantizeLinear" else 2].type
    output = ir.Value(name=name, shape=inputs[0].shape, type=kind)
    node = ir.node(op, inputs, attributes, outputs=[output], name=f"{name}_node")
    if before.graph is not None:
        before.graph.insert_before(before, node)
    return output
