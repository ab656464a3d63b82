"""Messages for providers that do not run, with what to do on this platform. Pure.

`docs/providers.md` has an entry with cause and cure for each template, which a test checks.
"""

import platform
import sys
from dataclasses import dataclass

NOT_A_PROVIDER = "{request}: not a provider; choose {choices}"
NO_SUCH_GPU = "--device {device}: no such GPU; {existing}"
NOTHING_AFTER = "{name}: there is no other provider to run on"

CPU_BUILD = "this onnxruntime {version} is a build without {provider}"
NO_DRIVER = "no NVIDIA driver ({problem})"
DRIVER_FAILS = "the NVIDIA driver is installed but does not start ({problem})"
NO_GPU = "the NVIDIA driver shows no GPU{hidden}"
DRIVER_TOO_OLD = "the NVIDIA driver is too old: {found} supports CUDA {supported}, and this build needs CUDA {needed}"
GPU_TOO_OLD = "CUDA {major} does not support {gpu}: it needs compute capability {least} or newer"
LIBRARY_MISSING = "libraries not found: {files}{or_part}"
LIBRARY_BROKEN = "{file} is installed but does not load ({problem})"
WRONG_VERSION = (
    "libraries not found: {files}; {what} {found} is installed ({place}), but this onnxruntime needs {what} {needed}"
)
TENSORRT_TOO_OLD = "TensorRT {found} is too old: its ONNX parser supports the graphs' operators from {least} on"
NO_BUILDER = "TensorRT {found} is installed without its Python package, which builds engines"
SESSION_FAILS = "its libraries load, but a trial session fails ({problem})"
SESSION_ELSEWHERE = "its libraries load, but a trial session runs on {actual} instead"
PLUGIN_ABSENT = "NVIDIA's TensorRT-RTX plug-in is not installed"
PLUGIN_FAILS = "NVIDIA's TensorRT-RTX plug-in does not load ({problem})"
RTX_GPU = "TensorRT-RTX does not support {gpu}: it needs compute capability 8.6, 8.9, or 12.0 and newer"
PLUGIN_WITHOUT_DEVICE = "NVIDIA's TensorRT-RTX plug-in loads, but does not offer {gpu}"

TEMPLATES: dict[str, str] = {
    name: value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str)
}
"""All of the above, by name."""

TENSORRT_DOWNLOAD = (
    "installing TensorRT downloads gigabytes from NVIDIA's own package index; where a mirror lacks it, pip ends with "
    "metadata-generation-failed; cure: docs/setup.md, Installing TensorRT"
)
REINSTALL_ORT = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"

# The oldest driver for CUDA 13, by NVIDIA's release notes of the CUDA toolkit.
_OLDEST_DRIVER = "580"

_GPU_PLATFORMS = {("linux", "x86_64"), ("win32", "amd64")}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a provider from running, and what to do: a command where there is one."""

    text: str
    cure: str

    def __str__(self) -> str:
        return f"{self.text}; {self.cure}"


def driver_line() -> str:
    """How to install a driver that is new enough."""
    if sys.platform == "win32":
        return f"install NVIDIA driver {_OLDEST_DRIVER} or newer from https://www.nvidia.com/drivers"
    return (
        f"install NVIDIA driver {_OLDEST_DRIVER} or newer with the system's packages (Ubuntu: sudo apt install "
        f"nvidia-driver-{_OLDEST_DRIVER}); in a container, start it with --gpus all"
    )


def gpu_build_line() -> str:
    """How to install an onnxruntime with GPU providers, if one exists for this platform."""
    if (sys.platform, platform.machine().lower()) not in _GPU_PLATFORMS:
        return "use --provider cpu: onnxruntime-gpu exists for x86-64 Linux and Windows only"
    return REINSTALL_ORT
