"""Floating-point operations of a graph, counted from its own shapes: convolutions, matrix products and attention.

Other operators compute little; memory bandwidth limits them. Importing this needs `onnx_ir`.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir

from latentsync_trt.errors import BundleError
from latentsync_trt.quantize.layers import Sizes, sizes_of


def operations(path: Path, dimensions: Mapping[str, int]) -> dict[str, int]:
    """Floating-point operations of one run by operator; a multiply-add counts as two.

    Products of weights alone are not counted: every provider computes them once, when it loads the graph.

    Args:
        dimensions: values of the graph's variable dimensions.

    Raises:
        BundleError: the graph does not state a shape that is needed.
    """
    graph = ir.load(path).graph
    constant = set(graph.initializers.values())
    counts: dict[str, int] = {}
    for node in graph:
        if all(value in constant for value in node.inputs if value is not None):
            constant.update(node.outputs)
        elif node.op_type in ("Conv", "MatMul", "Gemm", "Attention"):
            counts[node.op_type] = counts.get(node.op_type, 0) + _of_node(node, dimensions)
    return counts


def _of_node(node: ir.Node, dimensions: Mapping[str, int]) -> int:
    def sizes(value: ir.Value | None) -> Sizes:
        found = None if value is None else sizes_of(value, dimensions)
        if value is None or found is None:
            raise BundleError(f"{node.op_type} {node.outputs[0].name}: the graph does not state the shape of an input")
        return found

    if node.op_type == "Attention":
        return _attention(*(sizes(value) for value in node.inputs[:3]))
    if node.op_type == "Conv":
        # Weights are (outputs, inputs of a group, height, width).
        return 2 * prod(sizes(node.outputs[0])) * prod(sizes(node.inputs[1])[1:])
    # The exporter omits the output shapes of some products, but not their input shapes.
    left, right = (sizes(value) for value in node.inputs[:2])
    if node.op_type == "Gemm":
        return 2 * prod(left) * right[0 if node.attributes.get_int("transB", 0) else 1]
    return 2 * prod(np.broadcast_shapes(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]


def _attention(query: Sizes, key: Sizes, value: Sizes) -> int:
    """Operations of both products, query·key and weights·value, of `(B, H, S, d)` or `(B, S, H·d)`."""
    if len(query) == 3:
        return 2 * query[0] * query[1] * key[1] * (query[2] + value[2])
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])
