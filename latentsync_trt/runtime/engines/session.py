"""One ONNX graph on one provider; sessions on one device share a pool of its memory."""

import functools
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

from latentsync_trt.bundle.manifest import TensorEntry
from latentsync_trt.errors import EngineBuildError, InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.compiler import is_out_of_memory, last_line
from latentsync_trt.runtime.providers import table
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CUDA

T = TypeVar("T")

Array = NDArray[Any]
Providers = tuple[tuple[str, Mapping[str, str]], ...]

CPU: Providers = ((table.CPU.ort_name, {}),)

_STDERR = 2
_ERRORS = 3
_SILENT = 4  # ONNX Runtime's severities

# "2026-01-31 10:00:00.123 [E:onnxruntime:Default, file.h:88 log] [2026-01-31 09:00:00   ERROR] the
# reason", in colors.
_LOG_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*\d{4}-\d\d-\d\d [\d:.]+ "
    rb"\[[EF]:onnxruntime:[^\]]*\]\s*(?:\[[^\]]*\]\s*)?(.*)\n?"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_reading_log = threading.Lock()

COPY_GRAPH = Path(__file__).parents[2] / "assets" / "graphs" / "copy.onnx"
"""`latents_copy = latents`, `history_copy = history`, float32 `(B, 4, F, h, w)`."""

_SHAPE_OPS = frozenset({"Concat", "Div", "Mul", "Reshape", "Squeeze"})
"""Operators that compute shapes in the exported graphs."""

# A second allocator would replace the first, which open sessions keep.
_registering = threading.Lock()
# Grow by the requested size; doubling would hold gigabytes of unused memory.
_ARENA = {"arena_extend_strategy": 1}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a graph is opened.

    Args:
        providers: ONNX Runtime's names, best first, with their options. dimensions: values of
            variable dimensions.
        weights_folder: of external weights, if not that of the graph. name: in messages; empty =
            its file name.
        intra_op_threads: CPU threads for one operator; None = one per physical core.
        as_it_is: leave out ONNX Runtime's optimizations, which take half of the time in which a
            graph is opened.
        by_priority: run reductions of large tensors as early as possible, so that not all are held
            until the end.
    """

    providers: Providers = CPU
    dimensions: Mapping[str, int] = field(default_factory=dict)
    weights_folder: Path | None = None
    name: str = ""
    intra_op_threads: int | None = None
    as_it_is: bool = False
    by_priority: bool = False


@dataclass(slots=True)
class RunClock:
    """Durations of the runs of a graph: the first and the sum of all later ones."""

    runs: int = 0
    first_run_s: float = 0.0
    later_runs_s: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Without the first run, if there are others."""
        return 1000 * (self.later_runs_s / (self.runs - 1) if self.runs > 1 else self.first_run_s)

    def timed(self, run: Callable[[], T]) -> T:
        start_s = time.perf_counter()
        result = run()
        run_s = time.perf_counter() - start_s
        if self.runs:
            self.later_runs_s += run_s
        else:
            self.first_run_s = run_s
        self.runs += 1
        return result


