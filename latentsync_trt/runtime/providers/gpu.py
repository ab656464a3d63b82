"""The GPUs of this machine, as CUDA numbers them, their driver, and the libraries that GPU
providers need.

GPUs: only the driver is asked, no CUDA library, and NVML where the CUDA driver would create a
context; it numbers GPUs differently, so they are matched by PCI address.

Libraries: pip installs CUDA, cuDNN and TensorRT in folders that the system's loader does not
search. They are loaded by path, as the loader finds a library by name if the process has loaded it
before.
"""

import contextlib
import ctypes
import functools
import importlib.util
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort
import pynvml

from latentsync_trt.runtime.providers.table import TENSORRT, Provider

_WINDOWS = sys.platform == "win32"

_VISIBLE = "CUDA_VISIBLE_DEVICES"

# `CUdevice_attribute` and `CUresult` of cuda.h.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76
_SUCCESS = 0
_NO_DEVICE = 100

# The major versions that onnxruntime-gpu 1.31 is built for; a test compares them with the installed
# wheel.
CUDA_MAJOR = 13
CUDNN_MAJOR = 9
TENSORRT_MAJOR = 10

UNKNOWN = "unknown"
"""The version of a library that does not load."""

TENSORRT_MODULE = "tensorrt"

# In loading order: the plug-ins and the parser are linked with nvinfer.
_TENSORRT_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
_TENSORRT_NEEDED = ("nvinfer", "nvonnxparser")

# Includes cuDNN, which ONNX Runtime loads only at the first convolution, so that it is reported
# missing earlier.
_CUDA_LIBRARIES = ("cudart", "cublasLt", "cublas", "cudnn")

# LOAD_WITH_ALTERED_SEARCH_PATH of Windows; for absolute paths only.
_BESIDE_IT = 0x8


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; `index` depends on $CUDA_VISIBLE_DEVICES. E.g. capability "8.9", PCI address
    "0000:01:00.0".
    """

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
    count = ctypes.c_int()
    if (
        driver is None
        or problem is not None
        or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS
    ):
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
        driver = ctypes.CDLL("nvcuda.dll" if _WINDOWS else "libcuda.so.1")
    except OSError as error:
        return None, str(error)
    code = driver.cuInit(0)
    name = ctypes.c_char_p()
    if code in (_SUCCESS, _NO_DEVICE):
        return driver, None
    driver.cuGetErrorName(code, ctypes.byref(name))  # NULL for an unknown one
    return driver, f"cuInit: {name.value.decode() if name.value else f'error {code}'}"


def _gpu(driver: Any, index: int) -> Gpu:
    device = ctypes.c_int()
    memory = ctypes.c_size_t()
    number = ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    address = ctypes.create_string_buffer(32)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetPCIBusId(address, len(address), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(str(number.value))
    return Gpu(
        index,
        name.value.decode(),
        ".".join(capability),
        memory.value,
        address.value.decode().lower(),
    )


def provider_library(part: str) -> Path:
    """The file that onnxruntime loads for a provider, by its name, or for all of them
    ("shared").
    """
    library = f"onnxruntime_providers_{part}"
    return (
        Path(ort.__file__).parent / "capi" / (f"{library}.dll" if _WINDOWS else f"lib{library}.so")
    )


def needed_libraries(provider: Provider) -> tuple[str, ...]:
    of_tensorrt = _TENSORRT_NEEDED if provider is TENSORRT else ()
    return (*map(_cuda_file, _CUDA_LIBRARIES), *map(_tensorrt_file, of_tensorrt))


def load_problem(library: str) -> str | None:
    """Loads a library by name or path for the whole process; None if that works, else the loader's
    message.
    """
    try:
        _load(library)
    except OSError as error:
        return str(error)
    return None


def _load(library: str) -> ctypes.CDLL:
    # On Windows, search as onnxruntime does: $PATH, which Python skips, and the folder of a library
    # given by its path.
    return ctypes.CDLL(
        library, ctypes.RTLD_GLOBAL, winmode=_BESIDE_IT if Path(library).is_absolute() else 0
    )


@functools.cache
def preload() -> None:
    """Loads CUDA, cuDNN and TensorRT where pip installed them; the system's loader finds the
    others.
    """
    # onnxruntime prints a line for every file it does not find.
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()
    folder = package_folder("tensorrt_libs")
    if folder is None:
        return
    if _WINDOWS:  # the builder opens more libraries by name at the first build
        os.environ["PATH"] = os.pathsep.join((str(folder), os.environ.get("PATH", "")))
    for library in _TENSORRT_LIBRARIES:
        load_problem(str(folder / _tensorrt_file(library)))


def package_folder(package: str) -> Path | None:
    """Folder of an installed Python package or module, without importing it; None if it is not
    installed.
    """
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if places:
        return Path(places[0])
    if spec and spec.origin:
        return Path(spec.origin).parent
    return None


def onnxruntime_version() -> str:
    return str(ort.__version__)


def tensorrt_version() -> str:
    """Full version of the TensorRT that onnxruntime loads here, e.g. "10.14.1.48"."""
    preload()
    with contextlib.suppress(OSError, AttributeError):
        library = _load(_tensorrt_file("nvinfer"))
        parts = (
            getattr(library, f"getInferLib{part}Version")
            for part in ("Major", "Minor", "Patch", "Build")
        )
        return ".".join(str(part()) for part in parts)
    return UNKNOWN


def cuda_version() -> str:
    """Version of the CUDA runtime that loads here, e.g. "13.0"."""
    preload()
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        _load(_cuda_file("cudart")).cudaRuntimeGetVersion(ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return UNKNOWN


def cudnn_version() -> str:
    """Version of the cuDNN that loads here, e.g. "9.19.0"."""
    preload()
    with contextlib.suppress(OSError, AttributeError):
        number = int(_load(_cuda_file("cudnn")).cudnnGetVersion())
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    return UNKNOWN


def _cuda_file(library: str) -> str:
    major = CUDNN_MAJOR if library == "cudnn" else CUDA_MAJOR
    if _WINDOWS:
        return f"{library}64_{major}.dll"
    return f"lib{library}.so.{major}"


def _tensorrt_file(library: str) -> str:
    if _WINDOWS:
        return f"{library}_{TENSORRT_MAJOR}.dll"
    return f"lib{library}.so.{TENSORRT_MAJOR}"
