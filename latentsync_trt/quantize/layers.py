"""The layers of a step graph that can run in 8 bits (convolutions and linear layers), and their cost. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A Conv or MatMul node with weights of its own.

    `name`: the name of the weights, which is the same in all step graphs, unlike the node's. `activation`: its input.
    `weights`: `(O, I, kh, kw)` or `(I, O)`.
    """

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

    @property
    def channels(self) -> int:
        """Input channels."""
        return self.weights.shape.numpy()[1 - self.output_axis]


def layers_of(model: ir.Model) -> tuple[Layer, ...]:
    """The layers of a graph, in its order."""
    layers = []
    for node in model.graph:
        if node.op_type in ("Conv", "MatMul"):
            activation, weights = node.inputs[:2]
            if activation is not None and weights is not None and weights.name and weights.const_value is not None:
                layers.append(Layer(weights.name, node, activation, weights.const_value))
    return tuple(layers)


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


def eight_bit_share(counts: Mapping[str, int], kept: Collection[str]) -> float:
    """The share of multiply-adds, 0 to 1, in layers that are not in `kept`."""
    return 1 - sum(count for name, count in counts.items() if name in kept) / sum(counts.values())
