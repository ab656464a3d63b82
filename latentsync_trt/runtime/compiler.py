"""Compiles a graph with TensorRT or TensorRT-RTX in a child process, and reads what these libraries say.

The compiler runs for minutes without handling signals, writes to the console past its logger, does
not free all memory, and may crash.

ONNX Runtime's TensorRT provider does not build the engines: since 1.27 it requests weakly typed
networks (https://github.com/microsoft/onnxruntime/pull/29779), in which TensorRT does not keep the
precision of float16, INT8 and FP8 graphs, and its errors do not contain TensorRT's reason.
"""

import importlib
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.child import Emit, Event, run_child, serve
from latentsync_trt.errors import EngineBuildError, OutOfMemory

Compiler = Literal["tensorrt", "tensorrt_rtx"]
"""Names of the Python modules."""

_MODULE = "latentsync_trt.runtime.compiler"
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
        ended = run_child(_MODULE, asdict(order), answers.append, environment)
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


# The parser's conditions for an operation that it knows but does not support, and for an unknown one.
_UNSUPPORTED = "false"
_UNKNOWN = "Plugin not found"
# Without a GPU, each failure is followed by one of these, which do not concern the graph.
_NO_GPU = ("checkMacros.cpp::catchCudaError", "CUDA driver version is insufficient")


def compile_order(trt: Any, order: Mapping[str, Any]) -> dict[str, Any]:
    """Compiles the graph at `order["path"]`, strongly typed, and writes the files that the order names.

    Args:
        trt: the Python module of TensorRT or of TensorRT-RTX.
        order: the fields of `process.CompileOrder`; all paths but that of the graph are absolute.

    Returns:
        The fields of `process.Answer`.
    """
    if not trt.__version__.startswith(order["version"]):
        return {"accepted": False, "reason": "the compiler is of another version", "version": str(trt.__version__)}
    if order["context"]:
        importlib.import_module("onnx")  # if it is missing, fail now, not after minutes of building
    log = _make_log(trt)
    started_s = time.perf_counter()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    engine, memory_bytes = None, None
    if _parse(parser, Path(order["path"])):
        _let_attention_decompose(trt, network)
        engine = _build(trt, builder, network, order, log)
        reason = "" if engine is not None else _builder_reason(log)
        if engine is not None and order["engine"]:
            memory_bytes = _device_memory_bytes(trt, engine, log)
    else:
        reason = _parser_reason(parser)
    return {
        "accepted": engine is not None,
        "reason": reason,
        "out_of_memory": engine is None and any(map(is_out_of_memory, (*log.errors, *log.warnings))),
        "layers": 0 if parser.num_errors else network.num_layers,
        "engine_bytes": 0 if engine is None else engine.nbytes,
        "device_memory_bytes": memory_bytes,
        "seconds": round(time.perf_counter() - started_s, 3),
        "version": str(trt.__version__),
    }


def _parse(parser: Any, path: Path) -> bool:
    """Parses from within the folder: C++ takes names of files for text in the system's code page on
    Windows, and names in bundles are ASCII."""
    with chdir(path.parent):
        return bool(parser.parse_from_file(path.name))


def _let_attention_decompose(trt: Any, network: Any) -> None:
    """Allows attention in parts where TensorRT has no fused kernel, as in float32; otherwise, building would fail."""
    for layer in map(network.get_layer, range(network.num_layers)):
        if layer.type == trt.LayerType.ATTENTION_OUTPUT:
            layer.__class__ = trt.IAttentionOutputLayer  # `get_layer` returns the base class
            layer.attention.decomposable = True


def _build(trt: Any, builder: Any, network: Any, order: Mapping[str, Any], log: Any) -> Any:
    """The engine or None, after writing its files."""
    config = _config(trt, builder, order)
    timings = order["timings"] and Path(order["timings"])
    if timings:
        _take_timings(config, timings, log)
    engine = builder.build_serialized_network(network, config)
    if engine is not None:
        if timings:
            timings.write_bytes(bytes(config.get_timing_cache().serialize()))
        if order["engine"]:
            with Path(order["engine"]).open("wb") as file:
                file.write(engine)
        if order["context"]:
            write_context_model(**order["context"])
    return engine


