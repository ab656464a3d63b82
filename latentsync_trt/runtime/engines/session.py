"""One ONNX graph, open on one provider."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import onnxruntime as ort
from numpy.typing import NDArray

from latentsync_trt.bundle.manifest import TensorEntry
from latentsync_trt.errors import EngineBuildError, InferenceError, LatentSyncError, OutOfMemory
from latentsync_trt.runtime.compiler import is_out_of_memory, last_line
from latentsync_trt.runtime.engines.memory_pools import share_memory
from latentsync_trt.runtime.engines.native_log import native_errors
from latentsync_trt.runtime.providers.table import CPU, TENSORRT

T = TypeVar("T")

Array = NDArray[Any]
Providers = tuple[tuple[str, Mapping[str, str]], ...]
"""ONNX Runtime's names of providers, best first, with their options."""

CPU_ONLY: Providers = ((CPU.ort_name, {}),)

_SHAPE_OPS = frozenset({"Concat", "Div", "Mul", "Reshape", "Squeeze"})
"""Operators that compute shapes in the exported graphs."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a graph is opened."""

    providers: Providers = CPU_ONLY
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Values of variable dimensions, by name."""
    weights_folder: Path | None = None
    """Where external weights are, if not beside the graph."""
    name: str = ""
    """The graph's name in messages; empty = its file name."""
    intra_op_threads: int | None = None
    """CPU threads for one operator; None = one per physical core."""
    optimize: bool = True
    """Whether ONNX Runtime optimizes the graph, which takes half of the time of opening it."""
    reduce_early: bool = False
    """Whether reductions of large tensors run as early as possible, so that not all tensors are
    held until the end.
    """


@dataclass(slots=True)
class RunClock:
    """Durations of the runs of a graph: the first and the sum of all later ones."""

    runs: int = 0
    first_run_s: float = 0.0
    later_runs_s: float = 0.0

    @property
    def mean_ms(self) -> float:
        """The mean of the runs after the first, or the first if there are no others."""
        if self.runs > 1:
            return 1000 * self.later_runs_s / (self.runs - 1)
        return 1000 * self.first_run_s

    def measure(self, run: Callable[[], T]) -> T:
        """Returns the result of `run`, and adds its duration."""
        start_s = time.perf_counter()
        result = run()
        run_s = time.perf_counter() - start_s
        if self.runs:
            self.later_runs_s += run_s
        else:
            self.first_run_s = run_s
        self.runs += 1
        return result

    def followed_by(self, later: "RunClock") -> "RunClock":
        """Returns the times of the runs here and of those that came after them."""
        if not self.runs:
            return later
        later_runs_s = self.later_runs_s + later.first_run_s + later.later_runs_s
        return RunClock(self.runs + later.runs, self.first_run_s, later_runs_s)


