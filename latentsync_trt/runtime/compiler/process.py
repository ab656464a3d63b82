"""Compiles a graph with TensorRT or TensorRT-RTX in a child process, and reads what these libraries say.

The compiler runs for minutes without handling signals, writes to the console past its logger, does not free all memory,
and may crash.

ONNX Runtime's TensorRT provider does not build the engines: since 1.27 it requests weakly typed networks
(https://github.com/microsoft/onnxruntime/pull/29779), in which TensorRT does not keep the precision of float16, INT8
and FP8 graphs, and its errors do not contain TensorRT's reason.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

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

_LARGEST = 10

# Words of the inspector in lower case, each before those that it contains, and what they mean: type, bits of a value.
_TYPES = (
    *(("uint8", "uint8", 8), ("int8", "int8", 8), ("int32", "int32", 32), ("int64", "int64", 64)),
    *(("fp8", "fp8", 8), ("bf16", "bf16", 16), ("bfloat16", "bf16", 16), ("fp16", "fp16", 16), ("half", "fp16", 16)),
    *(("fp32", "fp32", 32), ("float", "fp32", 32), ("bool", "bool", 8)),
)

# SIGKILL, which POSIX systems send when memory runs out.
_KILLED = -9
MEMORY_CURE = "close other programs; the published U-Net at 512 px takes about 9 GB"


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
        layers: file for the engine inspector's description of the engine, in JSON; see `layers.summarize`.
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
    layers: str | None = None
    context: ContextModel | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of compiling.

    `reason`: the operation and the message of the parser or builder; empty if accepted. `out_of_memory`: of the GPU.
    `layers`: TensorRT layers before fusion; 0 if parsing failed. `engine_bytes`: with weights; 0 if not accepted.
    `device_memory_bytes`: GPU memory of a run, without weights; None if not asked for by `layers`, or unknown.
    `seconds`: for parsing and building. `rejected_timings`: why earlier timings were rejected, empty if they were not.
    """

    accepted: bool
    reason: str
    out_of_memory: bool = False
    layers: int = 0
    engine_bytes: int = 0
    device_memory_bytes: int | None = None
    seconds: float = 0.0
    version: str = ""
    rejected_timings: str = ""


def run_compiler(
    order: CompileOrder,
    environment: Mapping[str, str] | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Answer:
    """Compiles a graph; after a crash of the compiler, the graph counts as not accepted.

    Args:
        environment: variables of the child process in addition to those of this one.
        on_progress: called every `progress.REPORT_S` with the fraction of the build that is done; it never decreases.

    Raises:
        OutOfMemory: host memory ran out, or the system killed the process, most likely for that reason.
        EngineBuildError: the process could not be started.
    """
    answers: list[Event] = []

    def on_event(event: Event) -> None:
        if "progress" in event:
            on_progress(event["progress"])
        else:
            answers.append(event)

    try:
        ended = run_child(_WORKER, asdict(order), on_event, environment)
    except OSError as error:
        raise EngineBuildError(f"the compiler's process cannot be started ({error})") from error
    if answers:
        return Answer(**answers[-1])
    if ended.code == _KILLED or is_out_of_memory(ended.last_error_line):
        raise OutOfMemory(f"{order.path}: the compiler was killed, most likely for memory; {MEMORY_CURE}")
    return Answer(False, f"the compiler crashed ({ended}): {ended.last_error_line or 'no message'}")


def is_out_of_memory(text: str) -> bool:
    """Whether an error text means that the host or the device has too little memory."""
    return any(sign in text.lower() for sign in _OUT_OF_MEMORY)


def last_line(error: Exception) -> str:
    """The useful part of an ONNX Runtime message: its last line that is neither empty nor cuDNN's JSON dump."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("{")]
    return lines[-1] if lines else type(error).__name__


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A layer of an engine; `moved_bytes`: of its inputs, outputs and weights, as far as the inspector names them."""

    name: str
    kind: str
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """The layers of an engine.

    Args:
        layers: how many, after fusion. kinds: how many of each kind. precisions: how many write each type first.
        formats: how many outputs are in each format, in TensorRT's words: a type, or a type and a memory layout.
        largest: those that read and write most, which is known before they run; how long they take is not.
    """

    layers: int
    kinds: Mapping[str, int]
    precisions: Mapping[str, int]
    formats: Mapping[str, int]
    largest: tuple[LayerSize, ...]


def summarize(path: Path) -> LayerSummary | None:
    """The summary of a description in JSON, with the verbosity "detailed"; None if there is none, or it is no JSON."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        layers = [layer for layer in described["Layers"] if isinstance(layer, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    outputs = [[_format(tensor) for tensor in layer.get("Outputs", ())] for layer in layers]
    sizes = [LayerSize(layer.get("Name", ""), layer.get("LayerType", ""), _moved_bytes(layer)) for layer in layers]
    return LayerSummary(
        layers=len(layers),
        kinds=dict(Counter(size.kind for size in sizes)),
        precisions=dict(Counter(_type(formats[0])[0] for formats in outputs if formats)),
        formats=dict(Counter(chain.from_iterable(outputs))),
        largest=tuple(sorted(sizes, key=lambda size: -size.moved_bytes)[:_LARGEST]),
    )


def _format(tensor: Mapping[str, Any]) -> str:
    return str(tensor.get("Format/Datatype", ""))


def _type(text: str) -> tuple[str, int]:
    """A type and the bits of a value, 0 if the inspector's words are unknown."""
    return next(((name, bits) for sign, name, bits in _TYPES if sign in text.lower()), (text or "unknown", 0))


def _moved_bytes(layer: Mapping[str, Any]) -> int:
    """A variable dimension, which is negative, counts as 1."""
    weights = [layer[name] for name in ("Weights", "Bias") if isinstance(layer.get(name), dict)]
    bits = sum(int(values.get("Count", 0)) * _type(str(values.get("Type", "")))[1] for values in weights)
    for tensor in (*layer.get("Inputs", ()), *layer.get("Outputs", ())):
        bits += math.prod(max(1, int(size)) for size in tensor.get("Dimensions", ())) * _type(_format(tensor))[1]
    return bits // 8