class Session:
    """A loaded graph; thread-safe. `clock` times its runs. Raises `EngineBuildError` if the graph
    of the `.onnx` file `path` cannot be loaded or compiled, and `OutOfMemory`.
    """

    def __init__(self, path: Path, settings: SessionSettings = SessionSettings()) -> None:
        self.name = settings.name or path.name
        # TensorRT reports why it fails in the log only.
        self._reads_log = settings.providers[0][0] == table.TENSORRT.ort_name
        providers = [(name, dict(own)) for name, own in settings.providers]

        def opened() -> Any:
            # Given a path, ONNX Runtime searches its folder only for weights.
            model = str(path) if settings.weights_folder is None else path.read_bytes()
            # Without fallback, as ONNX Runtime would only print a line and continue with fewer
            # providers.
            return ort.InferenceSession(
                model, _ort_options(settings), providers=providers, enable_fallback=0
            )

        self.ort = self._explained(opened, settings.name or f"{path}", EngineBuildError)
        self.inputs = tuple(map(_described, self.ort.get_inputs()))
        self.outputs = tuple(map(_described, self.ort.get_outputs()))
        self.clock = RunClock()

    @property
    def provider(self) -> str:
        """The first provider that ONNX Runtime really uses, e.g. "CPUExecutionProvider"."""
        return str(self.ort.get_providers()[0])

    def run(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        """Runs the graph on host arrays; returns all outputs in the graph's order. Raises
        `InferenceError` if an input is wrong or the provider failed, and `OutOfMemory`.
        """
        return tuple(
            self.explained(lambda: self.clock.timed(lambda: self.ort.run(None, dict(inputs))))
        )

    def run_bound(self, binding: Any, *, recorded: bool = True) -> None:
        """As `run`, on bound device buffers; unless `recorded`, without recording or replaying a
        CUDA graph.
        """
        options = ort.RunOptions()
        if not recorded:
            options.add_run_config_entry("gpu_graph_id", "-1")
        self.explained(
            lambda: self.clock.timed(lambda: self.ort.run_with_iobinding(binding, options))
        )

    def bound(self, known: Mapping[str, Any], device: str = "cpu", device_id: int = 0) -> Any:
        """An `IOBinding` of inputs and outputs to the `known` `OrtValue`s by name; other outputs
        appear on a device.
        """
        binding = self.ort.io_binding()
        for tensor in self.inputs:
            binding.bind_ortvalue_input(tensor.name, known[tensor.name])
        for tensor in self.outputs:  # which the binding returns in this order
            if tensor.name in known:
                binding.bind_ortvalue_output(tensor.name, known[tensor.name])
            else:
                binding.bind_output(tensor.name, device, device_id)
        return binding

    def explained(self, action: Callable[[], T]) -> T:
        """The result of `action`, which may also run the graph and use buffers on its device;
        errors as `run`.
        """
        return self._explained(action, f"{self.name} on {self.provider}", InferenceError)

    def _explained(self, action: Callable[[], T], where: str, kind: type[LatentSyncError]) -> T:
        """The result of `action`, errors translated; repeated to read the log of a provider that
        reports there only.
        """
        try:
            return action()
        except (InferenceError, OutOfMemory):
            raise
        except Exception as error:
            if not self._reads_log:
                raise _translated(error, where, kind) from error
        reasons: list[str] = []
        try:
            with native_errors() as reasons:
                return action()
        except Exception as error:
            raise _translated(error, where, kind, reasons) from error

    def close(self) -> None:
        """Frees it; closing again does nothing."""
        self.__dict__.pop("ort", None)

    def nodes_by_provider(self) -> dict[str, int]:
        """Nodes by provider; in graphs of variable shapes without those that compute shapes, always
        on the CPU.
        """
        counts = Counter[str]()
        shapes_vary = any(
            not isinstance(size, int) for tensor in self.inputs for size in tensor.shape
        )
        for part in self.ort.get_provider_graph_assignment_info():
            of_shapes = shapes_vary and part.ep_name == table.CPU.ort_name
            left_out = _SHAPE_OPS if of_shapes else frozenset()
            counts[part.ep_name] += sum(node.op_type not in left_out for node in part.get_nodes())
        return dict(counts)


class DeviceBuffers:
    """Named buffers where the selected provider has its inputs and outputs; reused unless their
    shape changes.
    """

    def __init__(self, selection: Selection) -> None:
        self._device = selection.device, selection.device_id
        self._values: dict[str, Any] = {}

    def upload(self, name: str, array: NDArray[Any]) -> Any:
        # not `ascontiguousarray`, which turns a scalar into a vector
        array = np.asarray(array, order="C")
        value = self.empty(name, array.shape, array.dtype)
        value.update_inplace(array)
        return value

    def empty(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """The `OrtValue` of that name, with undefined content."""
        if name not in self._values or tuple(self._values[name].shape()) != shape:
            made = ort.OrtValue.ortvalue_from_shape_and_type(
                shape, np.dtype(dtype).type, *self._device
            )
            self._values[name] = made
        return self._values[name]

    def clear(self) -> None:
        self._values.clear()


@functools.cache
def small_session(path: Path, selection: Selection) -> Session:
    """A small graph on buffers of the selected provider, by the CPU or CUDA; one for the whole
    process.
    """
    cuda = (CUDA.ort_name, {"device_id": str(selection.device_id)})
    return Session(
        path, SessionSettings(providers=CPU if selection.device == "cpu" else (cuda, *CPU))
    )


def give_back_gpu_memory(selection: Selection) -> None:
    """Returns unused memory of the CUDA provider's pool to the GPU, as closed networks leave it
    fragmented: by a run of a tiny graph, since ONNX Runtime does that only at the end of one.
    """
    if selection.provider is not CUDA:
        return
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", f"gpu:{selection.device_id}")
    nothing = np.zeros((1, 4, 1, 1, 1), np.float32)
    # ONNX Runtime's errors have no public base; the next run raises its own
    with suppress(Exception):
        small_session(COPY_GRAPH, selection).ort.run(
            None, {"latents": nothing, "history": nothing}, run
        )


def _share_memory(providers: Sequence[tuple[str, Mapping[str, str]]]) -> bool:
    """Creates the shared pool, without which each session keeps its own peak; returns whether a
    session should use it: not with TensorRT, which has memory of its own, nor with CUDA graphs,
    which need fixed addresses.
    """
    name, own = providers[0]
    with _registering:
        if name == CUDA.ort_name and own.get("enable_cuda_graph") != "1":
            _share_gpu_memory(int(own.get("device_id", "0")))
        elif name != table.CPU.ort_name:
            return False
        _share_cpu_memory()
    return True


@functools.cache
def _share_cpu_memory() -> None:
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(_ARENA))


@functools.cache
def _share_gpu_memory(device: int) -> None:
    memory = ort.OrtMemoryInfo(
        "Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, device, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator_v2(
        CUDA.ort_name, memory, {"device_id": str(device)}, ort.OrtArenaCfg(_ARENA)
    )


def _thread_limit() -> int:
    """CPU threads per operator by $OMP_NUM_THREADS, as OpenMP and PyTorch read it; 0 = no limit."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal():
        return min(int(first), os.cpu_count() or 1)
    return 0


def _ort_options(settings: SessionSettings) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A buffer planned for reuse stays allocated between uses: nearly all buffers of a U-Net, whose
    # last features are as large as its first. Freeing and allocating needs a fraction of the
    # memory, at no cost in time.
    options.enable_mem_reuse = options.enable_mem_pattern = False
    add = options.add_session_config_entry
    # Spinning threads would take cores from decoding, face processing and encoding.
    add("session.intra_op.allow_spinning", "0")
    # Keep QuantizeLinear/DequantizeLinear pairs: fusing them does not support FP8, loses the sign
    # of INT8 across a reshape, and was not faster where it works.
    add("session.disable_quant_qdq", "1")
    add("session.record_ep_graph_assignment_info", "1")  # for `nodes_by_provider`
    if _share_memory(settings.providers):
        add("session.use_env_allocators", "1")
    if settings.weights_folder is not None:
        add(
            "session.model_external_initializers_file_folder_path",
            str(settings.weights_folder.resolve()),
        )
    for name, size in settings.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    options.intra_op_num_threads = settings.intra_op_threads or _thread_limit()
    if settings.as_it_is:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if settings.by_priority:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


def _described(node: Any) -> TensorEntry:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    return TensorEntry(node.name, "float32" if kind == "float" else kind, tuple(node.shape))


@contextmanager
def native_errors() -> Iterator[list[str]]:
    """Collects the error lines of ONNX Runtime's default log on stderr, the only place where
    TensorRT says why it fails; the list is filled when the block ends, and other output appears
    then. To repeat an action that failed.
    """
    lines: list[str] = []
    with _reading_log, TemporaryFile() as log:
        try:
            saved = os.dup(_STDERR)
        except OSError:  # a program without stderr
            yield lines
            return
        _flush_stderr()
        os.dup2(log.fileno(), _STDERR)
        ort.set_default_logger_severity(_ERRORS)
        try:
            yield lines
        finally:
            _flush_stderr()
            ort.set_default_logger_severity(_SILENT)
            os.dup2(saved, _STDERR)
            os.close(saved)
            log.seek(0)
            text = log.read()
            lines += (
                _COLORS.sub("", line.decode(errors="replace")).strip()
                for line in _LOG_LINE.findall(text)
            )
            with os.fdopen(_STDERR, "wb", closefd=False) as stderr:
                stderr.write(_LOG_LINE.sub(b"", text))


def _flush_stderr() -> None:
    with suppress(ValueError, AttributeError):  # closed, or none
        sys.stderr.flush()


def _translated(
    error: Exception, where: str, otherwise: type[LatentSyncError], reasons: Sequence[str] = ()
) -> LatentSyncError:
    """The error as one of ours; `reasons`: error lines from the provider's log."""
    text = "\n".join([str(error), *reasons])
    said = last_line(error) + "".join(f"; TensorRT: {reason}" for reason in dict.fromkeys(reasons))
    if isinstance(error, MemoryError) or is_out_of_memory(text):
        return OutOfMemory(
            f"{where}: out of memory ({said}); use --low-memory "
            "(with --resume, `sync` goes on from what was written), "
            "a bundle of lower resolution or in fp16, or close other programs on this GPU"
        )
    return otherwise(f"{where}: {said}")
