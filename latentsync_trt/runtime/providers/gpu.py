"""The GPUs of this machine, as CUDA numbers them, and what their driver can do.

Uses only the driver, no CUDA library, and NVML where the CUDA driver would create a context; it numbers GPUs
differently, so they are matched by PCI address.
"""

import ctypes
import functools
import os
import sys
from dataclasses import dataclass
from typing import Any

import pynvml

DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

_VISIBLE = "CUDA_VISIBLE_DEVICES"

# `CUdevice_attribute` and `CUresult` of cuda.h.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_SUCCESS, _NO_DEVICE = 0, 100


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; `index` depends on $CUDA_VISIBLE_DEVICES. E.g. capability "8.9", PCI address "0000:01:00.0"."""

    index: int
    name: str
    compute_capability: str
    memory_bytes: int
    pci_address: str = ""

    @property
    def capability(self) -> tuple[int, int]:
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, compute capability {self.compute_capability})"


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """All GPUs that CUDA may use; empty where there is no driver or no GPU."""
    driver, problem = _driver()
    if driver is None or problem is not None:
        return ()
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return ()
    return tuple(_gpu(driver, index) for index in range(count.value))


def driver_problem() -> str | None:
    """Why the driver cannot be used, as the loader or the driver reports it; None if it can."""
    return _driver()[1]


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports, e.g. (13, 0); None without a driver."""
    driver, _ = _driver()
    version = ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != _SUCCESS:
        return None
    return version.value // 1000, version.value % 1000 // 10


def driver_version() -> str | None:
    """Version of the installed driver, e.g. "580.65.06"; None if NVML does not know it."""
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
    """Environment variables for a child process that must see only this GPU, as its GPU 0."""
    shown = os.environ.get(_VISIBLE)
    names = shown.split(",") if shown else []
    return {_VISIBLE: names[gpu.index].strip() if gpu.index < len(names) else str(gpu.index)}


@functools.cache
def _driver() -> tuple[Any, str | None]:
    try:
        driver = _open_driver()
    except OSError as error:
        return None, str(error)
    code, name = driver.cuInit(0), ctypes.c_char_p()
    if code in (_SUCCESS, _NO_DEVICE):
        return driver, None
    driver.cuGetErrorName(code, ctypes.byref(name))  # NULL for an unknown one
    return driver, f"cuInit: {name.value.decode() if name.value else f'error {code}'}"


def _open_driver() -> Any:
    return ctypes.CDLL(DRIVER_LIBRARY)


def _gpu(driver: Any, index: int) -> Gpu:
    device, memory, number = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    name, address = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetPCIBusId(address, len(address), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(str(number.value))
    return Gpu(index, name.value.decode(), ".".join(capability), memory.value, address.value.decode().lower())
