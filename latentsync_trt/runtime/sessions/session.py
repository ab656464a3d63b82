"""One ONNX graph on one execution provider: the only way the other rooms run a graph."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from latentsync_trt.errors import EngineBuildError, InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.compiler.failures import is_out_of_memory, last_line
from latentsync_trt.runtime.sessions.memory import share_memory
from latentsync_trt.runtime.sessions.native_log import native_errors

T = TypeVar("T")

Array = NDArray[Any]
Providers = tuple[tuple[str, Mapping[str, str]], ...]

CPU: Providers = (("CPUExecutionProvider", {}),)

# Its warnings, of plug-in devices that nobody asked for, would land between the lines of the command.
ort.set_default_logger_severity(4)

_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(bool)": np.bool_,
}

_MOST_BYTES = 10**13

# Providers that say why they fail to the log alone.
_SILENT_PROVIDERS = frozenset({"TensorrtExecutionProvider"})


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and element type of a graph's input or output; a str in `shape` names a dynamic dimension."""

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a graph is opened.

    Args:
        providers: ONNX Runtime provider names with their option dictionaries, best first.
        plugin_devices: devices of a plug-in provider, instead of `providers`; `plugin_options` are its options.
        dimensions: values for variable dimensions, which makes their shapes fixed.
        weights_folder: where the graph's external weights lie, if not beside it.
        config: further ONNX Runtime session entries.
        name: what messages call the graph, its file's name if empty.
        optimized_copy: where to write the graph as the provider will run it, None for nowhere.
        optimize: False leaves the graph as it is: for providers that compile it, and take other weights than those on
            disk into their memory twice.
        fold_constants: False leaves what follows from weights alone to whoever opens the copy, which else would hold
            it.
        profile_prefix: where to write a trace of every operator, None for no trace.
        intra_op_threads: CPU threads for one operator; None = one per physical core.
        by_priority: run what reduces a large tensor as soon as it can, instead of last, when all of them are held.
    """

    providers: Providers = CPU
    plugin_devices: tuple[Any, ...] = ()
    plugin_options: Mapping[str, str] = field(default_factory=dict)
    dimensions: Mapping[str, int] = field(default_factory=dict)
    weights_folder: Path | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    optimized_copy: Path | None = None
    optimize: bool = True
    fold_constants: bool = True
    profile_prefix: Path | None = None
    intra_op_threads: int | None = None
    by_priority: bool = False


class Session:
    """A graph, loaded. Thread-safe: ONNX Runtime allows concurrent runs of one session.

    `relieve` is called when memory is short; it says whether it freed some, and then the run is tried again.
    `opened_at_s`, on `time.perf_counter`'s scale, is where a trace begins. `runs` counts runs; the first, which warms
    up, is timed apart from the sum of all later ones.

    Args:
        path: the `.onnx` file; external weights lie beside it or where `settings` say.

    Raises:
        EngineBuildError: the graph cannot be loaded or compiled. OutOfMemory: there is too little memory to.
    """

    def __init__(
        self, path: Path, settings: SessionSettings | None = None, *, intra_op_threads: int | None = None
    ) -> None:
        settings = settings or SessionSettings(intra_op_threads=intra_op_threads)
        self.path = path
        self.name = settings.name or path.name
        self.settings = settings
        options = _ort_options(settings)
        self.opened_at_s = time.perf_counter()
        self._reads_log = not settings.plugin_devices and settings.providers[0][0] in _SILENT_PROVIDERS
        reasons: list[str] = []
        try:
            with native_errors() if self._reads_log else nullcontext(reasons) as reasons:
                self.ort = self._opened(options)
        except Exception as error:
            raise _translated(error, settings.name or f"{path}", EngineBuildError, reasons) from error
        self.inputs = tuple(_tensor_info(node) for node in self.ort.get_inputs())
        self.outputs = tuple(_tensor_info(node) for node in self.ort.get_outputs())
        self.relieve: Callable[[], bool] = lambda: False
        self.runs, self.first_run_s, self.later_runs_s = 0, 0.0, 0.0

    def _opened(self, options: Any) -> Any:
        # An explicit list without fallback: ONNX Runtime's own only prints a line and goes on with less.
        settings = self.settings
        providers = None if settings.plugin_devices else [(name, dict(own)) for name, own in settings.providers]
        return ort.InferenceSession(
            _model(self.path, settings),
            options,
            providers=providers,
            enable_fallback=0,
            disabled_optimizers=set() if settings.fold_constants else {"ConstantFolding"},
        )

    @property
    def provider(self) -> str:
        """The provider ONNX Runtime really put first, e.g. "CPUExecutionProvider"."""
        return str(self.ort.get_providers()[0])

    def run(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        """Runs the graph on host arrays; returns all outputs in the graph's order.

        Raises:
            InferenceError: an input has the wrong name, shape or type, or the provider failed.
            OutOfMemory: there is too little memory, and nothing that `relieve` could free.
        """
        feed = dict(inputs)
        return tuple(self.with_relief(lambda: self._timed(lambda: self.ort.run(None, feed))))

    def run_bound(self, binding: Any) -> None:
        """Runs the graph on bound device buffers; errors as `run`."""
        self.with_relief(lambda: self._timed(lambda: self.ort.run_with_iobinding(binding)))

    def with_relief(self, action: Callable[[], T]) -> T:
        """What `action` returns, which takes memory beside this graph's; where that is short, errors as `run`."""
        try:
            return self._explained(action)
        except _Failed as failed:
            where = f"{self.name} on {self.provider}"
            failure = _translated(failed.error, where, InferenceError, failed.reasons)
            if isinstance(failure, OutOfMemory) and self.relieve():
                return self.with_relief(action)
            raise failure from failed.error

    def _explained(self, action: Callable[[], T]) -> T:
        """`action`; where the provider does not say why it failed, once more with a look at its log."""
        try:
            return action()
        except Exception as error:
            if not self._reads_log:
                raise _Failed(error) from error
        reasons: list[str] = []
        try:
            with native_errors() as reasons:
                return action()
        except Exception as error:
            raise _Failed(error, reasons) from error

    def _timed(self, run: Callable[[], T]) -> T:
        start_s = time.perf_counter()
        result = run()
        self._count(time.perf_counter() - start_s)
        return result

    def _count(self, run_s: float) -> None:
        if self.runs:
            self.later_runs_s += run_s
        else:
            self.first_run_s = run_s
        self.runs += 1

    def close(self) -> Path | None:
        """Frees the graph and its memory; nothing runs after it. Returns the trace, if one was asked for."""
        trace = None if self.settings.profile_prefix is None else Path(self.ort.end_profiling())
        del self.ort
        return trace

    def nodes_by_provider(self) -> dict[str, int]:
        """How many nodes each provider was given; only if opened with `RECORD_ASSIGNMENT`.

        Not counted are those on the CPU that compute shapes, as graphs of variable shapes have: their numbers are
        needed there, and ONNX Runtime leaves them there.
        """
        counts: dict[str, int] = {}
        shapes_vary = any(not isinstance(size, int) for tensor in self.inputs for size in tensor.shape)
        for part in self.ort.get_provider_graph_assignment_info():
            on_cpu = part.ep_name == "CPUExecutionProvider"
            counted = [node for node in part.get_nodes() if not (shapes_vary and on_cpu and node.op_type in _SHAPE_OPS)]
            counts[part.ep_name] = counts.get(part.ep_name, 0) + len(counted)
        return counts


