"""The shared libraries that GPU providers need: names, locations, versions, and loading those that pip installed.

pip installs CUDA, cuDNN and TensorRT in folders that the system's loader does not search. They are loaded here by path,
as the loader finds a library by name if the process has loaded it before.
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

# The major versions that onnxruntime-gpu 1.31 is built for; a test compares them with the installed wheel.
CUDA_MAJOR, CUDNN_MAJOR, TENSORRT_MAJOR = 13, 9, 10

UNKNOWN = "unknown"

TENSORRT_MODULE = "tensorrt"
_TENSORRT_PACKAGE = "tensorrt_libs"

# In loading order: the plug-ins and the parser are linked with nvinfer.
_TENSORRT_LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
_TENSORRT_NEEDED = ("nvinfer", "nvonnxparser")

# Includes cuDNN, which ONNX Runtime loads only at the first convolution, so that it is reported missing earlier.
_CUDA_LIBRARIES = ("cudart", "cublasLt", "cublas", "cudnn")

_WINDOWS = sys.platform == "win32"

# LOAD_WITH_ALTERED_SEARCH_PATH of Windows; for absolute paths only.
_BESIDE_IT = 0x8


def onnxruntime_version() -> str:
    return str(ort.__version__)


def provider_library(part: str) -> Path:
    """The file that onnxruntime loads for a provider, by its name, or for all of them ("shared")."""
    library = f"onnxruntime_providers_{part}"
    return Path(ort.__file__).parent / "capi" / (f"{library}.dll" if _WINDOWS else f"lib{library}.so")


def needed_libraries(provider: Provider) -> tuple[str, ...]:
    of_tensorrt = _TENSORRT_NEEDED if provider is TENSORRT else ()
    return (*map(_cuda_file, _CUDA_LIBRARIES), *map(_tensorrt_file, of_tensorrt))


def load_problem(library: str) -> str | None:
    """Loads a library by name or path for the whole process; None if that works, else the loader's message."""
    try:
        _load(library)
    except OSError as error:
        return str(error)
    return None


def _load(library: str) -> ctypes.CDLL:
    # On Windows, search as onnxruntime does: $PATH, which Python skips, and the folder of a library given by its path.
    return ctypes.CDLL(library, ctypes.RTLD_GLOBAL, winmode=_BESIDE_IT if Path(library).is_absolute() else 0)


@functools.cache
def preload() -> None:
    """Loads CUDA, cuDNN and TensorRT where pip installed them; the system's loader finds the others."""
    # onnxruntime prints a line for every file it does not find.
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()
    folder = package_folder(_TENSORRT_PACKAGE)
    if folder is None:
        return
    if _WINDOWS:  # the builder opens more libraries by name at the first build
        os.environ["PATH"] = os.pathsep.join((str(folder), os.environ.get("PATH", "")))
    for library in _TENSORRT_LIBRARIES:
        path = folder / _tensorrt_file(library)
        if path.is_file():
            load_problem(str(path))


def package_folder(package: str) -> Path | None:
    """Folder of an installed Python package or module, without importing it; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if places:
        return Path(places[0])
    return Path(spec.origin).parent if spec and spec.origin else None


def tensorrt_version() -> str:
    """Full version of the TensorRT that onnxruntime loads here, e.g. "10.14.1.48"; "unknown" where it does not load."""
    preload()
    with contextlib.suppress(OSError, AttributeError):
        library = _load(_tensorrt_file("nvinfer"))
        parts = (getattr(library, f"getInferLib{part}Version") for part in ("Major", "Minor", "Patch", "Build"))
        return ".".join(str(part()) for part in parts)
    return UNKNOWN


def cuda_version() -> str:
    """Version of the CUDA runtime that loads here, e.g. "13.0"; "unknown" where none does."""
    preload()
    number = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        _load(_cuda_file("cudart")).cudaRuntimeGetVersion(ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return UNKNOWN


def cudnn_version() -> str:
    """Version of the cuDNN that loads here, e.g. "9.19.0"; "unknown" where none does."""
    preload()
    with contextlib.suppress(OSError, AttributeError):
        number = int(_load(_cuda_file("cudnn")).cudnnGetVersion())
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    return UNKNOWN


def _cuda_file(library: str) -> str:
    major = CUDNN_MAJOR if library == "cudnn" else CUDA_MAJOR
    return f"{library}64_{major}.dll" if _WINDOWS else f"lib{library}.so.{major}"


def _tensorrt_file(library: str) -> str:
    return f"{library}_{TENSORRT_MAJOR}.dll" if _WINDOWS else f"lib{library}.so.{TENSORRT_MAJOR}"
