"""Options of the execution providers, typed, each turned into the provider's own dictionary of strings.

Precision needs no option. The graphs carry their own types, and TensorRT builds a strongly typed network of them when
none of its `trt_fp16_enable`, `trt_bf16_enable`, `trt_int8_enable` is set; weak typing is deprecated in TensorRT 10.12
and gone in 11.

Names and meanings: https://onnxruntime.ai/docs/execution-providers/ (TensorRT, CUDA), and the header
`tensorrt_rtx_provider_options.h` in NVIDIA's plug-in package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from latentsync_trt.runtime.profiles import InputShapes

CONTEXT_ENGINE_FOLDER = "engine"
"""Where TensorRT puts the engine, relative to the EP-context model: ONNX Runtime allows nothing else."""

_BYTES_PER_GB = 10**9

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8


class ProviderOptions(Protocol):
    """What every provider's options can do."""

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """CPUExecutionProvider takes no options; threads belong to the session."""

    def to_ort(self) -> dict[str, str]:
        """No options."""
        return {}


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """CUDAExecutionProvider.

    Args:
        device: GPU index. cuda_graph: capture and replay; needs fixed shapes and every node on the GPU.
        search: how cuDNN chooses a convolution's algorithm: by trying all, by trying some, or by rule.
        fused_bias: convolutions add their bias themselves, where cuDNN can, not in a pass of its own.
        cudnn_attention: MultiHeadAttention runs cuDNN's kernel, or where that cannot, the memory-efficient one.
    """

    device: int = 0
    cuda_graph: bool = False
    search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] = "EXHAUSTIVE"
    fused_bias: bool = False
    cudnn_attention: bool = False

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""
        return {
            "device_id": str(self.device),
            # An arena that doubles would hold several GB more than the networks need.
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": self.search,
            "cudnn_conv_use_max_workspace": "1",
            "enable_cuda_graph": _flag(self.cuda_graph),
            **({"fuse_conv_bias": "1"} if self.fused_bias else {}),
            **({"sdpa_kernel": str(_CUDNN | _MEMORY_EFFICIENT)} if self.cudnn_attention else {}),
        }


@dataclass(frozen=True, slots=True)
class TensorRTOptions:
    """TensorrtExecutionProvider.

    Args:
        device: GPU index. shapes: profile of each input with a variable dimension, empty for fixed shapes.
        workspace_gb: most scratch memory of an engine, None for no limit. optimization_level: 0 to 5.
        cuda_graph: capture and replay; needs fixed shapes.
        prefix: what the engine's file name starts with. The provider's own name says nothing of weights or options.
        engine_folder: where engines are read and written; relative to the context model where one is written.
        context_model: EP-context model to write while building, None to write none.
        timing_folder: where kernel timings are read and written, None for nowhere.
    """

    device: int = 0
    shapes: Mapping[str, InputShapes] = field(default_factory=dict)
    workspace_gb: float | None = None
    optimization_level: int = 3
    cuda_graph: bool = False
    prefix: str = ""
    engine_folder: str = ""
    context_model: str | None = None
    timing_folder: str | None = None

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""
        return {
            "device_id": str(self.device),
            "trt_builder_optimization_level": str(self.optimization_level),
            "trt_cuda_graph_enable": _flag(self.cuda_graph),
            "trt_context_memory_sharing_enable": "1",
            **_workspace("trt_max_workspace_size", self.workspace_gb),
            **_profiles("trt_profile", self.shapes),
            **self._places(),
        }

    def _places(self) -> dict[str, str]:
        places: dict[str, str] = {}
        if self.engine_folder:
            places |= {
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": self.engine_folder,
                "trt_engine_cache_prefix": self.prefix,
            }
        if self.context_model is not None:
            # Embedding stops at protobuf's 2 GB; a file of its own does not, and loads faster.
            places |= {
                "trt_dump_ep_context_model": "1",
                "trt_ep_context_file_path": self.context_model,
                "trt_ep_context_embed_mode": "0",
            }
        if self.timing_folder is not None:
            places |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": self.timing_folder}
        return places


@dataclass(frozen=True, slots=True)
class RtxOptions:
    """NvTensorRTRTXExecutionProvider, NVIDIA's plug-in for RTX cards. Its device is chosen by the session.

    Args:
        shapes: as in `TensorRTOptions`. workspace_gb: likewise.
        runtime_cache_folder: where kernels compiled on the card are kept between starts, None for nowhere.
    """

    shapes: Mapping[str, InputShapes] = field(default_factory=dict)
    workspace_gb: float | None = None
    runtime_cache_folder: str | None = None

    def to_ort(self) -> dict[str, str]:
        """The provider's own option dictionary."""
        cache = {} if self.runtime_cache_folder is None else {"nv_runtime_cache_path": self.runtime_cache_folder}
        return {
            **_workspace("nv_max_workspace_size", self.workspace_gb),
            **_profiles("nv_profile", self.shapes),
            **cache,
        }


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _workspace(name: str, workspace_gb: float | None) -> dict[str, str]:
    return {} if workspace_gb is None else {name: str(round(workspace_gb * _BYTES_PER_GB))}


def _profiles(prefix: str, shapes: Mapping[str, InputShapes]) -> dict[str, str]:
    """`min`, `opt` and `max` of all inputs, as `name:1x2x3,name:4x5`; nothing for fixed shapes."""
    if not shapes:
        return {}
    return {
        f"{prefix}_{short}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, getattr(ends, end)))}" for name, ends in shapes.items()
        )
        for short, end in (("min", "minimum"), ("opt", "optimum"), ("max", "maximum"))
    }
