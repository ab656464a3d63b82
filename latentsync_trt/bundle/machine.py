"""Which published model this machine can run, for advice before any is there."""

from contextlib import suppress
from pathlib import Path

import psutil
import pynvml

from latentsync_trt.bundle.manifest import HEADS, PIXELS_PER_LATENT
from latentsync_trt.config import MODEL_RESOLUTION_PX

_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")
_FRAMES = 16
"""Of a window, as published models were trained."""


def machine_bytes() -> float:
    """The memory of this machine, or of the container (cgroup 2) in which this process runs."""
    with suppress(OSError, ValueError):
        # "max": without a limit
        return min(float(_CONTAINER_MEMORY.read_text()), psutil.virtual_memory().total)
    return float(psutil.virtual_memory().total)


def cpu_step_bytes(resolution_px: int, frames: int = _FRAMES) -> int:
    """The memory that a guided step takes on the CPU: its largest attention matrix and its softmax,
    in float32.
    """
    values = 2 * frames * HEADS * (resolution_px // PIXELS_PER_LATENT) ** 4
    return 2 * 4 * values


def has_nvidia_gpu() -> bool:
    """Whether the driver shows an NVIDIA GPU, of which no library but NVML is asked."""
    try:
        pynvml.nvmlInit()
        return bool(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return False


def setup_command() -> str:
    """The command that makes a bundle here: of the newest model, or without a GPU of the newest
    that fits in memory.
    """
    models = list(MODEL_RESOLUTION_PX)
    on_gpu = has_nvidia_gpu()
    fitting = [
        each
        for each in models
        if on_gpu or cpu_step_bytes(MODEL_RESOLUTION_PX[each]) <= machine_bytes()
    ]
    chosen = fitting[0] if fitting else models[-1]
    if chosen == models[0]:
        return "latentsync-trt setup"
    return f"latentsync-trt setup --model {chosen}"
