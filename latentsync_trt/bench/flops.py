"""Floating-point operations of a graph, counted from its own shapes: products and sums of matrices. Pure.

What is not a convolution, a matrix product or attention computes next to nothing; it moves bytes.
"""

from collections.abc import Mapping
from math import prod

import numpy as np

from latentsync_trt.bench.onnx_file import Node, OnnxGraph, fixed
from latentsync_trt.errors import BundleError

_CONVOLUTIONS = ("Conv", "FusedConv", "NhwcConv")
_ATTENTIONS = ("Attention", "MultiHeadAttention")
COUNTED = (*_CONVOLUTIONS, "MatMul", "Gemm", *_ATTENTIONS)

_Sizes = tuple[int, ...]


def operations(graph: OnnxGraph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Floating-point operations of one run by operator, a multiplication and an addition counted as two.

    Products of weights alone, which every provider computes once when it loads, do not count.

    Args:
        sizes: of the graph's variable dimensions.

    Raises:
        BundleError: the file does not state a shape that is needed.
    """
    counts: dict[str, int] = {}
    constant = set(graph.weights)
    for node in graph.nodes:
        if all(name in constant for name in node.inputs if name):
            constant.update(node.outputs)
        elif node.kind in COUNTED:
            counts[node.kind] = counts.get(node.kind, 0) + _of_node(node, graph, sizes)
    return counts


def _of_node(node: Node, graph: OnnxGraph, sizes: Mapping[str, int]) -> int:
    def shape(name: str) -> _Sizes:
        found = graph.weights.get(name, graph.values.get(name))
        if found is None:
            raise BundleError(f"{node.kind} {node.outputs[0]}: the file does not state the shape of {name}")
        return fixed(found, sizes)

    if node.kind in _ATTENTIONS:
        return _attention(*(shape(name) for name in node.inputs[:3]))
    if node.kind in _CONVOLUTIONS:
        # Weights are (outputs, inputs of a group, height, width), or with the inputs last.
        return 2 * prod(shape(node.outputs[0])) * prod(shape(node.inputs[1])[1:])
    # The exporter leaves out the shapes of some products, but not those of what they multiply.
    left, right = (shape(name) for name in node.inputs[:2])
    if node.kind == "Gemm":
        return 2 * prod(left) * right[0 if node.integers.get("transB") else 1]
    return 2 * prod(np.broadcast_shapes(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]


def _attention(query: _Sizes, key: _Sizes, value: _Sizes) -> int:
    """Both products, query·key and weights·value, of `(B, H, S, d)` or `(B, S, H·d)`."""
    if len(query) == 3:  # heads × width of a head are one dimension already
        return 2 * query[0] * query[1] * key[1] * (query[2] + value[2])
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])
