"""One external weights file per network, shared by its graphs: equal tensors are stored once."""

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

ALIGNMENT_BYTES = 4096
"""Tensors start on pages, so that a runtime can map them."""

INLINE_BELOW_BYTES = 1024
"""Smaller tensors stay in the graph: compilers need shapes and scalars before they read any weights."""


class WeightsFile:
    """Appends tensors to a file, equal ones once. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[int, int]] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> "WeightsFile":
        self._file = self.path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def move_out(self, model: ir.Model) -> None:
        """Moves the larger initializers of `model` into this file, one at a time."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= INLINE_BELOW_BYTES:
                value.const_value = self.add(tensor)

    def add(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        """The tensor as a reference into this file, appended if it is new."""
        data = np.ascontiguousarray(tensor.numpy())
        key = _key(data)
        if key not in self._known:
            self._known[key] = self._append(data)
        offset, length = self._known[key]
        return ir.ExternalTensor(
            self.path.name,
            offset,
            length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
            base_dir=self.path.parent,
        )

    def _append(self, data: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> tuple[int, int]:
        if self._file is None:
            raise ValueError(f"{self.path}: not open")
        offset = -(-self._file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._file.seek(offset)
        data.tofile(self._file)
        # tofile writes through the descriptor, past Python's own position.
        self._file.seek(0, 2)
        return offset, data.nbytes


def _key(data: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> str:
    # As bytes: NumPy exports no buffer of 8-bit floats, which it does not know.
    return hashlib.sha256(data.reshape(-1).view(np.uint8).data).hexdigest()
