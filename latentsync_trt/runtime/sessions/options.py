"""Options of the execution providers, typed, each turned into the provider's own dictionary of strings.

Precision needs no option: the graphs carry their own types, and engines are built strongly typed.

Names and meanings: https://onnxruntime.ai/docs/execution-providers/ (TensorRT, CUDA), and the header
`tensorrt_rtx_provider_options.h` in NVIDIA's plug-in package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from latentsync_trt.bundle.manifest import GraphForm
from latentsync_trt.runtime.compiler.profiles import InputShapes
from latentsync_trt.runtime.providers.gpu import Gpu

_BYTES_PER_GB = 10**9

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

# Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel.
_CUDNN_ATTENTION_FROM = 9.0


class ProviderOptions(Protocol):
    """The options of one provider."""

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """CUDAExecutionProvider.

    Args:
        device: GPU index. cuda_graph: capture and replay; needs fixed shapes and every node on the GPU.
        fused_bias: convolutions add their bias themselves, where cuDNN can, not in a pass of its own.
        cudnn_attention: MultiHeadAttention runs cuDNN's kernel, or where that cannot, the memory-efficient one.
    """

    device: int = 0
    cuda_graph: bool = False
    fused_bias: bool = False
    cudnn_attention: bool = False

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""
        return {
            "device_id": str(self.device),
            # An arena that doubles would hold several GB more than the networks need.
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            "cudnn_conv_use_max_workspace": "1",
            "enable_cuda_graph": _flag(self.cuda_graph),
            **({"fuse_conv_bias": "1"} if self.fused_bias else {}),
            **({"sdpa_kernel": str(_CUDNN | _MEMORY_EFFICIENT)} if self.cudnn_attention else {}),
        }


def cuda_options(form: GraphForm, gpu: Gpu, *, cuda_graph: bool = False) -> CudaOptions:
    """The CUDA provider's options for a graph in `form` on `gpu`."""
    if form == "portable":
        return CudaOptions(gpu.index, cuda_graph)
    cudnn_attention = float(gpu.compute_capability) >= _CUDNN_ATTENTION_FROM
    return CudaOptions(gpu.index, cuda_graph, fused_bias=True, cudnn_attention=cudnn_attention)


@dataclass(frozen=True, slots=True)
class TensorRTOptions:
    """TensorrtExecutionProvider, as it loads and runs an engine; see `BuildOptions` for what builds one.

    Not `trt_context_memory_sharing_enable`: with an engine that the provider loads it runs without device memory
    (https://github.com/LeelaChessZero/lc0/pull/2428).

    Args:
        device: GPU index. cuda_graph: capture and replay; needs fixed shapes.
    """

    device: int = 0
    cuda_graph: bool = False

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary. Of booleans it reads "True" and "False" alone."""
        return {"device_id": str(self.device), "trt_cuda_graph_enable": str(self.cuda_graph)}


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How TensorRT builds an engine.

    Args:
        shapes: profile of each input with a variable dimension, empty for fixed shapes.
        workspace_gb: most scratch memory of an engine, None for no limit. optimization_level: 0 to 5.
    """

    shapes: Mapping[str, InputShapes] = field(default_factory=dict)
    workspace_gb: float | None = None
    optimization_level: int = 3

    @property
    def workspace_bytes(self) -> int | None:
        """Most scratch memory, None for no limit."""
        return None if self.workspace_gb is None else round(self.workspace_gb * _BYTES_PER_GB)

    def to_key(self) -> dict[str, str]:
        """The part of an engine's key; the shapes are in the key's profile."""
        workspace = {} if self.workspace_bytes is None else {"workspace_bytes": str(self.workspace_bytes)}
        return {"optimization_level": str(self.optimization_level), **workspace}


@dataclass(frozen=True, slots=True)
class RtxOptions:
    """NvTensorRTRTXExecutionProvider, NVIDIA's plug-in for RTX cards. Its device is chosen by the session.

    Args:
        shapes: as in `BuildOptions`. workspace_gb: likewise.
        runtime_cache_folder: where kernels compiled on the card are kept between starts, None for nowhere.
    """

    shapes: Mapping[str, InputShapes] = field(default_factory=dict)
    workspace_gb: float | None = None
    runtime_cache_folder: str | None = None

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""
        cache = {} if self.runtime_cache_folder is None else {"nv_runtime_cache_path": self.runtime_cache_folder}
        return {
            # Its own default is to capture; it is not documented what that does with buffers that are swapped.
            "enable_cuda_graph": "0",
            **_workspace("nv_max_workspace_size", self.workspace_gb),
            **_profiles("nv_profile", self.shapes),
            **cache,
        }


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _workspace(name: str, workspace_gb: float | None) -> dict[str, str]:
    return {} if workspace_gb is None else {name: str(round(workspace_gb * _BYTES_PER_GB))}


def _profiles(prefix: str, shapes: Mapping[str, InputShapes]) -> dict[str, str]:
    """`min`, `opt` and `max` of all inputs, as `name:1x2x3,name:4x5`; empty for fixed shapes."""
    if not shapes:
        return {}
    return {
        f"{prefix}_{short}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, getattr(ends, end)))}" for name, ends in shapes.items()
        )
        for short, end in (("min", "minimum"), ("opt", "optimum"), ("max", "maximum"))
    }
