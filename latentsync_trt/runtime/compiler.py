"""Compiles a graph with TensorRT; `scripts/` do so with TensorRT-RTX, too. In a child process, as
the compiler runs for minutes without handling signals, writes to the console past its logger, does
not free all memory, and may crash.

ONNX Runtime's TensorRT provider does not build the engines: since 1.27 it requests weakly typed
networks (https://github.com/microsoft/onnxruntime/pull/29779), in which TensorRT does not keep the
precision of float16, INT8 and FP8 graphs, and its errors do not contain TensorRT's reason.
"""

import importlib
import re
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from latentsync_trt.child import ChildLost, run_child
from latentsync_trt.child_main import OnProgress
from latentsync_trt.errors import EngineBuildError, OutOfMemory

ENGINE = "model.engine"
CONTEXT_MODEL = "context.onnx"
"""The engine, and in the same folder, as ONNX Runtime requires, the model through which it is
loaded.
"""

_OUT_OF_MEMORY = re.compile(
    "out of memory|outofmemory|failed to allocate "
    "memory|cudnn_status_alloc_failed|cublas_status_alloc_failed"
    "|the resource allocation failed|is smaller than requested bytes|could not be allocated"
    "|bad allocation|bad_alloc|insufficient memory|memoryerror",
    re.IGNORECASE,
)
"""What ONNX Runtime's arena, the CUDA runtime, cuDNN, cuBLAS, TensorRT, C++ and Python write when
memory is short.
"""

_KILLED = -9
"""Exit code after SIGKILL, which POSIX systems send when memory runs out."""

_UNSUPPORTED = "false"
"""The parser's message for an operation that it knows but does not support."""
_UNKNOWN = "Plugin not found"
"""What its message for an unknown operation contains."""

_NO_GPU = ("checkMacros.cpp::catchCudaError", "CUDA driver version is insufficient")
"""Signs of messages that follow each failure where there is no GPU; they do not concern the
graph.
"""


@dataclass(frozen=True, slots=True)
class CompileOrder:
    """What to compile, and what to write."""

    compiler: Literal["tensorrt", "tensorrt_rtx"]
    """The compiler's Python module."""
    path: str
    """The graph's file, absolute."""
    profile: Mapping[str, tuple[tuple[int, ...], ...]]
    """Minimum, optimum and maximum shape of each input with a variable dimension."""
    target: str | None = None
    """GPU generation to compile for, e.g. "SM89"; None = the GPU of this machine."""
    optimization_level: int | None = None
    """0 to 5; None = the compiler's default."""
    version: str = ""
    """How the compiler's version has to begin."""
    folder: str | None = None
    """Where to write `ENGINE` and `CONTEXT_MODEL`, absolute; None = nowhere."""
    compute_capability: str = ""
    """The GPU's, for the context model."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Sizes of variable dimensions that have a single one in the context model."""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The result of compiling."""

    accepted: bool
    reason: str
    """The operation and the message of the parser or builder; empty if accepted."""
    out_of_memory: bool = False
    """Whether the GPU had too little memory."""
    engine_bytes: int = 0
    """The engine's size, with weights."""
    device_memory_bytes: int | None = None
    """GPU memory of a run, without weights; None if unknown."""
    version: str = ""
    """The compiler's version."""


def run_compiler(
    order: CompileOrder, environment: Mapping[str, str] | None = None
) -> CompileResult:
    """Compiles a graph; after a crash of the compiler, the graph counts as not accepted.
    `environment`: as for `ChildProcess`. Raises `OutOfMemory` also where the system killed the
    process, `EngineBuildError` if it could not be started.
    """
    try:
        result: CompileResult = run_child(_compile_in_child, order, environment=environment)
    except ChildLost as lost:
        ended = lost.ended
        if ended.code == _KILLED or is_out_of_memory(ended.last_error_line):
            killed = f"{order.path}: the compiler was killed, most likely for memory"
            cure = "close other programs; the published U-Net at 512 px takes about 9 GB"
            raise OutOfMemory(f"{killed}; {cure}") from lost
        reason = f"the compiler crashed ({ended}): {ended.last_error_line or 'no message'}"
        return CompileResult(False, reason)
    except OSError as error:
        raise EngineBuildError(f"the compiler's process cannot be started ({error})") from error
    return result


def is_out_of_memory(text: str) -> bool:
    return _OUT_OF_MEMORY.search(text) is not None


def last_line(error: Exception) -> str:
    """Returns the useful part of an ONNX Runtime message: its last line that is neither empty nor
    cuDNN's JSON dump.
    """
    for line in reversed(str(error).splitlines()):
        text = line.strip()
        if text and not text.startswith("{"):
            return text
    return type(error).__name__


