"""The layers of a step that can run in eight bits: convolutions and linear layers with weights of their own."""

from dataclasses import dataclass
from typing import Any

from latentsync_trt.errors import BundleError


@dataclass(frozen=True, slots=True)
class Layer:
    """A Conv or MatMul node and what it reads.

    `node`: its name, another one in each graph. `weight`: the name of its weights, the same in all graphs of a step.
    `activation`: the name of its input.
    """

    node: str
    weight: str
    activation: str
    convolution: bool

    @property
    def output_axis(self) -> int:
        """The axis of the weights that counts output channels: `(O, I, kh, kw)` or `(I, O)`."""
        return 0 if self.convolution else 1


def layers_of(model: Any) -> tuple[Layer, ...]:
    """The layers of an `onnx.ModelProto`, in its order.

    Raises:
        BundleError: two layers share their weights, which then have no range of their own.
    """
    weights = {initializer.name for initializer in model.graph.initializer}
    found: dict[str, Layer] = {}
    for node in model.graph.node:
        if node.op_type not in ("Conv", "MatMul") or node.input[1] not in weights:
            continue
        activation, weight = node.input[0], node.input[1]
        if weight in found:
            raise BundleError(f"{weight}: used by {found[weight].node} and by {node.name}; export the model again")
        found[weight] = Layer(node.name, weight, activation, node.op_type == "Conv")
    return tuple(found.values())
