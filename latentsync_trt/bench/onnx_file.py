"""Operators and shapes of an ONNX file, read from its own encoding: the `onnx` package belongs to the export half.

Only what counting arithmetic needs is decoded; field numbers are those of onnx.proto. Weights' values are not read.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from operator import add, floordiv, mul, sub
from pathlib import Path

from latentsync_trt.errors import BundleError

Dimension = int | str
Shape = tuple[Dimension, ...]

# Protocol Buffers' wire types.
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED_64: 8, _FIXED_32: 4}
_INT64_RANGE = 1 << 64

_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_WEIGHT, _GRAPH_VALUES = 1, 5, (11, 12, 13)
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INT = 1, 3
_WEIGHT_DIMS, _WEIGHT_NAME = 1, 8
_VALUE_NAME, _VALUE_TYPE, _TYPE_TENSOR, _TENSOR_SHAPE, _SHAPE_DIM = 1, 2, 1, 2, 1
_DIM_VALUE, _DIM_NAME = 1, 2

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
}


@dataclass(frozen=True, slots=True)
class Node:
    """One operator; `integers` are its attributes that are whole numbers."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph: its nodes in order, the shapes of weights and of all other values that the file states.

    A str in a shape is a variable dimension: a name, or an expression of names.
    """

    nodes: tuple[Node, ...]
    weights: Mapping[str, Shape]
    values: Mapping[str, Shape]


def read_graph(path: Path) -> OnnxGraph:
    """The graph of an `.onnx` file.

    Raises:
        BundleError: it cannot be read, or is no ONNX file.
    """
    try:
        content = memoryview(path.read_bytes())
        graph = next(value for number, value in _fields(content) if number == _MODEL_GRAPH)
        return _graph(_message(graph))
    except (OSError, IndexError, StopIteration, TypeError, UnicodeDecodeError) as error:
        raise BundleError(f"{path}: cannot be read as an ONNX graph; export the model again") from error


def size_of(shape: Shape, sizes: Mapping[str, int]) -> int:
    """Elements of a tensor of `shape`, `sizes` being those of the variable dimensions; errors as `fixed`."""
    return prod(fixed(shape, sizes))


def fixed(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """`shape` with every variable dimension replaced by its size.

    Raises:
        BundleError: a dimension without a size, or an expression of something else than +, −, × and whole division.
    """
    return tuple(size if isinstance(size, int) else _evaluate(size, sizes) for size in shape)


def _evaluate(expression: str, sizes: Mapping[str, int]) -> int:
    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in sizes:
            return sizes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise BundleError(f"dimension {expression!r}: its size is not known")

    try:
        return value(ast.parse(expression, mode="eval").body)
    except SyntaxError as error:
        raise BundleError(f"dimension {expression!r}: its size is not known") from error


def _graph(content: memoryview) -> OnnxGraph:
    nodes: list[Node] = []
    weights: dict[str, Shape] = {}
    values: dict[str, Shape] = {}
    for number, field in _fields(content):
        if number == _GRAPH_NODE:
            nodes.append(_node(_message(field)))
        elif number == _GRAPH_WEIGHT:
            name, shape = _weight(_message(field))
            weights[name] = shape
        elif number in _GRAPH_VALUES:
            name, shape_or_none = _value(_message(field))
            if shape_or_none is not None:
                values[name] = shape_or_none
    return OnnxGraph(tuple(nodes), weights, {name: shape for name, shape in values.items() if name not in weights})


def _node(content: memoryview) -> Node:
    kind, inputs, outputs, integers = "", list[str](), list[str](), dict[str, int]()
    for number, field in _fields(content):
        if number == _NODE_INPUT:
            inputs.append(_text(field))
        elif number == _NODE_OUTPUT:
            outputs.append(_text(field))
        elif number == _NODE_KIND:
            kind = _text(field)
        elif number == _NODE_ATTRIBUTE:
            attribute = dict(_fields(_message(field)))
            integer = attribute.get(_ATTRIBUTE_INT)
            if isinstance(integer, int):
                integers[_text(attribute[_ATTRIBUTE_NAME])] = integer
    return Node(kind, tuple(inputs), tuple(outputs), integers)


def _weight(content: memoryview) -> tuple[str, Shape]:
    name, dims = "", list[int]()
    for number, field in _fields(content):
        if number == _WEIGHT_DIMS:
            dims += [field] if isinstance(field, int) else _packed(field)
        elif number == _WEIGHT_NAME:
            name = _text(field)
    return name, tuple(dims)


def _value(content: memoryview) -> tuple[str, Shape | None]:
    """Name and shape of a value; None where it is no tensor, or its shape is not stated."""
    fields = dict(_fields(content))
    name = _text(fields[_VALUE_NAME])
    inner = fields.get(_VALUE_TYPE)
    for number in (_TYPE_TENSOR, _TENSOR_SHAPE):
        inner = None if inner is None else dict(_fields(_message(inner))).get(number)
    if inner is None:
        return name, None
    return name, tuple(
        _dimension(_message(field)) for number, field in _fields(_message(inner)) if number == _SHAPE_DIM
    )


def _dimension(content: memoryview) -> Dimension:
    fields = dict(_fields(content))
    if _DIM_NAME in fields:
        return _text(fields[_DIM_NAME])
    size = fields.get(_DIM_VALUE, "unknown")
    return size if isinstance(size, int) else "unknown"


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and content of each field of a message; fixed-width numbers, which no field here is, stay bytes."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        wire = key & 7
        if wire == _VARINT:
            value, position = _varint(content, position)
            yield key >> 3, value
            continue
        if wire == _LENGTH:
            length, position = _varint(content, position)
        else:
            length = _FIXED_BYTES.get(wire, len(content))
        if position + length > len(content):
            raise IndexError("a field reaches beyond its message")
        yield key >> 3, content[position : position + length]
        position += length


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (value if value < _INT64_RANGE // 2 else value - _INT64_RANGE), position


def _packed(content: memoryview) -> list[int]:
    values, position = list[int](), 0
    while position < len(content):
        value, position = _varint(content, position)
        values.append(value)
    return values


def _message(field: int | memoryview) -> memoryview:
    if isinstance(field, int):
        raise TypeError("a number where a message is expected")
    return field


def _text(field: int | memoryview) -> str:
    return bytes(_message(field)).decode()
