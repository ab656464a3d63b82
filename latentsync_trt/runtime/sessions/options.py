"""Options of the execution providers, as ONNX Runtime's dictionaries of strings.

Precision needs no option: the graphs carry their own types, and engines are built strongly typed.

Names and meanings: https://onnxruntime.ai/docs/execution-providers/ (TensorRT, CUDA), and the header
`tensorrt_rtx_provider_options.h` in NVIDIA's plug-in package.
"""

from collections.abc import Mapping

from latentsync_trt.bundle.manifest import GraphForm
from latentsync_trt.runtime.compiler.profiles import InputShapes
from latentsync_trt.runtime.providers.gpu import Gpu

OPTIMIZATION_LEVEL, WORKSPACE_BYTES = "trt_builder_optimization_level", "trt_max_workspace_size"
"""Options of the TensorRT provider that our own build of its engines follows, too."""

_PREFIXES = {"tensorrt": "trt_", "rtx": "nv_"}

# Bits of the CUDA provider's `sdpa_kernel`: which attention kernels it may choose from.
_MEMORY_EFFICIENT = 2
_CUDNN = 8

RTX_KERNEL_CACHE = "nv_runtime_cache_path"
"""The plug-in's option for the folder of kernels that it compiles at run time."""

# Compute capability from which cuDNN's attention is faster than ONNX Runtime's own kernel.
_CUDNN_ATTENTION_FROM = 9.0


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
    if form == "portable":
        return cuda_options(gpu.index, cuda_graph=cuda_graph)
    cudnn_attention = float(gpu.compute_capability) >= _CUDNN_ATTENTION_FROM
    return cuda_options(gpu.index, cuda_graph=cuda_graph, fused_bias=True, cudnn_attention=cudnn_attention)


def tensorrt_options(device: int = 0, *, cuda_graph: bool = False) -> dict[str, str]:
    """TensorrtExecutionProvider, to load and run an engine. It accepts only "True" and "False" as booleans.

    Without `trt_context_memory_sharing_enable`: with it, a loaded engine runs without device memory
    (https://github.com/LeelaChessZero/lc0/pull/2428).

    Args:
        device: GPU index. cuda_graph: capture and replay; needs fixed shapes.
    """
    return {"device_id": str(device), "trt_cuda_graph_enable": str(cuda_graph)}


def rtx_options(shapes: Mapping[str, InputShapes] | None = None) -> dict[str, str]:
    """NvTensorRTRTXExecutionProvider, NVIDIA's plug-in. The session selects its device.

    Args:
        shapes: of each input with a variable dimension.
    """
    return {
        # On by default; its behavior with swapped buffers is undocumented.
        "enable_cuda_graph": "0",
        **_profiles(shapes or {}),
    }


def own_options(provider: str, given: Mapping[str, str]) -> dict[str, str]:
    """The options among those of `--provider-option` that are `provider`'s, by ONNX Runtime's prefixes."""
    prefix = _PREFIXES.get(provider)
    if prefix is not None:
        return {key: value for key, value in given.items() if key.startswith(prefix)}
    return {key: value for key, value in given.items() if not key.startswith(tuple(_PREFIXES.values()))}


def _profiles(shapes: Mapping[str, InputShapes]) -> dict[str, str]:
    """`min`, `opt` and `max` of all inputs, as `name:1x2x3,name:4x5`; empty for fixed shapes."""
    if all(ends.minimum == ends.maximum for ends in shapes.values()):
        return {}
    return {
        f"nv_profile_{short}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, getattr(ends, end)))}" for name, ends in shapes.items()
        )
        for short, end in (("min", "minimum"), ("opt", "optimum"), ("max", "maximum"))
    }
