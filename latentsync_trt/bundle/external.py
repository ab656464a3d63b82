"""Which files a graph reads besides its own: a walk over its protobuf, as runs do without the `onnx` package."""

from collections.abc import Iterator

_MESSAGES = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {1: "key", 2: "value"},
}
"""By field number, those of ONNX's messages that lead to tensors and to the entries of their external data."""

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5  # types of fields; groups are in no version of ONNX


def external_files(content: bytes, start: int = 0, end: int | None = None, kind: str = "model") -> Iterator[bytes]:
    """All values of entries with the key "location" within a message.

    Raises:
        ValueError, IndexError, RecursionError: no protobuf, or one that no ONNX file has.
    """
    at, end, texts = start, len(content) if end is None else end, dict[str, list[bytes]](key=[], value=[])
    while at < end:
        tag, at = _varint(content, at)
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(tag & 7, 0)
        if tag & 7 in (_VARINT, _SIZED):
            value, at = _varint(content, at)
            size = value if tag & 7 == _SIZED else 0
        elif not size:
            raise ValueError(f"a field of type {tag & 7}")
        if at + size > end or tag >> 32:  # of a longer tag, parsers may see a part
            raise ValueError("a field goes beyond its message")
        inner = _MESSAGES[kind].get(tag >> 3) if tag & 7 == _SIZED else None
        if inner in texts:
            texts[inner].append(content[at : at + size])
        elif inner is not None:
            yield from external_files(content, at, at + size, inner)
        at += size
    if b"location" in texts["key"]:
        yield from texts["value"]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits at a place, and the place after it."""
    value = 0
    for shift in range(0, 64, 7):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")