class Session:
    """A loaded graph; thread-safe. `clock` times its runs. Raises `EngineBuildError` if the graph
    of the `.onnx` file `path` cannot be loaded or compiled, and `OutOfMemory`.
    """

    def __init__(self, path: Path, settings: SessionSettings = SessionSettings()) -> None:
        self.name = settings.name or path.name
        self.clock = RunClock()
        self._reasons_are_logged = settings.providers[0][0] == TENSORRT.ort_name
        where = settings.name or str(path)
        self.ort = self._translating(partial(_load, path, settings), where, EngineBuildError)
        self.inputs = tuple(map(_entry_of_tensor, self.ort.get_inputs()))
        self.outputs = tuple(map(_entry_of_tensor, self.ort.get_outputs()))

    @property
    def provider(self) -> str:
        """The first provider that ONNX Runtime really uses, e.g. "CPUExecutionProvider"."""
        return str(self.ort.get_providers()[0])

    def run(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        """Runs the graph on host arrays; returns all outputs in the graph's order. Raises
        `InferenceError` if an input is wrong or the provider failed, and `OutOfMemory`.
        """
        return tuple(self._timed(partial(self.ort.run, None, dict(inputs))))

    def run_bound(self, binding: Any, *, recorded: bool = True) -> None:
        """Runs the graph on bound device buffers; unless `recorded`, without recording or replaying
        a CUDA graph. Raises as `run`.
        """
        options = ort.RunOptions()
        if not recorded:
            options.add_run_config_entry("gpu_graph_id", "-1")
        self._timed(partial(self.ort.run_with_iobinding, binding, options))

    def bound(self, values: Mapping[str, Any], device: str = "cpu", device_id: int = 0) -> Any:
        """Returns an `IOBinding` of inputs and outputs to `OrtValue`s by name; outputs without one
        appear on a device.
        """
        binding = self.ort.io_binding()
        for tensor in self.inputs:
            binding.bind_ortvalue_input(tensor.name, values[tensor.name])
        for tensor in self.outputs:  # which the binding returns in this order
            if tensor.name in values:
                binding.bind_ortvalue_output(tensor.name, values[tensor.name])
            else:
                binding.bind_output(tensor.name, device, device_id)
        return binding

    def with_translated_errors(self, action: Callable[[], T]) -> T:
        """Returns the result of `action`, which runs the graph or uses buffers on its device;
        raises as `run`.
        """
        return self._translating(action, f"{self.name} on {self.provider}", InferenceError)

    def close(self) -> None:
        """Frees the graph; closing again does nothing."""
        self.__dict__.pop("ort", None)

    def nodes_by_provider(self) -> dict[str, int]:
        """Returns the number of nodes by provider; in graphs of variable shapes without those that
        compute shapes, which always run on the CPU.
        """
        counts = Counter[str]()
        sizes = {size for tensor in self.inputs for size in tensor.shape}
        shapes_vary = not all(isinstance(size, int) for size in sizes)
        for part in self.ort.get_provider_graph_assignment_info():
            operators = [node.op_type for node in part.get_nodes()]
            if shapes_vary and part.ep_name == CPU.ort_name:
                operators = [operator for operator in operators if operator not in _SHAPE_OPS]
            counts[part.ep_name] += len(operators)
        return dict(counts)

    def _timed(self, run: Callable[[], T]) -> T:
        return self.with_translated_errors(partial(self.clock.measure, run))

    def _translating(self, action: Callable[[], T], where: str, kind: type[LatentSyncError]) -> T:
        """Returns the result of `action`, with errors as ours.

        TensorRT writes why it fails to ONNX Runtime's log alone, which Python can only read from
        the process's stderr. To redirect that during every call would hold back what other threads
        print, so a call that failed is repeated once for the reason.
        """
        try:
            return action()
        except (InferenceError, OutOfMemory):  # a graph within `action` has translated it
            raise
        except Exception as error:
            if not self._reasons_are_logged:
                raise _as_our_error(error, where, kind) from error
        reasons: list[str] = []
        try:
            with native_errors() as reasons:
                return action()
        except Exception as error:
            raise _as_our_error(error, where, kind, reasons) from error


def _load(path: Path, settings: SessionSettings) -> Any:
    # With a path, ONNX Runtime searches only its folder for weights.
    model = str(path) if settings.weights_folder is None else path.read_bytes()
    providers = [(name, dict(options)) for name, options in settings.providers]
    # Without fallback: ONNX Runtime would only print a line and go on with fewer providers.
    return ort.InferenceSession(
        model, _ort_options(settings), providers=providers, enable_fallback=0
    )


def _ort_options(settings: SessionSettings) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A buffer planned for reuse stays allocated between uses: nearly all buffers of a U-Net, whose
    # last features are as large as its first. Freeing and allocating needs a fraction of the
    # memory, at no cost in time.
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    add = options.add_session_config_entry
    # Spinning threads would take cores from decoding, face processing and encoding.
    add("session.intra_op.allow_spinning", "0")
    # Keep QuantizeLinear/DequantizeLinear pairs: fusing them does not support FP8, loses the sign
    # of INT8 across a reshape, and was not faster where it works.
    add("session.disable_quant_qdq", "1")
    add("session.record_ep_graph_assignment_info", "1")  # for `nodes_by_provider`
    if share_memory(*settings.providers[0]):
        add("session.use_env_allocators", "1")
    if settings.weights_folder is not None:
        folder = str(settings.weights_folder.resolve())
        add("session.model_external_initializers_file_folder_path", folder)
    for name, size in settings.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    options.intra_op_num_threads = settings.intra_op_threads or _thread_limit()
    if not settings.optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if settings.reduce_early:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


def _thread_limit() -> int:
    """Returns the CPU threads for one operator by $OMP_NUM_THREADS, as OpenMP and PyTorch read it;
    0 = no limit.
    """
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal():
        return min(int(first), os.cpu_count() or 1)
    return 0


def _entry_of_tensor(node: Any) -> TensorEntry:
    dtype = node.type.removeprefix("tensor(").removesuffix(")")
    if dtype == "float":
        dtype = "float32"
    return TensorEntry(node.name, dtype, tuple(node.shape))


def _as_our_error(
    error: Exception, where: str, otherwise: type[LatentSyncError], reasons: Sequence[str] = ()
) -> LatentSyncError:
    """Returns `OutOfMemory` or an error of type `otherwise`; `reasons` are error lines from the
    provider's log.
    """
    text = "\n".join([str(error), *reasons])
    reason = last_line(error)
    for line in dict.fromkeys(reasons):
        reason += f"; TensorRT: {line}"
    if isinstance(error, MemoryError) or is_out_of_memory(text):
        return OutOfMemory(
            f"{where}: out of memory ({reason}); use --low-memory "
            "(with --resume, `sync` goes on from what was written), "
            "a bundle of lower resolution or in fp16, or close other programs on this GPU"
        )
    return otherwise(f"{where}: {reason}")
