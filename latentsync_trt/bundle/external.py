"""Which files a graph reads besides its own: a walk over its protobuf, as runs do without the `onnx` package."""

from collections.abc import Iterator

_INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {1: "key", 4: "value", 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
    "external data": {1: "key", 2: "value"},
}
"""By numbers, those fields of ONNX's messages that lead to names of files."""

_NAMING = {"external data": b"location", "attribute": b"ep_cache_context"}
"""Keys whose values are names of files: of tensors, and of the engine that ONNX Runtime's node `EPContext` loads."""

_VARINT, _SIZED, _FIXED_BYTES = 0, 2, {1: 8, 5: 4}  # types of fields; ONNX has no groups, which are 3 and 4


def external_files(message: memoryview, kind: str = "model") -> Iterator[bytes]:
    """The names of all files that a graph reads; raises `LookupError` or `ValueError` if this is no graph."""
    at, texts = 0, dict[str, list[bytes]](key=[], value=[])
    while at < len(message):
        tag, at = _varint(message, at)
        number, form = tag >> 3, tag & 7
        size, at = _varint(message, at) if form in (_VARINT, _SIZED) else (_FIXED_BYTES[form], at)
        end = at if form == _VARINT else at + size
        if end > len(message) or tag >> 32:  # of a longer tag, other parsers see a part
            raise ValueError("a field goes beyond its message")
        inside = _INSIDE[kind].get(number, "") if form == _SIZED else ""
        if inside in texts:
            texts[inside].append(bytes(message[at:end]))
        elif inside:
            yield from external_files(message[at:end], inside)
        at = end
    if _NAMING.get(kind) in texts["key"]:
        yield from texts["value"]


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number at a place, and the place after it."""
    value = 0
    for shift in range(0, 64, 7):
        value |= (message[at + shift // 7] & 127) << shift
        if message[at + shift // 7] < 128:
            return value, at + shift // 7 + 1
    raise ValueError("a number has more than 64 bits")
