"""One ONNX graph on one execution provider: the only way the other rooms run a graph."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from latentsync_trt.errors import EngineBuildError, InferenceError

Array = NDArray[Any]

_AS_REQUESTED = 1

_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and element type of a graph's input or output; a str in `shape` names a dynamic dimension."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


class Session:
    """A graph, loaded. Thread-safe: ONNX Runtime allows concurrent runs of one session.

    Args:
        path: the `.onnx` file; external weights lie beside it.
        providers: ONNX Runtime provider names with their option dictionaries, best first.
        intra_op_threads: CPU threads for one operator; None = one per physical core.

    Raises:
        EngineBuildError: the graph cannot be loaded or compiled.
    """

    def __init__(
        self,
        path: Path,
        providers: list[tuple[str, dict[str, str]]] | None = None,
        *,
        intra_op_threads: int | None = None,
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        _share_cpu_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # Waiting threads that spin take the cores that decoding, face work and encoding need at the same time.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if intra_op_threads is not None:
            options.intra_op_num_threads = intra_op_threads
        self.path = path
        try:
            self.ort = ort.InferenceSession(str(path), options, providers=providers or [("CPUExecutionProvider", {})])
        except Exception as error:
            raise EngineBuildError(f"{path}: {last_line(error)}") from error
        self.inputs = tuple(_tensor_info(node) for node in self.ort.get_inputs())
        self.outputs = tuple(_tensor_info(node) for node in self.ort.get_outputs())

    @property
    def provider(self) -> str:
        """The provider ONNX Runtime really put first, e.g. "CPUExecutionProvider"."""
        return str(self.ort.get_providers()[0])

    def run(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        """Runs the graph on host arrays; returns all outputs in the graph's order.

        Raises:
            InferenceError: an input has the wrong name, shape or type, or the provider failed.
        """
        try:
            return tuple(self.ort.run(None, dict(inputs)))
        except Exception as error:
            raise InferenceError(f"{self.path.name} on {self.provider}: {last_line(error)}") from error


@functools.cache
def _share_cpu_memory() -> None:
    """Gives all sessions one pool of host memory that grows by what is asked for; each would keep its own peak."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    settings = ort.OrtArenaCfg({"arena_extend_strategy": _AS_REQUESTED})
    ort.create_and_register_allocator(memory, settings)


def _tensor_info(node: Any) -> TensorInfo:
    return TensorInfo(node.name, tuple(node.shape), np.dtype(_NUMPY_TYPES[node.type]))


def last_line(error: Exception) -> str:
    """The part of an ONNX Runtime message that a person can use: its last non-empty line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
