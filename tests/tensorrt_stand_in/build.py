"""Builds the stand-in: TensorRT's two libraries, and a CUDA runtime, driver and NVML where there is
no GPU.

Needs g++ and TensorRT's public headers, in $TENSORRT_INCLUDE or ../shared/tensorrt/include. See
README.md.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import onnxruntime
from filelock import FileLock

from tests.tensorrt_stand_in.generate_defaults import write_defaults

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CACHE = REPOSITORY / "build" / "tensorrt_stand_in"
PROVIDERS = Path(onnxruntime.__file__).parent / "capi"

_PARSER = "libnvonnxparser.so.10"
_COMPILER = ("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w")
_NO_VERSIONS = ("libcuda.so.1", "libnvidia-ml.so.1", _PARSER)
# Opened by name at run time, not linked.
_OPENED = ("libcurand.so.10", "libcufft.so.12", "libcudnn.so.9", "libnvidia-ml.so.1", _PARSER)
_HANDLES = ("cublasCreate_v2", "cudnnCreate", "cublasLtCreate")


class CannotBuild(Exception):
    """What is missing, in a sentence."""


def include_folder() -> Path:
    """TensorRT's public headers; raises `CannotBuild` where there are none."""
    named = os.environ.get("TENSORRT_INCLUDE")
    if named:
        folder = Path(named)
    else:
        folder = REPOSITORY.parent / "shared" / "tensorrt" / "include"
    if not (folder / "NvInfer.h").is_file():
        raise CannotBuild(f"needs TensorRT's headers: set TENSORRT_INCLUDE (not in {folder})")
    return folder


def built() -> Path:
    """The folder of the libraries, built unless they were built before from the same sources."""
    if (
        sys.platform != "linux"
        or not (PROVIDERS / "libonnxruntime_providers_tensorrt.so").is_file()
    ):
        raise CannotBuild("needs onnxruntime-gpu for Linux")
    if shutil.which("g++") is None or shutil.which("nm") is None:
        raise CannotBuild("needs g++ and nm")
    include = include_folder()
    digest = hashlib.sha256(onnxruntime.__version__.encode())
    for path in sorted(
        [*HERE.glob("*.cpp"), *HERE.glob("*.h"), HERE / "build.py", HERE / "generate_defaults.py"]
    ):
        digest.update(path.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / f"{folder.name}.lock"):  # pytest-xdist's workers want it at the same time
        if not folder.is_dir():
            aside = folder.with_name(f".{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            build(aside, include, real_cuda=False)
            aside.rename(folder)
    return folder


def build(folder: Path, include: Path, *, real_cuda: bool) -> None:
    """Compiles into a new folder."""
    folder.mkdir(parents=True)
    write_defaults(include, folder / "defaults.h")
    # Where CUDA is real, the one that is made here is only linked with, and lies in a folder that
    # no loader searches.
    cuda = folder / "link" if real_cuda else folder
    cuda.mkdir(exist_ok=True)
    for library, symbols in _needed_symbols().items():
        _build_stub(folder if library == _PARSER else cuda, library, symbols)
    sources = [HERE / name for name in ("tensorrt.cpp", "onnx_model.cpp", "cpu_session.cpp")]
    includes = (f"-I{place}" for place in (include, folder, HERE))
    _compile(folder / "libnvinfer.so.10", *sources, cuda / "libcudart.so.13", *includes, "-ldl")


def _needed_symbols() -> dict[str, set[str]]:
    """What ONNX Runtime's GPU providers want of each library."""
    needed = _undefined(
        [PROVIDERS / f"libonnxruntime_providers_{name}.so" for name in ("tensorrt", "cuda")]
    )
    for library in _OPENED:
        needed[library] |= {"cudnnCreate"} if library == "libcudnn.so.9" else set()
    return needed


def _undefined(paths: list[Path]) -> dict[str, set[str]]:
    """Symbols of NVIDIA's libraries that others want, by library."""
    needed: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", path], capture_output=True, text=True, check=True
        )
        for symbol in (line.split()[-1] for line in listed.stdout.splitlines()):
            base, _, version = symbol.partition("@")
            if version.lstrip("@").startswith("lib"):
                needed[version.lstrip("@")].add(base)
            elif base.startswith("nvml"):
                needed["libnvidia-ml.so.1"].add(base)
            elif base.startswith("cu") and not base.startswith("cuda"):
                needed["libcuda.so.1"].add(base)
    return needed


def _build_stub(folder: Path, library: str, symbols: set[str]) -> None:
    """A library in which the functions of our own sources do something, and all others return 0."""
    own = {"libcudart.so.13": HERE / "cudart.cpp", "libcuda.so.1": HERE / "driver.cpp"}
    own["libnvidia-ml.so.1"] = own["libcuda.so.1"]
    source = own.get(library)
    # Not only at the start of a line: a definition may follow its return type.
    if source:
        defined = set(re.findall(r"\b(\w+)\(", source.read_text()))
    else:
        defined = set()
    lines = [
        "#include <stdlib.h>",
        'extern "C" {',
        f"int stand_in_{library.partition('.')[0].replace('-', '_')};",
    ]
    for symbol in sorted(symbols - defined):
        if symbol in _HANDLES:
            body = "*handle = malloc(8); return 0;"
        else:
            body = "return 0;"
        lines.append(f"long {symbol}({'void** handle' if symbol in _HANDLES else ''}) {{ {body} }}")
    if library == "libcudnn.so.9":
        lines.append("unsigned long cudnnGetVersion() { return 91900; }")
    stub = folder / f"{library}.cpp"
    stub.write_text("\n".join([*lines, "}", ""]))
    versions = folder / f"{library}.map"
    versions.write_text(f"{library} {{ global: *; }};\n")
    if library in _NO_VERSIONS:
        script = []
    else:
        script = [f"-Wl,--version-script={versions}"]
    sources = [stub, source] if source else [stub]
    _compile(folder / library, *sources, f"-I{HERE}", *script, "-ldl")


def _compile(target: Path, *arguments: Path | str) -> None:
    command = [*_COMPILER, "-o", target, *arguments, f"-Wl,-soname,{target.name}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{target.name} does not compile:\n{result.stderr}")
