"""One graph compiled by TensorRT, or by TensorRT-RTX, in a child process.

The compiler works for minutes without handling signals, writes to the console what no logger receives, keeps much of
its memory, and may crash.

ONNX Runtime's TensorRT provider could build engines itself. It is not used for that: from 1.27 on it asks for weakly
typed networks (https://github.com/microsoft/onnxruntime/pull/29779), in which TensorRT does not keep the precision of
float16, INT8 and FP8 graphs; and its error messages do not contain TensorRT's reason.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from latentsync_trt.errors import EngineBuildError, OutOfMemory
from latentsync_trt.runtime.compiler.child import Event, run_child
from latentsync_trt.runtime.compiler.failures import is_out_of_memory

Compiler = Literal["tensorrt", "tensorrt_rtx"]
"""Names of the Python modules."""

_WORKER = "latentsync_trt.runtime.compiler.worker"
# Exit code of a process that a POSIX system kills for memory.
_KILLED = -9
MEMORY_CURE = "close other programs; the published U-Net at 512 px takes about 9 GB"


@dataclass(frozen=True, slots=True)
class ContextModel:
    """The model of one node by which ONNX Runtime loads an engine; see `worker.write_context_model`."""

    path: str
    engine: str
    compute_capability: str
    inputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int | str, ...]], ...]


@dataclass(frozen=True, slots=True)
class CompileOrder:
    """What to compile, and what to write.

    Args:
        compiler: which one. path: the `.onnx` file; external weights lie beside it.
        profile: smallest, usual and largest shape of each input with a variable dimension.
        target: GPU generation to compile for, e.g. "SM89"; None = the GPU of this machine.
        optimization_level: 0 to 5. workspace_bytes: limit of scratch memory. None = the compiler's default.
        timings: file of kernel timings to read and to write, if they are to be kept.
        engine: file to write the engine to. context: the model that loads it.
        version: what the compiler's version must begin with; another version compiles nothing.
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
    """The compiler's verdict.

    `reason`: the operation and the parser's or builder's message; empty if accepted. `out_of_memory`: of the GPU.
    `layers`: TensorRT layers that the parser made of the graph, before fusion; 0 if it could not. `engine_bytes`: size
    of the engine, weights included; 0 if refused. `seconds`: parsing and building. `version`: of the compiler.
    `rejected_timings`: why it rejected the timings of earlier builds, empty if it did not.
    """

    accepted: bool
    reason: str
    out_of_memory: bool = False
    layers: int = 0
    engine_bytes: int = 0
    seconds: float = 0.0
    version: str = ""
    rejected_timings: str = ""


def run_compiler(order: CompileOrder, environment: Mapping[str, str] | None = None) -> Answer:
    """Compiles a graph; a compiler that crashes counts as a refusal.

    Args:
        environment: variables of the child process in addition to those of this one.

    Raises:
        OutOfMemory: the system killed the process, which systems do for memory, or the host's memory ran out.
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
        raise OutOfMemory(f"{order.path}: the compiler was killed, most likely for memory; {MEMORY_CURE}")
    return Answer(False, f"the compiler crashed ({ended}): {ended.last_error_line or 'no message'}")
