"""Options of each provider, and engines for TensorRT.

cpu, cuda    open the bundle's graph: a copy optimized by ONNX Runtime would save less than a second
tensorrt     an engine built by TensorRT's Python module, and an EP-context model that loads it

Options are ONNX Runtime's dictionaries of strings. Precision needs none: graphs carry their own
types, and engines are built strongly typed. Names and meanings:
https://onnxruntime.ai/docs/execution-providers/ (TensorRT, CUDA).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.bundle.external import external_files
from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Bundle
from latentsync_trt.errors import EngineBuildError, GraphRefused, InputError, OutOfMemory
from latentsync_trt.runtime.compiler import CONTEXT_MODEL, ENGINE, CompileOrder, run_compiler
from latentsync_trt.runtime.engines.session import CPU_ONLY, Session, SessionSettings
from latentsync_trt.runtime.engines.shapes import DimensionRanges, input_shapes
from latentsync_trt.runtime.providers.devices import Gpu, visible_only
from latentsync_trt.runtime.providers.libraries import tensorrt_version
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT, Provider

_LEVEL = "trt_builder_optimization_level"
"""Option of the TensorRT provider that our own build of its engines follows, too."""

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

CUDNN_ATTENTION_FROM = (9, 0)
"""Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel."""


def options_for(provider: Provider, user_options: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the user's options that are the provider's: TensorRT's begin with "trt_",
    others are CUDA's.
    """
    is_tensorrt = provider is TENSORRT
    return {
        name: value
        for name, value in user_options.items()
        if name.startswith("trt_") == is_tensorrt
    }


def cuda_options(
    device: int = 0,
    *,
    cuda_graph: bool = False,
    fused_bias: bool = False,
    cudnn_attention: bool = False,
) -> dict[str, str]:
    """Returns options of CUDAExecutionProvider.

    `cuda_graph`: capture and replay; needs fixed shapes and every node on the GPU. `fused_bias`:
    cuDNN adds the bias within the convolution where it can. `cudnn_attention`: cuDNN's kernel of
    MultiHeadAttention, instead of the memory-efficient one.
    """
    options = {
        "device_id": str(device),
        # Doubling would hold several GB more than the networks need.
        "arena_extend_strategy": "kSameAsRequested",
        # cuDNN's own choice: trying all kernels took a second more at start-up for steps that are
        # no faster.
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        "enable_cuda_graph": str(int(cuda_graph)),
    }
    if fused_bias:
        options["fuse_conv_bias"] = "1"
    if cudnn_attention:
        options["sdpa_kernel"] = str(_CUDNN | _MEMORY_EFFICIENT)
    return options


def tensorrt_options(device: int = 0, *, cuda_graph: bool = False) -> dict[str, str]:
    """Returns options of TensorrtExecutionProvider, to load and run an engine. Without
    `trt_context_memory_sharing_enable`: with it, a loaded engine runs without device memory
    (https://github.com/LeelaChessZero/lc0/pull/2428).
    """
    return {"device_id": str(device), "trt_cuda_graph_enable": str(cuda_graph)}


@dataclass(frozen=True, slots=True)
class TensorRTBuilder:
    """Builds and opens the engines of a bundle, each of which contains all of its graph."""

    bundle: Bundle
    ranges: DimensionRanges
    """Sizes that the engines support."""
    user_options: Mapping[str, str]
    """Those of `--provider-option`."""
    gpu: Gpu

    def build(self, name: str, folder: Path) -> int | None:
        """Builds the engine of a graph into `folder`; returns its `Entry.device_memory_bytes`."""
        graph = self.bundle.graph_path(name)
        version = tensorrt_version()
        order = CompileOrder(
            "tensorrt",
            str(graph.resolve()),
            input_shapes(self.bundle.manifest.graphs[name], self.ranges),
            optimization_level=self.level,
            version=version,
            folder=str(folder),
            compute_capability=self.gpu.compute_capability,
            fixed={size: span.optimum for size, span in self.ranges.items() if span.fixed},
        )
        answer = run_compiler(order, visible_only(self.gpu))
        if answer.version and not answer.version.startswith(version):
            raise EngineBuildError(
                f"{graph}: Python's tensorrt is {answer.version}, but ONNX Runtime loads TensorRT "
                f"{version}, which takes engines of its own version only; "
                "install one TensorRT, or put its folder first on the loader's path"
            )
        if answer.out_of_memory:
            raise OutOfMemory(
                f"{name}: out of memory while TensorRT builds its engine ({answer.reason}); "
                "close other programs on this GPU, or use --static"
            )
        if not answer.accepted:
            raise GraphRefused(
                f"{graph}: TensorRT built no engine: {answer.reason}; "
                "run with --provider cuda, and please report it"
            )
        return answer.device_memory_bytes

    def open(self, name: str, folder: Path, *, cuda_graph: bool) -> Session:
        """Opens the engine of a graph; with `cuda_graph`, which does not change the engine, runs
        are recorded and replayed.
        """
        options = tensorrt_options(self.gpu.index, cuda_graph=cuda_graph)
        options |= options_for(TENSORRT, self.user_options)
        cuda = (CUDA.ort_name, cuda_options(self.gpu.index))
        providers = ((TENSORRT.ort_name, options), cuda, *CPU_ONLY)
        _check_context_model(folder / CONTEXT_MODEL)
        return Session(folder / CONTEXT_MODEL, SessionSettings(name=name, providers=providers))

    @property
    def level(self) -> int:
        """The optimization level that the user asks for, else TensorRT's default, and in 8 bits
        that of NVIDIA's own demos.
        """
        in_eight_bits = self.bundle.manifest.precision in EIGHT_BIT_PRECISIONS
        level = self.user_options.get(_LEVEL, "4" if in_eight_bits else "3")
        if not level.isdecimal():
            raise InputError(f"--provider-option {_LEVEL}={level}: not a whole number")
        return int(level)


def _check_context_model(path: Path) -> None:
    """Raises `EngineBuildError` unless the model loads the engine beside it alone, as engines run
    as code.
    """
    try:
        names = set(external_files(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise EngineBuildError(f"{path}: is no graph ({error})") from error
    if names != {ENGINE.encode()}:
        raise EngineBuildError(f"{path}: loads another engine than {ENGINE} beside it")
