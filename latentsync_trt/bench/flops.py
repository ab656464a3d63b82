"""Floating-point operations of a graph, counted from its own shapes: convolutions, matrix products and attention.

All other operators compute next to nothing; they move bytes. Importing this needs `onnx` and `onnx_ir`.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from latentsync_trt.errors import BundleError
from latentsync_trt.quantize.shapes import Shape, shapes_of


def operations(path: Path, sizes: Mapping[str, int]) -> dict[str, int]:
    """Floating-point operations of one run by operator, a multiplication and an addition counted as two.

    Products of weights alone do not count: every provider computes them once, when it loads the graph.

    Args:
        sizes: of the graph's variable dimensions.

    Raises:
        BundleError: the file is not an ONNX graph, or does not state a shape that is needed.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise BundleError(f"{path}: cannot be read as an ONNX graph; export the model again") from error
    shapes = shapes_of(model, sizes) | {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    constant = {tensor.name for tensor in model.graph.initializer}
    counts: dict[str, int] = {}
    for node in model.graph.node:
        if all(name in constant for name in node.input if name):
            constant.update(node.output)
        elif node.op_type in ("Conv", "MatMul", "Gemm", "Attention"):
            counts[node.op_type] = counts.get(node.op_type, 0) + _of_node(node, shapes)
    return counts


def _of_node(node: Any, shapes: Mapping[str, Shape]) -> int:
    def shape(name: str) -> Shape:
        if name not in shapes:
            raise BundleError(f"{node.op_type} {node.output[0]}: the graph does not state the shape of {name}")
        return shapes[name]

    if node.op_type == "Attention":
        return _attention(*(shape(name) for name in node.input[:3]))
    if node.op_type == "Conv":
        # Weights are (outputs, inputs of a group, height, width).
        return 2 * prod(shape(node.output[0])) * prod(shape(node.input[1])[1:])
    # The exporter leaves out the shapes of some products, but not those of what they multiply.
    left, right = (shape(name) for name in node.input[:2])
    if node.op_type == "Gemm":
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        return 2 * prod(left) * right[0 if transposed else 1]
    return 2 * prod(np.broadcast_shapes(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]


def _attention(query: Shape, key: Shape, value: Shape) -> int:
    """Both products, query·key and weights·value, of `(B, H, S, d)` or `(B, S, H·d)`."""
    if len(query) == 3:
        return 2 * query[0] * query[1] * key[1] * (query[2] + value[2])
    return 2 * prod(query[:3]) * key[2] * (query[3] + value[3])
