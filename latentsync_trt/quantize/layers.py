"""The layers of step graphs: convolutions and linear layers.

Each is identified by the name of its weights, which is the same in all step graphs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle
from latentsync_trt.errors import BundleError

Sizes = tuple[int, ...]
"""The shape of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A Conv or MatMul node with weights of its own."""

    name: str
    """The name of its weights."""
    node: ir.Node
    activation: ir.Value
    """Its input."""
    weights: ir.TensorProtocol
    """`(O, I, kh, kw)` of a convolution, `(I, O)` of a linear layer."""

    @property
    def output_axis(self) -> int:
        """The axis of the weights along which output channels lie."""
        if self.node.op_type == "Conv":
            return 0
        return 1


def layers_of(model: ir.Model) -> list[Layer]:
    """Returns the layers of a graph, in its order."""
    layers = []
    for node in model.graph:
        if node.op_type not in ("Conv", "MatMul"):
            continue
        activation, weights = node.inputs[:2]
        if activation is None or weights is None or weights.const_value is None:
            continue
        layers.append(Layer(str(weights.name), node, activation, weights.const_value))
    return layers


def layers_by_activation(layers: list[Layer]) -> dict[ir.Value, list[Layer]]:
    """Returns the layers that read each activation."""
    readers: dict[ir.Value, list[Layer]] = {}
    for layer in layers:
        readers.setdefault(layer.activation, []).append(layer)
    return readers


def step_graphs(bundle: Bundle) -> list[str]:
    """Returns the names of a bundle's step graphs."""
    return [name for name in STEP_GRAPHS if name in bundle.manifest.graphs]


def layer_names(bundle: Bundle) -> list[str]:
    """Returns the names of the layers of all step graphs, each once."""
    names: dict[str, None] = {}
    for graph in step_graphs(bundle):
        for layer in layers_of(ir.load(bundle.graph_path(graph))):
            names[layer.name] = None
    return list(names)


def multiply_adds(bundle: Bundle, graph: str) -> dict[str, int]:
    """Returns the multiply-adds of each layer of a step graph, by name; variable dimensions have
    their usual values.

    Raises:
        BundleError: the graph does not state the shape of a layer's output.
    """
    counts = {}
    dimensions = usual_dimensions(bundle)
    for layer in layers_of(ir.load(bundle.graph_path(graph))):
        outputs = prod(sizes_of(layer.node.outputs[0], dimensions, graph))
        channels = layer.weights.shape.numpy()[layer.output_axis]
        counts[layer.name] = outputs * (layer.weights.size // channels)
    return counts


def usual_dimensions(bundle: Bundle) -> dict[str, int]:
    """Returns the usual values of a bundle's variable dimensions."""
    return {name: span.optimum for name, span in bundle.manifest.ranges.items()}


def sizes_of(value: ir.Value | None, dimensions: Mapping[str, int], graph: str) -> Sizes:
    """Returns the shape of a value.

    Args:
        dimensions: values of those in expressions such as "2*windows*frames".

    Raises:
        BundleError: the graph does not state it.
    """
    if value is not None and value.shape is not None:
        sizes = value.shape.evaluate(dimensions)
        if sizes.is_static():
            return sizes.numpy()
    raise BundleError(
        f"{graph}: states no shape for {value and value.name}; export the model again"
    )
