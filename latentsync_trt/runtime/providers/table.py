"""The execution providers, the fastest first: all that the package knows of each, and why one does
not run. Pure.

`docs/providers.md` has an entry with cause and cure for each template of a message, which a test
checks.
"""

import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # which costs each `--help` a tenth of a second
    from latentsync_trt.bundle.manifest import GraphVariant


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider of ONNX Runtime."""

    name: str
    ort_name: str
    """ONNX Runtime's name of it."""
    install: str = ""
    """The command that installs what it needs."""
    builds: bool = False
    """Whether it needs engines, which take minutes to build; others open a bundle's graphs."""
    buffers: Literal["cpu", "cuda"] = "cuda"
    """Where it has inputs and outputs, as `OrtValue` names it."""
    graph_variant: "GraphVariant" = "portable"
    """The variant of the graphs that it runs fastest."""


TENSORRT = Provider(
    "tensorrt", "TensorrtExecutionProvider", 'pip install "latentsync-trt[tensorrt]"', builds=True
)
CUDA = Provider(
    "cuda", "CUDAExecutionProvider", 'pip install "latentsync-trt[cuda]"', graph_variant="cuda"
)
CPU = Provider("cpu", "CPUExecutionProvider", buffers="cpu")

PROVIDERS = {provider.name: provider for provider in (TENSORRT, CUDA, CPU)}
"""By name, the fastest first."""

PROVIDER_CHOICES = ("auto", *PROVIDERS)
"""Values of `--provider`."""

NOT_A_PROVIDER = "{request}: not a provider; choose {choices}"
NO_SUCH_GPU = "--device {device}: no such GPU; {existing}"
NOTHING_AFTER = "{name}: there is no other provider to run on"

CPU_BUILD = "this onnxruntime {version} is a build without {provider}"
NO_DRIVER = "no NVIDIA driver ({problem})"
DRIVER_FAILS = "the NVIDIA driver is installed but does not start ({problem})"
NO_GPU = "the NVIDIA driver shows no GPU{hidden}"
DRIVER_TOO_OLD = (
    "the NVIDIA driver is too old: {version} supports "
    "CUDA {supported}, and this build needs CUDA {needed}"
)
GPU_TOO_OLD = "CUDA {major} does not support {gpu}: it needs compute capability {least} or newer"
LIBRARY_FAILS = "libraries do not load ({problem})"
TENSORRT_TOO_OLD = (
    "TensorRT {version} is too old: its ONNX parser supports the graphs' operators from {least} on"
)
NO_BUILDER = "TensorRT {version} is installed without its Python package, which builds engines"
NOT_TESTED = "it runs here, but was not tested with this bundle, version and driver on this GPU"
FAILED_TEST = "its newest self-test with this bundle, version and driver on this GPU failed"
SLOWER = (
    "denoising steps took longer with it than with the "
    "reference provider in its newest self-test on this GPU"
)
SESSION_FAILS = "its libraries load, but a trial session fails ({problem})"

TENSORRT_DOWNLOAD = (
    "installing TensorRT downloads gigabytes from NVIDIA's "
    "own package index; where a mirror lacks it, pip ends with "
    "metadata-generation-failed; cure: docs/setup.md, Installing TensorRT"
)
REINSTALL_ORT = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"

if (sys.platform, platform.machine().lower()) in {("linux", "x86_64"), ("win32", "amd64")}:
    GET_ORT = REINSTALL_ORT
else:
    GET_ORT = "use --provider cpu: onnxruntime-gpu exists for x86-64 Linux and Windows only"
"""How to install an onnxruntime with GPU providers, if one exists for this platform."""

# The oldest driver for CUDA 13, by NVIDIA's release notes of the CUDA toolkit.
GET_DRIVER = "install NVIDIA driver 580 or newer " + (
    "from https://www.nvidia.com/drivers"
    if sys.platform == "win32"
    else "with the system's packages (Ubuntu: sudo apt "
    "install nvidia-driver-580); in a container, start it "
    "with --gpus all"
)

CHECK_DRIVER = (
    "look at the output of nvidia-smi; after an update of the driver, restart the machine"
)
CHECK_GPUS = "look at the output of nvidia-smi for existing GPUs"
CHECK_SESSION = "see the output of nvidia-smi and docs/providers.md; meanwhile use --provider cpu"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a provider from running, and what to do: a command where there is one."""

    text: str
    cure: str

    def __str__(self) -> str:
        return f"{self.text}; {self.cure}"
