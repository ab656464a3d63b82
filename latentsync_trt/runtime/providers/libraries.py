"""ONNX Runtime, and the libraries that its GPU providers need: CUDA, cuDNN and TensorRT.

pip installs the latter in folders that the system's loader does not search. They are loaded by
path, as the loader finds a library by name if the process has loaded it before.
"""

import contextlib
import ctypes
import functools
import importlib.util
import io
import os
import sys
from pathlib import Path

import onnxruntime as ort

from latentsync_trt.runtime.providers.table import TENSORRT, Provider

_WINDOWS = sys.platform == "win32"

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

# With cuDNN, although ONNX Runtime loads that only at the first convolution: if it is missing, this
# is reported earlier.
_CUDA_LIBRARIES = ("cudart", "cublasLt", "cublas", "cudnn")

_SEARCH_BESIDE_LIBRARY = 0x8
"""LOAD_WITH_ALTERED_SEARCH_PATH of Windows, which is for absolute paths only."""

# Otherwise ONNX Runtime's warnings, as about GPUs that it cannot list in a container, would appear
# between the lines of a command.
ort.set_default_logger_severity(4)


def provider_library(part: str) -> Path:
    """Returns the file that ONNX Runtime loads for the provider of that name, or for all of them
    ("shared").
    """
    library = f"onnxruntime_providers_{part}"
    file_name = f"{library}.dll" if _WINDOWS else f"lib{library}.so"
    return Path(ort.__file__).parent / "capi" / file_name


def needed_libraries(provider: Provider) -> list[str]:
    """Returns the file names of the CUDA and TensorRT libraries that a provider needs."""
    names = [_cuda_file(library) for library in _CUDA_LIBRARIES]
    if provider is TENSORRT:
        names += map(_tensorrt_file, _TENSORRT_NEEDED)
    return names


def load_problem(library: str) -> str | None:
    """Loads a library by name or path for the whole process; returns None if that works, else the
    loader's message.
    """
    try:
        _load_library(library)
    except OSError as error:
        return str(error)
    return None


def _load_library(library: str) -> ctypes.CDLL:
    # On Windows, search as onnxruntime does: $PATH, which Python skips, and the folder of a library
    # given by its path.
    search = _SEARCH_BESIDE_LIBRARY if Path(library).is_absolute() else 0
    return ctypes.CDLL(library, ctypes.RTLD_GLOBAL, winmode=search)


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
        before = os.environ.get("PATH", "")
        os.environ["PATH"] = os.pathsep.join((str(folder), before))
    for library in _TENSORRT_LIBRARIES:
        load_problem(str(folder / _tensorrt_file(library)))


def package_folder(package: str) -> Path | None:
    """Returns the folder of an installed Python package or module, without importing it; None if it
    is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    if spec.origin:
        return Path(spec.origin).parent
    return None


def onnxruntime_version() -> str:
    return str(ort.__version__)


def tensorrt_version() -> str:
    """Returns the full version of the TensorRT that ONNX Runtime loads here, e.g. "10.14.1.48"."""
    preload()
    with contextlib.suppress(OSError, AttributeError):
        library = _load_library(_tensorrt_file("nvinfer"))
        parts = [
            library.getInferLibMajorVersion(),
            library.getInferLibMinorVersion(),
            library.getInferLibPatchVersion(),
            library.getInferLibBuildVersion(),
        ]
        return ".".join(map(str, parts))
    return UNKNOWN


def cuda_version() -> str:
    """Returns the version of the CUDA runtime that loads here, e.g. "13.0"."""
    preload()
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        _load_library(_cuda_file("cudart")).cudaRuntimeGetVersion(ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return UNKNOWN


def cudnn_version() -> str:
    """Returns the version of the cuDNN that loads here, e.g. "9.19.0"."""
    preload()
    with contextlib.suppress(OSError, AttributeError):
        number = int(_load_library(_cuda_file("cudnn")).cudnnGetVersion())
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
