"""How much of a step's arithmetic a choice of layers leaves in eight bits. Pure."""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

from latentsync_trt.bundle.manifest import DimensionRange
from latentsync_trt.errors import BundleError
from latentsync_trt.quantize.layers import layers_of
from latentsync_trt.quantize.shapes import shapes_of


def multiply_adds(model: Any, ranges: Mapping[str, DimensionRange]) -> dict[str, int]:
    """Multiply-adds of each layer of an `onnx.ModelProto`, by name of its weights.

    Args:
        ranges: of the bundle's variable dimensions, which count at their usual size.

    Raises:
        BundleError: the graph does not state the shape of what a layer gives.
    """
    shapes = shapes_of(model, {name: span.optimum for name, span in ranges.items()})
    weights = {initializer.name: tuple(initializer.dims) for initializer in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}
    counts: dict[str, int] = {}
    for layer in layers_of(model):
        output = nodes[layer.node].output[0]
        if not shapes.get(output):
            raise BundleError(f"{layer.node}: the graph states no shape for {output}; export the model again")
        sizes = weights[layer.weight]
        counts[layer.weight] = prod(shapes[output]) * (prod(sizes[1:]) if layer.convolution else sizes[0])
    return counts


def share_in_eight_bits(counts: Mapping[str, int], kept: Collection[str]) -> float:
    """The share of multiply-adds, 0 to 1, in layers that are not kept."""
    return 1 - sum(count for weight, count in counts.items() if weight in kept) / sum(counts.values())
