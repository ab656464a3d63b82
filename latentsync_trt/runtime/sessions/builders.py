"""Opens graphs on each provider, and builds engines for the providers that compile graphs.

cpu, cuda    open the bundle's graph directly
tensorrt     an engine built by TensorRT's Python module, and an EP-context model through which ONNX Runtime loads it
rtx          an EP-context model from ONNX Runtime's compile interface

Options are ONNX Runtime's dictionaries of strings. Precision needs none: graphs carry their own types, and engines are
built strongly typed. Names and meanings: https://onnxruntime.ai/docs/execution-providers/
(TensorRT, CUDA), and the header `tensorrt_rtx_provider_options.h` in NVIDIA's plug-in package.
"""

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, DimensionRange, GraphEntry, GraphForm, Precision
from latentsync_trt.errors import EngineBuildError, GraphRefused, InputError, OutOfMemory
from latentsync_trt.files import whole_file
from latentsync_trt.runtime.compiler import Answer, CompileOrder, ContextModel, run_compiler
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.libraries import onnxruntime_version
from latentsync_trt.runtime.providers.table import CUDA, RTX, TENSORRT
from latentsync_trt.runtime.sessions.profiles import InputShapes, input_shapes
from latentsync_trt.runtime.sessions.session import (
    CPU,
    RECORD_ASSIGNMENT,
    Providers,
    Session,
    SessionSettings,
    compile_graph,
)

CONTEXT_MODEL = "context.onnx"

ENGINE = "model.engine"
"""In the folder of the context model, where ONNX Runtime requires it."""

TIMINGS = "kernels.timing"

OPTIMIZATION_LEVEL, WORKSPACE_BYTES = "trt_builder_optimization_level", "trt_max_workspace_size"
"""Options of the TensorRT provider that our own build of its engines follows, too."""

RTX_KERNEL_CACHE = "nv_runtime_cache_path"
"""The plug-in's option for the folder of kernels that it compiles at run time."""

_PREFIXES = {TENSORRT.name: "trt_", RTX.name: "nv_"}

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

# Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel.
_CUDNN_ATTENTION_FROM = (9, 0)

# The operator's name in messages of the parser and the builder.
_ATTENTION = re.compile(r"\bAttention (?:\(node|operation)")


def own_options(provider: str, given: Mapping[str, str]) -> dict[str, str]:
    """The options among those of `--provider-option` that are `provider`'s, by ONNX Runtime's prefixes."""
    prefix = _PREFIXES.get(provider)
    if prefix is not None:
        return {key: value for key, value in given.items() if key.startswith(prefix)}
    return {key: value for key, value in given.items() if not key.startswith(tuple(_PREFIXES.values()))}


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


def cuda_form_options(form: GraphForm, gpu: Gpu, *, cuda_graph: bool = False) -> dict[str, str]:
    """The CUDA provider's options for a graph in `form` on `gpu`."""
    made_for_cuda = form == CUDA.form
    return cuda_options(
        gpu.index,
        cuda_graph=cuda_graph,
        fused_bias=made_for_cuda,
        cudnn_attention=made_for_cuda and gpu.capability >= _CUDNN_ATTENTION_FROM,
    )


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
    if any(ends.minimum != ends.maximum for ends in shapes.values()):
        for index, end in enumerate(("min", "opt", "max")):
            sizes = (f"{name}:{'x'.join(map(str, ends[index]))}" for name, ends in shapes.items())
            options[f"nv_profile_{end}_shapes"] = ",".join(sizes)
    return options


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A graph's `.onnx` file, and values that fix variable dimensions."""

    path: Path
    dimensions: Mapping[str, int] = field(default_factory=dict)

    def settings(self, **fields: Any) -> SessionSettings:
        """Session settings for this graph."""
        own = SessionSettings(**fields, name=self.path.stem, config=RECORD_ASSIGNMENT)
        return replace(own, dimensions=self.dimensions)


@dataclass(frozen=True, slots=True)
class DirectOpen:
    """CPU and CUDA: ONNX Runtime optimizes the graph each time; a cached copy would save less than a second."""

    providers: Providers

    def open(self, source: GraphSource) -> Session:
        """Opens a graph. Errors as `Session`."""
        return Session(source.path, source.settings(providers=self.providers))


