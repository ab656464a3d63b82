"""The GPUs of this machine, as CUDA numbers them, and their driver.

Only the driver is asked, no CUDA library, and NVML where the CUDA driver would create a context.
NVML numbers GPUs differently, so they are matched by PCI address.
"""

import ctypes
import functools
import os
import sys
from dataclasses import dataclass
from typing import Any

import pynvml

from latentsync_trt.option_fields import ALL_DEVICES

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

# `CUdevice_attribute` and `CUresult` of cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_SUCCESS = 0
_NO_DEVICE = 100


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine."""

    index: int
    """Its number in CUDA, which depends on $CUDA_VISIBLE_DEVICES."""
    name: str
    compute_capability: str
    """NVIDIA's number of the generation, e.g. "8.9"."""
    memory_bytes: int
    pci_address: str = ""
    """E.g. "0000:01:00.0"."""

    @property
    def capability(self) -> tuple[int, int]:
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, compute capability {self.compute_capability})"


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """Returns all GPUs that CUDA may use; none where there is no driver or no GPU."""
    driver = _driver()
    if driver.library is None or driver.problem is not None:
        return ()
    count = ctypes.c_int()
    if driver.library.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return ()
    return tuple(_gpu(driver.library, index) for index in range(count.value))


def device_numbers(device: int | str | tuple[int, ...]) -> tuple[int, ...]:
    """Returns the GPUs that `RuntimeOptions.device` names; (0,) for "all" on a machine without
    one.
    """
    if device == ALL_DEVICES:
        return tuple(gpu.index for gpu in gpus()) or (0,)
    if isinstance(device, tuple):
        return device
    return (int(device),)


def driver_problem() -> str | None:
    """Returns why the driver cannot be used, in the words of the loader or of the driver; None if
    it can.
    """
    return _driver().problem


def driver_cuda() -> tuple[int, int] | None:
    """Returns the newest CUDA version that the driver supports, e.g. (13, 0); None without a
    driver.
    """
    driver = _driver().library
    version = ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != _SUCCESS:
        return None
    return version.value // 1000, version.value % 1000 // 10


def driver_version() -> str | None:
    """Returns the version of the installed driver, e.g. "580.65.06"; None if NVML has none."""
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def free_memory_bytes(index: int) -> int | None:
    if not 0 <= index < len(gpus()):
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(gpus()[index].pci_address.encode())
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
    except pynvml.NVMLError:
        return None


def visible_only(gpu: Gpu) -> dict[str, str]:
    """Returns environment variables for a child process that must see only this GPU, as its GPU
    0.
    """
    visible = os.environ.get(_VISIBLE_DEVICES)
    name = str(gpu.index)
    if visible:
        names = visible.split(",")
        if gpu.index < len(names):
            name = names[gpu.index].strip()
    return {_VISIBLE_DEVICES: name}


@dataclass(frozen=True, slots=True)
class _Driver:
    """The CUDA driver's library, None where there is none, and why it cannot be used."""

    library: Any
    problem: str | None = None


@functools.cache
def _driver() -> _Driver:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return _Driver(None, str(error))
    code = library.cuInit(0)
    if code in (_SUCCESS, _NO_DEVICE):
        return _Driver(library)
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))  # NULL for an unknown one
    reason = f"error {code}"
    if text.value:
        reason = text.value.decode()
    return _Driver(library, f"cuInit: {reason}")


def _gpu(driver: Any, index: int) -> Gpu:
    device = ctypes.c_int()
    memory = ctypes.c_size_t()
    major = ctypes.c_int()
    minor = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    address = ctypes.create_string_buffer(32)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetPCIBusId(address, len(address), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _CAPABILITY_MINOR, device)
    return Gpu(
        index=index,
        name=name.value.decode(),
        compute_capability=f"{major.value}.{minor.value}",
        memory_bytes=memory.value,
        pci_address=address.value.decode().lower(),
    )
