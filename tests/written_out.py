"""Graphs of the CUDA form for the CPU: what only the CUDA provider has kernels for is written out
in ONNX's own ops.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]


def written_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model`, whose shapes are all known, with those ops replaced by what their documentation says
    they compute.
    """
    writer = _Writer(model)
    for node in model.graph.node:
        write = (
            getattr(writer, f"write_{node.op_type}", None)
            if node.domain.startswith("com.m")
            else None
        )
        writer.nodes.append(node) if write is None else write(node)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(writer.nodes)
    copy.graph.initializer.extend(writer.constants)
    return copy


class _Writer:
    """Each `write_` method appends what one op is made of."""

    def __init__(self, model: onnx.ModelProto) -> None:
        values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
        self.shapes = {
            value.name: tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
            for value in values
        }
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count = 0

    def write_GroupNorm(self, node: onnx.NodeProto) -> None:
        self._norm(node, node.input[0])

    def write_SkipGroupNorm(self, node: onnx.NodeProto) -> None:
        total = self._add(self._op("Add", node.input[0], node.input[3]), *node.input[4:])
        if len(node.output) > 1:
            self._op("Identity", total, output=node.output[1])
        self._norm(node, total)

    def write_BiasSplitGelu(self, node: onnx.NodeProto) -> None:
        left = f"{node.output[0]}_left"
        right = f"{node.output[0]}_right"
        biased = self._op("Add", node.input[0], node.input[1])
        self.nodes.append(
            helper.make_node("Split", [biased], [left, right], axis=-1, num_outputs=2)
        )
        self._op("Mul", left, self._op("Gelu", right), output=node.output[0])

    def write_BiasAdd(self, node: onnx.NodeProto) -> None:
        biased = self._op("Add", node.input[0], node.input[1])
        self._op("Add", biased, node.input[2], output=node.output[0])

    def write_Conv(self, node: onnx.NodeProto) -> None:
        image = self._op("Transpose", node.input[0], perm=[0, 3, 1, 2])
        convolved = self._op(node.op_type, image, *node.input[1:], **_attributes(node))
        self._op("Transpose", convolved, output=node.output[0], perm=[0, 2, 3, 1])

    write_ConvTranspose = write_Conv  # noqa: N815

    def _norm(self, node: onnx.NodeProto, x: str) -> None:
        settings = _attributes(node)
        count, height, width, channels = self.shapes[node.output[0]]
        groups = settings["groups"]
        grouped = self._reshape(x, (count, height * width, groups, channels // groups))
        axes = self._constant([1, 3], np.int64)
        centered = self._op("Sub", grouped, self._op("ReduceMean", grouped, axes))
        variance = self._op("ReduceMean", self._op("Mul", centered, centered), axes)
        deviation = self._op(
            "Sqrt", self._add(variance, self._constant(settings["epsilon"], np.float32))
        )
        normed = self._reshape(
            self._op("Div", centered, deviation), (count, height, width, channels)
        )
        normed = self._add(self._op("Mul", normed, node.input[1]), node.input[2])
        if settings["activation"]:
            other = self._op("Sigmoid", normed)
        else:
            other = self._constant(1, np.float32)
        self._op("Mul", normed, other, output=node.output[0])

    def _add(self, x: str, *others: str) -> str:
        for other in others:
            x = self._op("Add", x, other)
        return x

    def _reshape(self, x: str, shape: Shape) -> str:
        return self._op("Reshape", x, self._constant(shape, np.int64))

    def _constant(self, values: float | Sequence[int], dtype: Any) -> str:
        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def _op(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or self._name()
        self.nodes.append(helper.make_node(op, list(inputs), [output], **attributes))
        return output

    def _name(self) -> str:
        self._count += 1
        return f"written_out_{self._count}"


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
