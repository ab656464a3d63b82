"""What graphs read from other files: weights, in one file per network, and the names of all those
files.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

ALIGNMENT_BYTES = 4096
"""Tensors are page-aligned, so that a runtime can map them into memory."""

INLINE_BELOW_BYTES = 1024
"""Smaller tensors stay in the graph: compilers need shapes and scalars before they read any
weights.
"""

_INSIDE = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {
        1: "key",
        4: "value",
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse",
        23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
    "external data": {1: "key", 2: "value"},
}
"""What lies in those fields of ONNX's messages that lead to names of files, by their numbers."""

_NAMING = {"external data": b"location", "attribute": b"ep_cache_context"}
"""Keys whose values are names of files: of tensors, and of the engine that ONNX Runtime's node
`EPContext` loads.
"""


class WeightsFile:
    """A new file of tensors, shared by the graphs of a network: equal tensors are stored once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locations: dict[bytes, tuple[int, int]] = {}
        path.touch()

    def move_out(self, model: "ir.Model") -> None:
        """Moves the larger initializers of `model` into this file, one at a time."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= INLINE_BELOW_BYTES:
                value.const_value = self.add(tensor)

    def add(self, tensor: "ir.TensorProtocol") -> "ir.ExternalTensor":
        """Returns the tensor as a reference into this file, which gets it if it is new."""
        import numpy as np
        import onnx_ir as ir

        # As bytes: NumPy has no buffer format for 8-bit floats.
        values = np.ascontiguousarray(tensor.numpy()).reshape(-1)
        data = values.view(np.uint8).data
        key = hashlib.sha256(data).digest()
        if key not in self._locations:
            with self.path.open("ab") as file:
                file.write(bytes(-file.tell() % ALIGNMENT_BYTES))
                self._locations[key] = file.tell(), data.nbytes
                file.write(data)
        offset, length = self._locations[key]
        return ir.ExternalTensor(
            self.path.name,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=self.path.parent,
        )


def external_files(message: bytes, kind: str = "model") -> Iterator[bytes]:
    """Yields the names of all files that an ONNX graph reads, without the package `onnx`, which no
    run needs.

    Raises:
        ValueError: this is no graph.
    """
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    try:
        fields = UnknownFieldSet(Empty.FromString(message))
    except DecodeError as error:
        raise ValueError(str(error)) from error
    texts = dict[str, list[bytes]](key=[], value=[])
    for field in fields:
        inside = _INSIDE[kind].get(field.field_number)
        if inside is None or not isinstance(field.data, bytes):
            continue
        if inside in texts:
            texts[inside].append(field.data)
        elif any(key in field.data for key in _NAMING.values()):  # else it names no file
            yield from external_files(field.data, inside)
    if _NAMING.get(kind) in texts["key"]:
        yield from texts["value"]
