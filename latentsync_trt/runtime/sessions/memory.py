"""Device memory: buffers, and a memory pool per device that all sessions share."""

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.runtime.providers.table import CPU, CUDA

_log = logging.getLogger(__name__)

COPY_GRAPH = Path(__file__).parents[2] / "assets" / "graphs" / "copy.onnx"
"""`latents_copy = latents`, `history_copy = history`, float32 `(B, 4, F, h, w)`."""

# A second allocator would replace the first, which open sessions keep.
_registering = threading.Lock()

# Grow by the requested size; doubling would hold gigabytes of unused memory.
_ARENA = {"arena_extend_strategy": 1}


class DeviceBuffers:
    """Named buffers on a device ("cpu" or "cuda"), reused unless their shape changes."""

    def __init__(self, device: str, device_id: int) -> None:
        self._device, self._device_id = device, device_id
        self._values: dict[str, Any] = {}

    def upload(self, name: str, array: NDArray[Any]) -> Any:
        """The `OrtValue` of that name, filled with `array`."""
        array = np.asarray(array, order="C")  # not `ascontiguousarray`, which turns a scalar into a vector
        value = self.empty(name, array.shape, array.dtype.type)
        value.update_inplace(array)
        return value

    def empty(self, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> Any:
        """The `OrtValue` of that name, with undefined content."""
        value = self._values.get(name)
        if value is None or tuple(value.shape()) != shape:
            # `ortvalue_from_numpy` works with ONNX Runtime's own CUDA provider only; this, with plug-ins, too.
            value = ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, self._device, self._device_id)
            self._values[name] = value
        return value

    def clear(self) -> None:
        """Frees all buffers."""
        self._values.clear()


def share_memory(providers: Sequence[tuple[str, Mapping[str, str]]]) -> bool:
    """Creates the shared pool for these providers; returns whether a session on them should use it.

    Without it, each session keeps its own peak. Not used for TensorRT, which allocates its own
    memory, nor with CUDA graphs, which need fixed addresses.
    """
    name, own = providers[0]
    with _registering:
        if name == CUDA.ort_name and own.get("enable_cuda_graph") != "1":
            _share_gpu_memory(int(own.get("device_id", "0")))
        elif name != CPU.ort_name:
            return False
        _share_cpu_memory()
    return True


@functools.cache
def _share_cpu_memory() -> None:
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(_ARENA))


@functools.cache
def _share_gpu_memory(device: int) -> None:
    memory = ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, device, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator_v2(CUDA.ort_name, memory, {"device_id": str(device)}, ort.OrtArenaCfg(_ARENA))


def give_back_gpu_memory(selection: Selection) -> None:
    """Returns unused memory of the CUDA provider's pool to the GPU, as closed networks leave it fragmented.

    ONNX Runtime does that only at the end of a run, so this runs a tiny graph; if even that fails, nothing is returned.
    """
    if selection.provider is not CUDA:
        return
    device = selection.device_id
    run = ort.RunOptions()
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", f"gpu:{device}")
    nothing = np.zeros((1, 4, 1, 1, 1), np.float32)
    try:
        _smallest_session(device).run(None, {"latents": nothing, "history": nothing}, run)
    except Exception as error:  # noqa: BLE001 -- ONNX Runtime's errors have no public base; the next run raises its own
        _log.debug("no memory was returned to GPU %d: %s", device, error)


@functools.cache
def _smallest_session(device: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.use_env_allocators", "1")
    with _registering:
        _share_gpu_memory(device)
    return ort.InferenceSession(
        str(COPY_GRAPH), options, providers=[(CUDA.ort_name, {"device_id": str(device)})], enable_fallback=0
    )
