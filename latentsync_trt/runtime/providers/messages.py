"""Why a provider does not run, in words, each with what to do about it on this platform. Pure.

Every sentence starts as a template here; `docs/providers.md` explains each of them, which a test holds.
"""

import platform
import sys
from dataclasses import dataclass

NOT_A_PROVIDER = "{request}: not a provider; choose {choices}"
NO_SUCH_GPU = "--device {device}: no such GPU; {existing}"
NOTHING_AFTER = "{name}: no other provider is left to run on"

CPU_BUILD = "this onnxruntime {version} is a build without {provider}"
NO_DRIVER = "no NVIDIA driver ({problem})"
DRIVER_FAILS = "the NVIDIA driver is installed but does not start ({problem})"
NO_GPU = "the NVIDIA driver shows no GPU{hidden}"
DRIVER_TOO_OLD = "the NVIDIA driver is too old: {found} supports CUDA {supported}, and this build needs CUDA {needed}"
GPU_TOO_OLD = "{gpu} is too old for CUDA {major}, which starts at compute capability {least}"
LIBRARY_MISSING = "libraries not found: {files}{or_part}"
LIBRARY_BROKEN = "{file} is there but does not load ({problem})"
WRONG_CUDA = (
    "libraries not found: {files}; CUDA {found} is installed ({place}), but this onnxruntime needs CUDA {needed}"
)
WRONG_TENSORRT = (
    "libraries not found: {files}; TensorRT {found} is installed ({place}), which is the wrong major version: this "
    "onnxruntime loads TensorRT {needed} only"
)
TENSORRT_TOO_OLD = "TensorRT {found} is too old: its ONNX parser knows the graphs' operators from {least} on"
NO_BUILDER = "TensorRT {found} is here without its Python package, which builds engines"
SESSION_FAILS = "its libraries load, but a trial session fails ({problem})"
SESSION_ELSEWHERE = "its libraries load, but a trial session made with it runs on {actual}"
PLUGIN_ABSENT = "NVIDIA's TensorRT-RTX plug-in is not installed"
PLUGIN_FAILS = "NVIDIA's TensorRT-RTX plug-in does not load ({problem})"
RTX_GPU = "{gpu} is none that TensorRT-RTX runs on: those have compute capability 8.6, 8.9, or 12.0 and newer"
PLUGIN_WITHOUT_DEVICE = "NVIDIA's TensorRT-RTX plug-in loads, but does not offer {gpu}"

TEMPLATES: dict[str, str] = {
    name: value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
}
"""All of the above by name."""

INSTALL_LINES: dict[str, str] = {
    "tensorrt": 'pip install "latentsync-trt[tensorrt]"',
    "rtx": 'pip install "latentsync-trt[rtx]"',
    "cuda": 'pip install "latentsync-trt[cuda]"',
}

# The oldest drivers on which programs of a CUDA major version run, by NVIDIA's release notes of the CUDA toolkit.
_OLDEST_DRIVER = {12: {"linux": "525.60.13", "win32": "528.33"}, 13: {"linux": "580.65.06", "win32": "580"}}

_GPU_PLATFORMS = {("linux", "x86_64"), ("win32", "amd64")}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a provider from running, and what to do: a command where there is one."""

    text: str
    cure: str

    def __str__(self) -> str:
        return f"{self.text}; {self.cure}"


def oldest_driver(cuda_major: int) -> str:
    """The oldest driver for a CUDA major version on this platform."""
    return _OLDEST_DRIVER.get(cuda_major, {}).get(sys.platform, f"for CUDA {cuda_major}")


def driver_line(cuda_major: int) -> str:
    """How to get a driver here that is new enough."""
    version = oldest_driver(cuda_major)
    if sys.platform == "win32":
        return f"install NVIDIA driver {version} or newer from https://www.nvidia.com/drivers"
    branch = version.partition(".")[0]
    return (
        f"install NVIDIA driver {version} or newer with the system's packages (Ubuntu: sudo apt install "
        f"nvidia-driver-{branch}); in a container, start it with --gpus all"
    )


def gpu_build_line() -> str:
    """How to get an onnxruntime with GPU providers here, if there is one."""
    if (sys.platform, platform.machine().lower()) not in _GPU_PLATFORMS:
        return "use --provider cpu: onnxruntime-gpu exists for x86-64 Linux and Windows only"
    return "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
