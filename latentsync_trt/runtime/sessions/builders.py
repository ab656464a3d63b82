"""Options of each provider, and engines for the providers that compile graphs.

cpu, cuda    open the bundle's graph directly: a copy that ONNX Runtime has optimized would save less than a second
tensorrt     an engine built by TensorRT's Python module, and an EP-context model through which ONNX Runtime loads it
rtx          an EP-context model from ONNX Runtime's compile interface

Options are ONNX Runtime's dictionaries of strings. Precision needs none: graphs carry their own types, and engines are
built strongly typed. Names and meanings: https://onnxruntime.ai/docs/execution-providers/
(TensorRT, CUDA), and the header `tensorrt_rtx_provider_options.h` in NVIDIA's plug-in package.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, DimensionRange, GraphEntry, Precision
from latentsync_trt.errors import EngineBuildError, GraphRefused, InputError, OutOfMemory
from latentsync_trt.runtime.compiler import CONTEXT_MODEL, CompileOrder, run_compiler
from latentsync_trt.runtime.providers.diagnose import rtx_devices
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.table import CUDA, RTX, TENSORRT
from latentsync_trt.runtime.sessions.profiles import InputShapes, fixed_sizes, input_shapes
from latentsync_trt.runtime.sessions.session import CPU, Session, SessionSettings, compile_graph

_TIMINGS = "kernels.timing"

_LEVEL, _WORKSPACE_BYTES = "trt_builder_optimization_level", "trt_max_workspace_size"
"""Options of the TensorRT provider that our own build of its engines follows, too."""

RTX_KERNEL_CACHE = "nv_runtime_cache_path"
"""The plug-in's option for the folder of kernels that it compiles at run time."""

_OWNERS = {"trt": TENSORRT.name, "nv": RTX.name}
"""By the beginning of an option's name; others are CUDA's."""

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

CUDNN_ATTENTION_FROM = (9, 0)
"""Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel."""

# The operator's name in messages of the parser and the builder.
_ATTENTION = re.compile(r"\bAttention (?:\(node|operation)")


def own_options(provider: str, given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if _OWNERS.get(key.partition("_")[0], CUDA.name) == provider}


def cuda_options(
    device: int = 0, *, cuda_graph: bool = False, fused_bias: bool = False, cudnn_attention: bool = False
) -> dict[str, str]:
    """CUDAExecutionProvider.

    Args:
        device: GPU index. cuda_graph: capture and replay; needs fixed shapes and every node on the GPU.
        fused_bias: cuDNN adds the bias within the convolution where it can.
        cudnn_attention: MultiHeadAttention uses cuDNN's kernel, else the memory-efficient one.
    """
    return {
        "device_id": str(device),
        # Doubling would hold several GB more than the networks need.
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "cudnn_conv_use_max_workspace": "1",
        "enable_cuda_graph": "1" if cuda_graph else "0",
        **({"fuse_conv_bias": "1"} if fused_bias else {}),
        **({"sdpa_kernel": str(_CUDNN | _MEMORY_EFFICIENT)} if cudnn_attention else {}),
    }


def tensorrt_options(device: int = 0, *, cuda_graph: bool = False) -> dict[str, str]:
    """TensorrtExecutionProvider, to load and run an engine. It accepts only "True" and "False" as booleans.

    Without `trt_context_memory_sharing_enable`: with it, a loaded engine runs without device memory
    (https://github.com/LeelaChessZero/lc0/pull/2428).
    """
    return {"device_id": str(device), "trt_cuda_graph_enable": str(cuda_graph)}


def rtx_options(shapes: Mapping[str, InputShapes] | None = None) -> dict[str, str]:
    """NvTensorRTRTXExecutionProvider, NVIDIA's plug-in, for `shapes` of each input with a variable dimension."""
    # On by default; the behavior of CUDA graphs with swapped buffers is undocumented.
    options, shapes = {"enable_cuda_graph": "0"}, shapes or {}
    if any(smallest != largest for smallest, _, largest in shapes.values()):
        for index, end in enumerate(("min", "opt", "max")):
            sizes = (f"{name}:{'x'.join(map(str, ends[index]))}" for name, ends in shapes.items())
            options[f"nv_profile_{end}_shapes"] = ",".join(sizes)
    return options


@dataclass(frozen=True, slots=True)
class Builder:
    """How the engine of one graph is built and opened.

    Args:
        entry: describes the graph. ranges: sizes that the engine supports. given: of `--provider-option`.
        version: of the provider's library. precision: of the bundle.
        shared: a folder for what shortens builds and runs, which other processes may change at any time.
        cuda_graph: record and replay, which does not change the engine.

    Subclasses have
        `options()`: those for the engine's key: without paths and options that do not change the engine.
        `build(graph, folder)`: builds into `folder`, which will be renamed; returns the GPU memory of a run in bytes,
            without weights, None if unknown. Raises `EngineBuildError` if the provider cannot compile the graph,
            `OutOfMemory`, and `InputError` if an option has a wrong value, as `options`.
        `open(graph, folder)`: opens the EP-context model that `build` wrote. Errors as `Session`.
    """

    entry: GraphEntry
    ranges: Mapping[str, DimensionRange]
    given: Mapping[str, str]
    gpu: Gpu
    version: str
    shared: Path
    precision: Precision
    cuda_graph: bool


