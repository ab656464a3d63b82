"""One external weights file per network, shared by its graphs: equal tensors are stored once."""

import hashlib
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import onnx_ir as ir

ALIGNMENT_BYTES = 4096
"""Tensors are page-aligned, so that a runtime can map them into memory."""

INLINE_BELOW_BYTES = 1024
"""Smaller tensors stay in the graph: compilers need shapes and scalars before they read any weights."""


class WeightsFile:
    """A new file of tensors, as a context manager; it may be read while it is written."""

    _file: BinaryIO

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locations: dict[bytes, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        self._file = self.path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def move_out(self, model: ir.Model) -> None:
        """Moves the larger initializers of `model` into this file, one at a time."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= INLINE_BELOW_BYTES:
                value.const_value = self.add(tensor)

    def add(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        """The tensor as a reference into this file, appended if it is new."""
        # As bytes: NumPy has no buffer format for 8-bit floats.
        data = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data
        key = hashlib.sha256(data).digest()
        if key not in self._locations:
            offset = -(-self._file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            self._file.seek(offset)
            self._file.write(data)
            self._file.flush()
            self._locations[key] = offset, data.nbytes
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