@dataclass(frozen=True, slots=True)
class TensorRTBuilder:
    """TensorRT; an engine contains the whole graph.

    `ranges`: sizes that the engine supports. `given`: of `--provider-option`. `version`: of the
    TensorRT that ONNX Runtime loads. `shared`: a folder of kernel timings that other processes may
    change at any time. `cuda_graph` does not change the engine. `precision`: of the bundle.

    Raises:
        InputError: an option among `given` has a wrong value.
    """

    entry: GraphEntry
    ranges: Mapping[str, DimensionRange]
    given: Mapping[str, str]
    gpu: Gpu
    version: str
    shared: Path
    cuda_graph: bool = False
    precision: Precision = "fp16"

    def options(self) -> dict[str, str]:
        """The options for the engine's key: without paths and options that do not change the engine."""
        limit = self._number(WORKSPACE_BYTES)
        workspace = {} if limit is None else {"workspace_bytes": str(limit)}
        return {"optimization_level": str(self._level), **workspace}

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's and TensorRT's: an engine runs only with the version that built it."""
        return {"onnxruntime": onnxruntime_version(), "tensorrt": self.version}

    def build(self, source: GraphSource, folder: Path) -> int | None:
        """Builds into `folder`, which will be renamed; kernel timings of earlier builds shorten it.

        Returns the GPU memory of a run in bytes, without weights; None if unknown.

        Raises:
            EngineBuildError: the provider cannot compile the graph. OutOfMemory: there is too little memory.
        """
        # A copy, as another build may write the shared file at the same time.
        shared, timings = self.shared / TIMINGS, folder / TIMINGS
        _copy(shared, timings)
        answer = run_compiler(self._order(source, folder, timings), visible_only(self.gpu))
        if answer.version and not answer.version.startswith(self.version):
            raise EngineBuildError(
                f"{source.path}: Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT "
                f"{self.version}, which takes engines of its own version only; install one TensorRT, or put its folder "
                "first on the loader's path"
            )
        if not answer.accepted:
            raise _refusal(source.path, answer)
        _copy(timings, shared)
        timings.unlink(missing_ok=True)
        return answer.device_memory_bytes

    def open(self, source: GraphSource, folder: Path) -> Session:
        """Opens what `build` wrote to `folder`: the EP-context model, whose shapes are those of the engine."""
        options = tensorrt_options(self.gpu.index, cuda_graph=self.cuda_graph)
        providers = (
            (TENSORRT.ort_name, {**options, **own_options(TENSORRT.name, self.given)}),
            (CUDA.ort_name, cuda_options(self.gpu.index)),
            *CPU,
        )
        settings = replace(source, dimensions={}).settings(providers=providers, optimize=False)
        return Session(folder / CONTEXT_MODEL, settings)

    @property
    def _level(self) -> int:
        """The level asked for, else TensorRT's default, and in 8 bits that of NVIDIA's own demos."""
        asked = self._number(OPTIMIZATION_LEVEL)
        return asked if asked is not None else 4 if self.precision in EIGHT_BIT_PRECISIONS else 3

    def _number(self, key: str) -> int | None:
        text = self.given.get(key)
        if text is not None and not text.isdecimal():
            raise InputError(f"--provider-option {key}={text}: not a whole number")
        return None if text is None else int(text)

    def _order(self, source: GraphSource, folder: Path, timings: Path) -> CompileOrder:
        fixed: dict[int | str, int] = {name: span.optimum for name, span in self.ranges.items() if span.fixed}
        inputs, outputs = (
            tuple((each.name, each.dtype, tuple(fixed.get(size, size) for size in each.shape)) for each in tensors)
            for tensors in (self.entry.inputs, self.entry.outputs)
        )
        return CompileOrder(
            "tensorrt",
            str(source.path.resolve()),
            input_shapes(self.entry, self.ranges),
            optimization_level=self._level,
            workspace_bytes=self._number(WORKSPACE_BYTES),
            timings=str(timings),
            version=self.version,
            engine=str(folder / ENGINE),
            context=ContextModel(str(folder / CONTEXT_MODEL), ENGINE, self.gpu.compute_capability, inputs, outputs),
        )


def _refusal(graph: Path, answer: Answer) -> GraphRefused | OutOfMemory:
    """The error for a graph that TensorRT did not compile."""
    if answer.out_of_memory:
        return OutOfMemory(
            f"{graph.stem}: out of memory while TensorRT builds its engine ({answer.reason}); close other programs on "
            f"this GPU, lower --provider-option {WORKSPACE_BYTES}, or use --static"
        )
    cure = "run with --provider cuda, and please report it"
    if _ATTENTION.search(answer.reason):
        cure = "export the model with --attention matmul, which writes attention in parts"
    return GraphRefused(f"{graph}: TensorRT built no engine: {answer.reason}; {cure}")


@dataclass(frozen=True, slots=True)
class RtxBuilder:
    """NVIDIA's TensorRT-RTX plug-in; methods as those of `TensorRTBuilder`.

    `shapes`: of each input with a variable dimension. `given`: of `--provider-option`. `devices`:
    as ONNX Runtime offers them. `shared`: a folder for kernels that it compiles at run time.
    """

    shapes: Mapping[str, InputShapes]
    given: Mapping[str, str]
    devices: tuple[Any, ...]
    version: str
    shared: Path

    def options(self) -> dict[str, str]:
        """As `TensorRTBuilder.options`."""
        return {**rtx_options(self.shapes), **own_options(RTX.name, self.given)}

    def versions(self) -> dict[str, str]:
        """ONNX Runtime's and the plug-in's."""
        return {"onnxruntime": onnxruntime_version(), "onnxruntime-ep-nv-tensorrt-rtx": self.version}

    def build(self, source: GraphSource, folder: Path) -> int | None:
        """Compiles ahead of time; the plug-in compiles the kernels when they run."""
        compile_graph(source.path, self._settings(source, self.options()), folder / CONTEXT_MODEL)
        return None

    def open(self, source: GraphSource, folder: Path) -> Session:
        """Opens the EP-context model."""
        options = self.options()
        with suppress(OSError):  # in a read-only cache, kernels are compiled in each run
            self.shared.mkdir(parents=True, exist_ok=True)
            options[RTX_KERNEL_CACHE] = str(self.shared)
        return Session(folder / CONTEXT_MODEL, self._settings(replace(source, dimensions={}), options))

    def _settings(self, source: GraphSource, options: Mapping[str, str]) -> SessionSettings:
        # Not optimized: that would turn 8-bit weights into floats, held in memory instead of read from disk.
        return source.settings(plugin_devices=self.devices, plugin_options=options, optimize=False)


Builder = TensorRTBuilder | RtxBuilder


def _copy(source: Path, target: Path) -> None:
    """Copies a file atomically, if it exists. Ignores errors, as timings only save time."""
    with suppress(OSError):
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(target) as part:
                shutil.copyfile(source, part)
