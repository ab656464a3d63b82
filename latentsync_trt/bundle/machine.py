"""Which published model this machine can run, for advice before any is there."""

from contextlib import suppress
from pathlib import Path

import psutil
import pynvml

from latentsync_trt.bundle.manifest import HEADS, PIXELS_PER_LATENT
from latentsync_trt.config import MODEL_RESOLUTION_PX

_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")
"""The file in which cgroup 2 shows the limit of a container."""
_FRAMES = 16
"""Frames of a window, as published models were trained."""


def machine_bytes() -> float:
    """Returns the memory of this machine, or of the container in which this process runs."""
    memory_bytes = float(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # "max": without a limit
        return min(float(_CONTAINER_MEMORY.read_text()), memory_bytes)
    return memory_bytes


def cpu_step_bytes(resolution_px: int, frames: int = _FRAMES) -> int:
    """Returns the memory that a guided step takes on the CPU: its largest attention matrix and its
    softmax, in float32.
    """
    values = 2 * frames * HEADS * (resolution_px // PIXELS_PER_LATENT) ** 4
    return 2 * 4 * values


def has_nvidia_gpu() -> bool:
    """Returns whether the driver shows an NVIDIA GPU; no library but NVML is asked."""
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


def setup_command() -> str:
    """Returns the command that makes a bundle here: of the newest model, or without a GPU of the
    newest that fits in memory.
    """
    newest, *older = MODEL_RESOLUTION_PX
    if has_nvidia_gpu() or _fits(newest):
        return "latentsync-trt setup"
    chosen = next(filter(_fits, older), older[-1])
    return f"latentsync-trt setup --model {chosen}"


def _fits(model: str) -> bool:
    return cpu_step_bytes(MODEL_RESOLUTION_PX[model]) <= machine_bytes()
