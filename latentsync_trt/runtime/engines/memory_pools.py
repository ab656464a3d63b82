"""Pools of memory that the sessions on one device share; without them, each would keep its own
peak.
"""

import functools
import threading
from collections.abc import Mapping

import onnxruntime as ort

from latentsync_trt.runtime.providers.table import CPU, CUDA

# A second pool would replace the first, which open sessions keep.
_creating = threading.Lock()

# Grow by the requested size; doubling would hold gigabytes of unused memory.
_GROWTH = {"arena_extend_strategy": 1}


def share_memory(provider: str, options: Mapping[str, str]) -> bool:
    """Creates the pools for a provider, by ONNX Runtime's name, unless they exist.

    Returns whether a session should use them: not with TensorRT, which has memory of its own, nor
    with CUDA graphs, which need fixed addresses.
    """
    on_cuda = provider == CUDA.ort_name and options.get("enable_cuda_graph") != "1"
    if not on_cuda and provider != CPU.ort_name:
        return False
    with _creating:
        if on_cuda:
            _create_gpu_pool(int(options.get("device_id", "0")))
        _create_cpu_pool()
    return True


@functools.cache
def _create_cpu_pool() -> None:
    ort.create_and_register_allocator(_memory("Cpu", 0), ort.OrtArenaCfg(_GROWTH))


@functools.cache
def _create_gpu_pool(device: int) -> None:
    ort.create_and_register_allocator_v2(
        CUDA.ort_name,
        _memory("Cuda", device),
        {"device_id": str(device)},
        ort.OrtArenaCfg(_GROWTH),
    )


def _memory(kind: str, device: int) -> ort.OrtMemoryInfo:
    arena = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    return ort.OrtMemoryInfo(kind, arena, device, ort.OrtMemType.DEFAULT)
