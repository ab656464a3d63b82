"""A graph that also hands out samples of its inner values, made without the `onnx` package. Pure.

Protocol Buffers merge a message that is written in two pieces: what is appended to an `.onnx` file as one more piece of
its graph is added to that graph. So nothing of the file is read again or changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

SAMPLED_SUFFIX = ":sample"

_PREFIX = "sample:"
_TO_THE_END = 2**62

# Field numbers of onnx.proto, and Protocol Buffers' wire types.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_WEIGHT, _GRAPH_OUTPUT = 1, 5, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND = 1, 2, 4
_WEIGHT_DIMS, _WEIGHT_TYPE, _WEIGHT_INTEGERS, _WEIGHT_NAME = 1, 2, 7, 8
_INT64 = 7
_VALUE_NAME = 1
_VARINT, _LENGTH = 0, 2


@dataclass(frozen=True, slots=True)
class _Constant:
    name: str
    value: int


_FLAT, _START, _END, _AXIS = (
    _Constant(f"{_PREFIX}{name}", value)
    for name, value in (("flat", -1), ("start", 0), ("end", _TO_THE_END), ("axis", 0))
)


def with_samples(content: bytes, strides: Mapping[str, int]) -> bytes:
    """The `.onnx` file `content` with an output `tensor + SAMPLED_SUFFIX` for each of the tensors in `strides`: every
    so manieth of its values, `(n,)`, of its own type."""
    steps = {stride: _Constant(f"{_PREFIX}{stride}", stride) for stride in strides.values()}
    parts = [_weight(constant) for constant in (_FLAT, _START, _END, _AXIS, *steps.values())]
    for tensor, stride in strides.items():
        flat, sample = f"{_PREFIX}{tensor}", f"{tensor}{SAMPLED_SUFFIX}"
        parts += [
            _node("Reshape", (tensor, _FLAT.name), flat),
            _node("Slice", (flat, _START.name, _END.name, _AXIS.name, steps[stride].name), sample),
            _field(_GRAPH_OUTPUT, _field(_VALUE_NAME, sample.encode())),
        ]
    return content + _field(_MODEL_GRAPH, b"".join(parts))


def stride_for(size: int, wanted: int) -> int:
    """A stride that takes about `wanted` of `size` values, and meets all channels in turn whatever the shape."""
    stride = max(1, size // wanted)
    while gcd(stride, size) != 1:
        stride += 1
    return stride


def _node(kind: str, inputs: tuple[str, ...], output: str) -> bytes:
    fields = [_field(_NODE_INPUT, name.encode()) for name in inputs]
    fields += [_field(_NODE_OUTPUT, output.encode()), _field(_NODE_KIND, kind.encode())]
    return _field(_GRAPH_NODE, b"".join(fields))


def _weight(constant: _Constant) -> bytes:
    fields = [
        _number(_WEIGHT_DIMS, 1),
        _number(_WEIGHT_TYPE, _INT64),
        _field(_WEIGHT_INTEGERS, _varint(constant.value)),
        _field(_WEIGHT_NAME, constant.name.encode()),
    ]
    return _field(_GRAPH_WEIGHT, b"".join(fields))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    value %= 1 << 64  # negative numbers as two's complement
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