class _Failed(Exception):
    """A failure with what the provider's log said of it."""

    def __init__(self, error: Exception, reasons: Sequence[str] = ()) -> None:
        super().__init__(str(error))
        self.error, self.reasons = error, reasons


_SHAPE_OPS = frozenset({"Concat", "Div", "Mul", "Reshape", "Squeeze"})
"""What the exported graphs compute shapes with. Of tensors on a GPU, every provider there computes them itself."""


def compile_graph(path: Path, settings: SessionSettings, target: Path) -> None:
    """Writes an EP-context model of a graph to `target`; for plug-in providers. Errors as `Session`."""
    try:
        ort.ModelCompiler(_ort_options(settings), str(path)).compile_to_file(str(target))
    except Exception as error:
        raise _translated(error, f"{path}", EngineBuildError) from error


RECORD_ASSIGNMENT = {"session.record_ep_graph_assignment_info": "1"}
"""Session entry that makes `Session.nodes_by_provider` work."""


def _thread_limit() -> int:
    """CPU threads per operator that $OMP_NUM_THREADS allows, the variable that OpenMP and PyTorch read; 0: no limit."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _ort_options(settings: SessionSettings) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A buffer that is planned for a second use stays allocated between the two: in a U-Net, whose last features are as
    # large as its first, nearly all of them do. Freed and taken again, they cost no time and a fraction of the memory.
    options.enable_mem_reuse = options.enable_mem_pattern = False
    if share_memory(settings.providers):
        options.add_session_config_entry("session.use_env_allocators", "1")
    # Waiting threads that spin take the cores that decoding, face work and encoding need at the same time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Pairs of QuantizeLinear and DequantizeLinear run as they are. The provider's own way of running what lies between
    # knows no FP8, and loses the sign of INT8 that a reshape carries on; nor was it faster where it does run.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    for name, value in settings.config.items():
        options.add_session_config_entry(name, value)
    for name, size in settings.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    if settings.plugin_devices:
        options.add_provider_for_devices(list(settings.plugin_devices), dict(settings.plugin_options))
    if settings.weights_folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(settings.weights_folder.resolve())
        )
    if not settings.optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if settings.optimized_copy is not None:
        # Beyond "extended" come layouts of one processor, whose reordered weights would be copied into the file.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(settings.optimized_copy)
    if settings.profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(settings.profile_prefix)
    options.intra_op_num_threads = settings.intra_op_threads or _thread_limit()
    if settings.by_priority:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


def _model(path: Path, settings: SessionSettings) -> str | bytes:
    """The path, or the graph's bytes where weights lie elsewhere: ONNX Runtime looks beside a path and nowhere else."""
    return str(path) if settings.weights_folder is None else path.read_bytes()


def _tensor_info(node: Any) -> TensorInfo:
    return TensorInfo(node.name, tuple(node.shape), np.dtype(_NUMPY_TYPES[node.type]))


def _translated(
    error: Exception, where: str, otherwise: type[LatentSyncError], reasons: Sequence[str] = ()
) -> LatentSyncError:
    """The error for people; `reasons`: what the provider's log said meanwhile."""
    text = "\n".join([str(error), *reasons])
    said = last_line(error) + "".join(f"; TensorRT: {reason}" for reason in dict.fromkeys(reasons))
    if isinstance(error, MemoryError) or is_out_of_memory(text):
        asked = re.search(r"(?:requested buffer of size |Requested size was )(\d+)", text)
        # What cuDNN could not find out comes as a size that no device has.
        known = asked is not None and int(asked[1]) < _MOST_BYTES
        why = f"for {int(asked[1]) / 1e9:.2f} GB more" if asked and known else f"({said})"
        return OutOfMemory(
            f"{where}: out of memory {why}; use --low-memory, a bundle of a lower --resolution or "
            "--precision fp16, or close other programs on this GPU"
        )
    return otherwise(f"{where}: {said}")
