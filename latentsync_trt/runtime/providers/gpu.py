"""The GPUs of this machine, as CUDA numbers them, and what their driver can do.

Read from the driver itself, so no CUDA library is needed. NVML is used where the CUDA driver would create a context; it
numbers GPUs differently, so they are matched by their PCI address.
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

# `CUdevice_attribute` of cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76

_NAME_LENGTH = 256
_PCI_ADDRESS_LENGTH = 32

# `CUresult` of cuda.h.
_SUCCESS = 0
_NO_DEVICE = 100


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    `index`: CUDA's, which $CUDA_VISIBLE_DEVICES changes. `compute_capability`: e.g. "8.9". `pci_address`: e.g.
    "0000:01:00.0".
    """

    index: int
    name: str
    compute_capability: str
    memory_bytes: int
    pci_address: str = ""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability as numbers, for comparisons."""
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
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    return version.decode() if isinstance(version, bytes) else str(version)


def free_memory_bytes(index: int) -> int | None:
    """Memory of GPU `index` that is free at this moment; None where that is not known."""
    found = next((gpu for gpu in gpus() if gpu.index == index), None)
    if found is None:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(found.pci_address.encode())
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
    """The driver's library or None, and what is wrong with it."""
    try:
        driver = _open_driver()
    except OSError as error:
        return None, str(error)
    code = driver.cuInit(0)
    return driver, None if code in (_SUCCESS, _NO_DEVICE) else f"cuInit: {_error_name(driver, code)}"


def _open_driver() -> Any:
    return ctypes.CDLL(DRIVER_LIBRARY)


def _error_name(driver: Any, code: int) -> str:
    name = ctypes.c_char_p()
    if driver.cuGetErrorName(code, ctypes.byref(name)) != _SUCCESS or name.value is None:
        return f"error {code}"
    return name.value.decode()


def _gpu(driver: Any, index: int) -> Gpu:
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(_NAME_LENGTH)
    driver.cuDeviceGetName(name, _NAME_LENGTH, device)
    address = ctypes.create_string_buffer(_PCI_ADDRESS_LENGTH)
    driver.cuDeviceGetPCIBusId(address, _PCI_ADDRESS_LENGTH, device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = (_attribute(driver, device, number) for number in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
    return Gpu(index, name.value.decode(), f"{major}.{minor}", memory.value, address.value.decode().lower())


def _attribute(driver: Any, device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value
