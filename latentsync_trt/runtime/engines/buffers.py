"""Memory of the device on which graphs run, and small graphs that work in it."""

import functools
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike

from latentsync_trt.runtime.engines.session import CPU_ONLY, Array, Session, SessionSettings
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CUDA

COPY_GRAPH = Path(__file__).parents[2] / "assets" / "graphs" / "copy.onnx"
"""Graph of `latents_copy = latents` and `history_copy = history`, float32 `(B, 4, F, h, w)`."""


class DeviceBuffers:
    """Named buffers where the selected provider has its inputs and outputs; reused unless their
    shape changes.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._values: dict[str, Any] = {}

    def upload(self, name: str, array: Array) -> Any:
        """Returns the `OrtValue` of that name, with the content of `array`."""
        # not `ascontiguousarray`, which turns a scalar into a vector
        array = np.asarray(array, order="C")
        value = self.empty(name, array.shape, array.dtype)
        value.update_inplace(array)
        return value

    def empty(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Returns the `OrtValue` of that name, with undefined content."""
        value = self._values.get(name)
        if value is None or tuple(value.shape()) != shape:
            value = ort.OrtValue.ortvalue_from_shape_and_type(
                shape, np.dtype(dtype).type, self._selection.device, self._selection.device_id
            )
            self._values[name] = value
        return value

    def clear(self) -> None:
        self._values.clear()


@functools.cache
def small_session(path: Path, selection: Selection) -> Session:
    """Opens a small graph on buffers of the selected provider, run by the CPU or CUDA; once for the
    whole process.
    """
    providers = CPU_ONLY
    if selection.device == "cuda":
        providers = ((CUDA.ort_name, {"device_id": str(selection.device_id)}), *CPU_ONLY)
    return Session(path, SessionSettings(providers=providers))


def give_back_gpu_memory(selection: Selection) -> None:
    """Returns unused memory of the CUDA provider's pool to the GPU, as closed networks leave it
    fragmented: by a run of a tiny graph, since ONNX Runtime does that only at the end of one.
    """
    if selection.provider is not CUDA:
        return
    options = ort.RunOptions()
    options.add_run_config_entry(
        "memory.enable_memory_arena_shrinkage", f"gpu:{selection.device_id}"
    )
    zeros = np.zeros((1, 4, 1, 1, 1), np.float32)
    # ONNX Runtime's errors have no public base; the next run raises its own
    with suppress(Exception):
        session = small_session(COPY_GRAPH, selection)
        session.ort.run(None, {"latents": zeros, "history": zeros}, options)
