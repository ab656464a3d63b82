"""Compiles a graph with TensorRT or TensorRT-RTX in a child process, and reads what these libraries say.

The compiler runs for minutes without handling signals, writes to the console past its logger, does
not free all memory, and may crash.

ONNX Runtime's TensorRT provider does not build the engines: since 1.27 it requests weakly typed
networks (https://github.com/microsoft/onnxruntime/pull/29779), in which TensorRT does not keep the
precision of float16, INT8 and FP8 graphs, and its errors do not contain TensorRT's reason.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from latentsync_trt.child import Event, run_child
from latentsync_trt.errors import EngineBuildError, OutOfMemory

Compiler = Literal["tensorrt", "tensorrt_rtx"]
"""Names of the Python modules."""

_WORKER = "latentsync_trt.runtime.compiler.worker"
# Of errors of ONNX Runtime's arena, the CUDA runtime, cuDNN, cuBLAS, TensorRT, C++ and Python.
_OUT_OF_MEMORY = (
    "out of memory",
    "outofmemory",
    "failed to allocate memory",
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
    "the resource allocation failed",
    "is smaller than requested bytes",
    "could not be allocated",
    "bad allocation",
    "bad_alloc",
    "insufficient memory",
    "memoryerror",
)

# SIGKILL, which POSIX systems send when memory runs out.
_KILLED = -9
_MEMORY_CURE = "close other programs; the published U-Net at 512 px takes about 9 GB"


@dataclass(frozen=True, slots=True)
class ContextModel:
    """The one-node model through which ONNX Runtime loads an engine; see `worker.write_context_model`."""

    path: str
    engine: str
    compute_capability: str
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]


@dataclass(frozen=True, slots=True)
class CompileOrder:
    """What to compile, and what to write.

    Args:
        path: the `.onnx` file, with external weights in the same folder.
        profile: minimum, optimum and maximum shape of each input with a variable dimension.
        target: GPU generation to compile for, e.g. "SM89"; None = the GPU of this machine.
        optimization_level: 0 to 5. workspace_bytes: limit of scratch memory. None = the compiler's default.
        timings: file of kernel timings to read and update. engine: file to write. context: the model that loads it.
        version: required prefix of the compiler's version.
    """

    compiler: Compiler
    path: str
    profile: Mapping[str, tuple[tuple[int, ...], ...]]
    target: str | None = None
    optimization_level: int | None = None
    workspace_bytes: int | None = None
    timings: str | None = None
    engine: str | None = None
    context: ContextModel | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of compiling.

    `reason`: the operation and the message of the parser or builder; empty if accepted. `out_of_memory`: of the GPU.
    `layers`: TensorRT layers before fusion; 0 if parsing failed. `engine_bytes`: with weights; 0 if not accepted.
    `device_memory_bytes`: GPU memory of a run, without weights; None if no engine was written, or unknown.
    `seconds`: for parsing and building.
    """

    accepted: bool
    reason: str
    out_of_memory: bool = False
    layers: int = 0
    engine_bytes: int = 0
    device_memory_bytes: int | None = None
    seconds: float = 0.0
    version: str = ""


def run_compiler(order: CompileOrder, environment: Mapping[str, str] | None = None) -> Answer:
    """Compiles a graph; after a crash of the compiler, the graph counts as not accepted.

    `environment`: variables of the child process in addition to those of this one.

    Raises:
        OutOfMemory: host memory ran out, or the system killed the process, most likely for that reason.
        EngineBuildError: the process could not be started.
    """
    answers: list[Event] = []
    try:
        ended = run_child(_WORKER, asdict(order), answers.append, environment)
    except OSError as error:
        raise EngineBuildError(f"the compiler's process cannot be started ({error})") from error
    if answers:
        return Answer(**answers[-1])
    if ended.code == _KILLED or is_out_of_memory(ended.last_error_line):
        raise OutOfMemory(f"{order.path}: the compiler was killed, most likely for memory; {_MEMORY_CURE}")
    return Answer(False, f"the compiler crashed ({ended}): {ended.last_error_line or 'no message'}")


def is_out_of_memory(text: str) -> bool:
    """Whether an error text means that the host or the device has too little memory."""
    return any(sign in text.lower() for sign in _OUT_OF_MEMORY)


def last_line(error: Exception) -> str:
    """The useful part of an ONNX Runtime message: its last line that is neither empty nor cuDNN's JSON dump."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("{")]
    return lines[-1] if lines else type(error).__name__