class TensorRTBuilder(Builder):
    """TensorRT; an engine contains the whole graph. `version`: that of the library that ONNX Runtime loads."""

    library = "tensorrt"

    def options(self) -> dict[str, str]:
        limit = self._number(_WORKSPACE_BYTES)
        workspace = {} if limit is None else {"workspace_bytes": str(limit)}
        return {"optimization_level": str(self._level), **workspace}

    def build(self, graph: Path, folder: Path) -> int | None:
        fixed: dict[int | str, int] = {name: span.optimum for name, span in self.ranges.items() if span.fixed}
        inputs, outputs = (
            tuple((each.name, each.dtype, tuple(fixed.get(size, size) for size in each.shape)) for each in tensors)
            for tensors in (self.entry.inputs, self.entry.outputs)
        )
        order = CompileOrder(
            "tensorrt",
            str(graph.resolve()),
            input_shapes(self.entry, self.ranges),
            optimization_level=self._level,
            workspace_bytes=self._number(_WORKSPACE_BYTES),
            timings=str(self.shared / _TIMINGS),
            version=self.version,
            folder=str(folder),
            compute_capability=self.gpu.compute_capability,
            inputs=inputs,
            outputs=outputs,
        )
        answer = run_compiler(order, visible_only(self.gpu))
        if answer.version and not answer.version.startswith(self.version):
            raise EngineBuildError(
                f"{graph}: Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT {self.version}, "
                "which takes engines of its own version only; install one TensorRT, or put its folder first on the "
                "loader's path"
            )
        if answer.out_of_memory:
            raise OutOfMemory(
                f"{graph.stem}: out of memory while TensorRT builds its engine ({answer.reason}); close other programs "
                f"on this GPU, lower --provider-option {_WORKSPACE_BYTES}, or use --static"
            )
        if not answer.accepted:
            cure = "run with --provider cuda, and please report it"
            if _ATTENTION.search(answer.reason):
                cure = "export the model with --attention matmul, which writes attention in parts"
            raise GraphRefused(f"{graph}: TensorRT built no engine: {answer.reason}; {cure}")
        return answer.device_memory_bytes

    def open(self, graph: Path, folder: Path) -> Session:
        options = tensorrt_options(self.gpu.index, cuda_graph=self.cuda_graph)
        providers = (
            (TENSORRT.ort_name, {**options, **own_options(TENSORRT.name, self.given)}),
            (CUDA.ort_name, cuda_options(self.gpu.index)),
            *CPU,
        )
        settings = SessionSettings(name=graph.stem, providers=providers, optimize=False)
        return Session(folder / CONTEXT_MODEL, settings)

    @property
    def _level(self) -> int:
        """The level asked for, else TensorRT's default, and in 8 bits that of NVIDIA's own demos."""
        asked = self._number(_LEVEL)
        return asked if asked is not None else 4 if self.precision in EIGHT_BIT_PRECISIONS else 3

    def _number(self, key: str) -> int | None:
        text = self.given.get(key)
        if text is not None and not text.isdecimal():
            raise InputError(f"--provider-option {key}={text}: not a whole number")
        return None if text is None else int(text)


class RtxBuilder(Builder):
    """NVIDIA's TensorRT-RTX plug-in, which compiles kernels when they run, and keeps them in `shared`."""

    library = "onnxruntime-ep-nv-tensorrt-rtx"

    def options(self) -> dict[str, str]:
        return {**rtx_options(input_shapes(self.entry, self.ranges)), **own_options(RTX.name, self.given)}

    def build(self, graph: Path, folder: Path) -> None:
        settings = self._settings(graph, self.options(), fixed_sizes(self.entry, self.ranges))
        compile_graph(graph, settings, folder / CONTEXT_MODEL)

    def open(self, graph: Path, folder: Path) -> Session:
        options = self.options()
        with suppress(OSError):  # in a read-only cache, kernels are compiled in each run
            self.shared.mkdir(parents=True, exist_ok=True)
            options[RTX_KERNEL_CACHE] = str(self.shared)
        return Session(folder / CONTEXT_MODEL, self._settings(graph, options, {}))

    def _settings(self, graph: Path, options: Mapping[str, str], dimensions: Mapping[str, int]) -> SessionSettings:
        return SessionSettings(
            name=graph.stem,
            plugin_devices=tuple(rtx_devices(self.gpu.index)),
            plugin_options=options,
            dimensions=dimensions,
            # That would turn 8-bit weights into floats, held in memory instead of read from disk.
            optimize=False,
        )