def _device_memory_bytes(trt: Any, engine: Any, log: Any) -> int | None:
    """GPU memory of a run, without weights; None if the engine does not open, for lack of a GPU or of its memory."""
    runtime = trt.Runtime(log)
    opened = runtime.deserialize_cuda_engine(engine)
    return None if opened is None else int(opened.device_memory_size_v2)


def _make_log(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        """Keeps errors and warnings."""

        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            """Called by the compiler."""
            if any(sign in message for sign in _NO_GPU):
                return
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message)
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(message)

    return Log()


def _config(trt: Any, builder: Any, order: Mapping[str, Any]) -> Any:
    config = builder.create_builder_config()
    if order["target"]:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, order["target"]), 0)
    if order["optimization_level"] is not None:
        config.builder_optimization_level = order["optimization_level"]
    if order["workspace_bytes"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, order["workspace_bytes"])
    if order["profile"]:
        profile = builder.create_optimization_profile()
        for name, shapes in order["profile"].items():
            profile.set_shape(name, *shapes)
        config.add_optimization_profile(profile)
    return config


def _take_timings(config: Any, path: Path, log: Any) -> None:
    """Passes kernel timings of earlier builds to the builder; none where it rejects them, as of damaged ones."""
    for known in (path.read_bytes() if path.is_file() else b"", b""):
        cache = config.create_timing_cache(known)
        if cache is not None and config.set_timing_cache(cache, False):
            break
    log.errors.clear()  # else they would be reported as the reason if building fails


def write_context_model(
    path: str,
    engine: str,
    compute_capability: str,
    inputs: Sequence[tuple[str, str, Sequence[int | str]]],
    outputs: Sequence[tuple[str, str, Sequence[int | str]]],
) -> None:
    """Writes the one-node model through which ONNX Runtime's TensorRT provider loads an engine that it did not build.

    Node attributes: https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html

    Args:
        engine: path of the engine, relative to the model's folder.
        inputs, outputs: name, NumPy dtype and shape of each; a str is a variable dimension.
    """
    import numpy as np
    import onnx
    from onnx import helper

    def info(entry: tuple[str, str, Sequence[int | str]]) -> Any:
        name, dtype, shape = entry
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    node = helper.make_node(
        "EPContext",
        [name for name, *_ in inputs],
        [name for name, *_ in outputs],
        domain="com.microsoft",
        embed_mode=0,
        ep_cache_context=engine,
        hardware_architecture=compute_capability.replace(".", ""),
        source="TensorrtExecutionProvider",
    )
    graph = helper.make_graph([node], "engine", [info(entry) for entry in inputs], [info(entry) for entry in outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def _parser_reason(parser: Any) -> str:
    """The rejected operations, each with its first node and the parser's message."""
    reasons: dict[str, str] = {}
    for error in (parser.get_error(index) for index in range(parser.num_errors)):
        text, operator = _one_line(error.desc()), error.node_operator()
        if text == _UNSUPPORTED or _UNKNOWN in text:
            text = "TensorRT has no such operation"
        reasons.setdefault(operator, f"{operator} (node {error.node_name()}): {text}" if operator else text)
    return "; ".join(reasons.values()) or "the parser gives no reason"


def _builder_reason(log: Any) -> str:
    messages = log.errors or log.warnings
    return _one_line(messages[0]) if messages else "the builder gives no reason"


def _one_line(text: str) -> str:
    """The text without line breaks and without the lines that TensorRT adds if there is no GPU."""
    return " ".join(" ".join(line for line in text.splitlines() if not any(sign in line for sign in _NO_GPU)).split())


if __name__ == "__main__":

    def work(order: Event, emit: Emit) -> None:
        trt = importlib.import_module(order["compiler"])
        emit(**compile_order(trt, order))

    serve(work)
