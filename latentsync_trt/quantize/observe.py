"""Observed step graphs: they also return magnitudes of their layers' inputs.

The graph reduces them itself, because at full size the layer inputs of one step take 19 GB.
"""

from collections.abc import Mapping
from math import gcd, prod
from pathlib import Path

import onnx_ir as ir
from onnx_ir import convenience

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError
from latentsync_trt.quantize.steps import Layer, Sizes, layers_of, sizes_of, usual_dimensions
from latentsync_trt.runtime.networks.observing_denoiser import ObservedGraph, ObservedTensor

SAMPLE = 1 << 16
"""Most values of a tensor that a step returns: their 99.99th percentile is within 4 % of that of all values."""

ATTENTION_BYTES = 1 << 29
"""Size of attention scores above which a batch is split: those of one picture of 64 × 64 tokens with eight heads."""

_SCORE_BYTES = 4  # of float32; float16 takes half


def write_observed(bundle: Bundle, graph: str, folder: Path) -> ObservedGraph:
    """Writes an observed step graph to `folder`; it reads the bundle's own weights.

    Variable dimensions are fixed: one window, all others at their usual values.

    Raises:
        BundleError: the graph does not state the shape of a layer's input.
    """
    dimensions = usual_dimensions(bundle) | ({"windows": 1} if bundle.manifest.ranges else {})
    model = ir.load(bundle.graph_path(graph))
    split_attention(model, dimensions)
    readers: dict[ir.Value, list[Layer]] = {}
    for layer in layers_of(model):
        readers.setdefault(layer.activation, []).append(layer)
    tensors = []
    for value, layers in readers.items():
        sizes = sizes_of(value, dimensions)
        if sizes is None:
            raise BundleError(f"{graph}: states no shape for {value.name}; export the model again")
        tensors.append(_observe(model.graph, value, sizes, layers))
    path = folder / f"{graph}.onnx"
    ir.save(model, path)
    return ObservedGraph(path, bundle.folder, tuple(tensors), dimensions)


def sample_stride(sizes: Sizes, channel_axis: int) -> int:
    """The n for which every n-th value of a tensor forms a sample of about `SAMPLE` values, even over the channels."""
    stride = max(1, prod(sizes) // SAMPLE)
    # With a common factor the sample would repeat the same channels or the same columns.
    while gcd(stride, prod(sizes[channel_axis:])) != 1:
        stride += 1
    return stride


def _observe(graph: ir.Graph, value: ir.Value, sizes: Sizes, layers: list[Layer]) -> ObservedTensor:
    axis = 1 if layers[0].convolution else len(sizes) - 1
    stride = sample_stride(sizes, axis)
    tape = ir.tape.Tape(graph)

    def integers(name: str, *content: int) -> ir.Value:
        return tape.initializer(ir.tensor(list(content), ir.DataType.INT64), f"{value.name}_{name}")

    every_nth = [integers("first", 0), integers("end", prod(sizes)), integers("axis", 0), integers("stride", stride)]
    magnitudes = tape.op("Abs", [value])
    amax = tape.op("ReduceMax", [magnitudes], {"keepdims": 0})
    sample = tape.op("Slice", [tape.op("Reshape", [magnitudes, integers("flat", -1)]), *every_nth])
    for output, name, shape in ((amax, "amax", []), (sample, "sample", [-(-prod(sizes) // stride)])):
        output.name, output.shape = f"{value.name}_{name}", ir.Shape(shape)
        output.type = ir.TensorType(layers[0].weights.dtype)
        graph.outputs.append(output)
    return ObservedTensor(tuple(layer.name for layer in layers), f"{value.name}_amax", f"{value.name}_sample")


def split_attention(model: ir.Model, dimensions: Mapping[str, int], most_bytes: int = ATTENTION_BYTES) -> None:
    """Splits the batch of Attention nodes whose scores take more than `most_bytes`.

    A provider without a fused kernel stores the scores of a whole batch at once: up to 9 GB in a
    512 px float16 step. Nodes of unknown shape are left as they are.
    """
    for node in tuple(model.graph):
        if node.op_type != "Attention" or node.domain or len(node.inputs) != 3:
            continue
        queries, keys, _ = (() if value is None else sizes_of(value, dimensions) or () for value in node.inputs)
        if len(queries) != 4 or len(keys) != 4:
            continue
        batch, heads, tokens, _ = queries
        most = max(1, most_bytes // (heads * tokens * keys[2] * _SCORE_BYTES))
        if most < batch:
            _split(model.graph, node, [min(most, batch - begin) for begin in range(0, batch, most)])


def _split(graph: ir.Graph, node: ir.Node, lengths: list[int]) -> None:
    tape, output = ir.tape.Tape(), node.outputs[0]
    sizes = ir.Value(name=f"{output.name}_lengths", const_value=ir.tensor(lengths, ir.DataType.INT64))
    graph.register_initializer(sizes)
    parts = [tape.op_multi_out("Split", [value, sizes], {"axis": 0}, num_outputs=len(lengths)) for value in node.inputs]
    attended = [tape.op("Attention", list(part), node.attributes) for part in zip(*parts, strict=True)]
    joined = tape.op("Concat", attended, {"axis": 0})
    convenience.replace_nodes_and_values(graph, node, [node], list(tape.nodes), [output], [joined])
