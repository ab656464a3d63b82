"""Options of each provider, and engines for TensorRT.

cpu, cuda    open the bundle's graph directly: a copy that ONNX Runtime has optimized would save less than a second
tensorrt     an engine built by TensorRT's Python module, and an EP-context model through which ONNX Runtime loads it

Options are ONNX Runtime's dictionaries of strings. Precision needs none: graphs carry their own types, and engines are
built strongly typed. Names and meanings: https://onnxruntime.ai/docs/execution-providers/ (TensorRT, CUDA).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bundle.external import external_files
from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, DimensionRange, GraphEntry, Precision
from latentsync_trt.errors import EngineBuildError, GraphRefused, InputError, OutOfMemory
from latentsync_trt.runtime.compiler import CONTEXT_MODEL, ENGINE, CompileOrder, run_compiler
from latentsync_trt.runtime.engines.profiles import input_shapes
from latentsync_trt.runtime.engines.session import CPU, Session, SessionSettings
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT, Provider

_LEVEL = "trt_builder_optimization_level"
"""Option of the TensorRT provider that our own build of its engines follows, too."""

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

CUDNN_ATTENTION_FROM = (9, 0)
"""Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel."""


def own_options(provider: Provider, given: Mapping[str, str]) -> dict[str, str]:
    """Those of `given` that are the provider's: TensorRT's begin with "trt_", others are CUDA's."""
    return {key: value for key, value in given.items() if key.startswith("trt_") == (provider is TENSORRT)}


def cuda_options(
    device: int = 0, *, cuda_graph: bool = False, fused_bias: bool = False, cudnn_attention: bool = False
) -> dict[str, str]:
    """CUDAExecutionProvider.

    `cuda_graph`: capture and replay; needs fixed shapes and every node on the GPU. `fused_bias`: cuDNN adds the bias
    within the convolution where it can. `cudnn_attention`: of MultiHeadAttention, instead of the memory-efficient one.
    """
    return {
        "device_id": str(device),
        # Doubling would hold several GB more than the networks need.
        "arena_extend_strategy": "kSameAsRequested",
        # cuDNN's own choice: trying all kernels took a second more at start-up for steps that are no faster.
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        "enable_cuda_graph": "1" if cuda_graph else "0",
        **({"fuse_conv_bias": "1"} if fused_bias else {}),
        **({"sdpa_kernel": str(_CUDNN | _MEMORY_EFFICIENT)} if cudnn_attention else {}),
    }


def tensorrt_options(device: int = 0, *, cuda_graph: bool = False) -> dict[str, str]:
    """TensorrtExecutionProvider, to load and run an engine. Without `trt_context_memory_sharing_enable`: with it, a
    loaded engine runs without device memory (https://github.com/LeelaChessZero/lc0/pull/2428)."""
    return {"device_id": str(device), "trt_cuda_graph_enable": str(cuda_graph)}


@dataclass(frozen=True, slots=True)
class TensorRTBuilder:
    """How the engine of one graph, which contains all of it, is built and opened.

    `ranges`: sizes that the engine supports. `given`: of `--provider-option`. `version`: of the TensorRT that ONNX
    Runtime loads. `precision`: of the bundle.
    """

    entry: GraphEntry
    ranges: Mapping[str, DimensionRange]
    given: Mapping[str, str]
    gpu: Gpu
    version: str
    precision: Precision

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
            optimization_level=self.level,
            version=self.version,
            folder=str(folder),
            compute_capability=self.gpu.compute_capability,
            inputs=inputs,
            outputs=outputs,
        )
        answer = run_compiler(order, visible_only(self.gpu))
        if answer.version and not answer.version.startswith(self.version):
            what = f"Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT {self.version}"
            cure = "install one TensorRT, or put its folder first on the loader's path"
            raise EngineBuildError(f"{graph}: {what}, which takes engines of its own version only; {cure}")
        if answer.out_of_memory:
            what = f"out of memory while TensorRT builds its engine ({answer.reason})"
            raise OutOfMemory(f"{graph.stem}: {what}; close other programs on this GPU, or use --static")
        if not answer.accepted:
            cure = "run with --provider cuda, and please report it"
            raise GraphRefused(f"{graph}: TensorRT built no engine: {answer.reason}; {cure}")
        return answer.device_memory_bytes

    def open(self, graph: Path, folder: Path, *, cuda_graph: bool) -> Session:
        """`cuda_graph`: record and replay, which does not change the engine."""
        options = tensorrt_options(self.gpu.index, cuda_graph=cuda_graph)
        providers = (
            (TENSORRT.ort_name, {**options, **own_options(TENSORRT, self.given)}),
            (CUDA.ort_name, cuda_options(self.gpu.index)),
            *CPU,
        )
        _check_context_model(folder / CONTEXT_MODEL)
        return Session(folder / CONTEXT_MODEL, SessionSettings(name=graph.stem, providers=providers))

    @property
    def level(self) -> int:
        """The level asked for, else TensorRT's default, and in 8 bits that of NVIDIA's own demos."""
        asked = self.given.get(_LEVEL, "4" if self.precision in EIGHT_BIT_PRECISIONS else "3")
        if not asked.isdecimal():
            raise InputError(f"--provider-option {_LEVEL}={asked}: not a whole number")
        return int(asked)


def _check_context_model(path: Path) -> None:
    """Raises `EngineBuildError` unless the model loads the engine beside it alone, as engines run as code."""
    try:
        names = {*external_files(path.read_bytes())}
    except (OSError, ValueError, RecursionError) as error:
        raise EngineBuildError(f"{path}: is no graph ({error})") from error
    if names != {ENGINE.encode()}:
        raise EngineBuildError(f"{path}: loads another engine than {ENGINE} beside it")