def _compile_in_child(order: CompileOrder, _: OnProgress) -> CompileResult:
    return compile_order(importlib.import_module(order.compiler), order)


def compile_order(trt: Any, order: CompileOrder) -> CompileResult:
    """Compiles a graph in this process, strongly typed; `trt`: the compiler's Python module."""
    version = str(trt.__version__)
    if not version.startswith(order.version):
        return CompileResult(False, "the compiler is of another version", version=version)
    if order.folder:
        importlib.import_module("onnx")  # if it is missing, fail now, not after minutes of building
    log = _make_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    path = Path(order.path)
    # From within the folder: on Windows, C++ takes names of files for text in the system's code
    # page.
    with chdir(path.parent):
        parsed = parser.parse_from_file(path.name)
    engine = _build_engine(trt, builder, network, order) if parsed else None
    if engine is None:
        reason = _reason(parser, log.errors or log.warnings)
        out_of_memory = is_out_of_memory("\n".join([*log.errors, *log.warnings]))
        return CompileResult(False, reason, out_of_memory, version=version)
    device_memory_bytes = None
    if order.folder:
        Path(order.folder, ENGINE).write_bytes(engine)
        _write_context_model(order, Path(order.folder, CONTEXT_MODEL))
        opened = trt.Runtime(log).deserialize_cuda_engine(engine)
        if opened is not None:  # with a GPU that has enough memory
            device_memory_bytes = int(opened.device_memory_size_v2)
    return CompileResult(
        accepted=True,
        reason="",
        engine_bytes=engine.nbytes,
        device_memory_bytes=device_memory_bytes,
        version=version,
    )


def _make_log(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if any(sign in message for sign in _NO_GPU):
                return
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message)
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(message)

    return Log()


def _build_engine(trt: Any, builder: Any, network: Any, order: CompileOrder) -> Any:
    """Returns the serialized engine; None where that fails."""
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_OUTPUT:
            # Attention in parts where TensorRT has no fused kernel, as in float32; otherwise,
            # building would fail.
            layer.__class__ = trt.IAttentionOutputLayer  # `get_layer` returns the base class
            layer.attention.decomposable = True
    config = builder.create_builder_config()
    if order.target:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, order.target), 0)
    if order.optimization_level is not None:
        config.builder_optimization_level = order.optimization_level
    if order.profile:
        profile = builder.create_optimization_profile()
        for name, shapes in order.profile.items():
            profile.set_shape(name, *shapes)
        config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config)


def _write_context_model(order: CompileOrder, path: Path) -> None:
    """Writes the one-node model through which ONNX Runtime's TensorRT provider loads an engine that
    it did not build. Node attributes:
    https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html
    """
    import onnx
    from onnx import helper

    graph = onnx.load(order.path, load_external_data=False).graph
    for tensor in (*graph.input, *graph.output):
        for size in tensor.type.tensor_type.shape.dim:
            if size.dim_param in order.fixed:
                size.dim_value = order.fixed[size.dim_param]
    node = helper.make_node(
        "EPContext",
        [tensor.name for tensor in graph.input],
        [tensor.name for tensor in graph.output],
        domain="com.microsoft",
        embed_mode=0,
        ep_cache_context=ENGINE,
        hardware_architecture=order.compute_capability.replace(".", ""),
        source="TensorrtExecutionProvider",
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    context = helper.make_graph([node], "engine", graph.input, graph.output)
    onnx.save(helper.make_model(context, opset_imports=opsets, ir_version=10), path)


def _reason(parser: Any, messages: list[str]) -> str:
    """Returns the operations that the parser rejected, each with its first node and message; else
    what the builder says.
    """
    reasons: dict[str, str] = {}
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        text = _without_missing_gpu(error.desc())
        operator = error.node_operator()
        if text == _UNSUPPORTED or _UNKNOWN in text:
            text = "TensorRT has no such operation"
        if operator:
            text = f"{operator} (node {error.node_name()}): {text}"
        reasons.setdefault(operator, text)
    if reasons:
        return "; ".join(reasons.values())
    if messages:
        return _without_missing_gpu(messages[0])
    return "the compiler gives no reason"


def _without_missing_gpu(text: str) -> str:
    """Returns a message as one line, without the lines that TensorRT adds if there is no GPU."""
    lines = [line for line in text.splitlines() if not any(sign in line for sign in _NO_GPU)]
    return " ".join(" ".join(lines).split())
