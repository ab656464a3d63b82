"""Why a provider does not run on this machine, and what to install.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what loads. Here, a
provider runs if its libraries load and a session created with it really uses it.
"""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime as ort

from latentsync_trt.runtime.compiler import last_line
from latentsync_trt.runtime.providers import devices, libraries, table
from latentsync_trt.runtime.providers.libraries import CUDA_MAJOR
from latentsync_trt.runtime.providers.table import CPU, TENSORRT, Obstacle, Provider

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""Linux's list of devices, also of those without a driver."""

_NVIDIA = "0x10de"
_DISPLAY_CONTROLLER = "0x03"
"""How the class of a PCI device that is a graphics card begins."""

# The oldest GPUs that CUDA 13 supports.
_LEAST_CAPABILITY = (7, 5)

# The first version whose parser supports `Attention`.
_LEAST_TENSORRT = (10, 14)

# A one-node ONNX model, y = Neg(x), float32 (1): enough for a session that needs a kernel.
_TRIAL_MODEL = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)


def diagnose_provider(provider: Provider, device: int = 0) -> Obstacle | None:
    """Tries a provider on GPU `device`: driver, GPU, libraries, a trial session. Returns the first
    obstacle; None if the provider runs.
    """
    if provider.ort_name not in ort.get_available_providers():
        text = table.CPU_BUILD.format(version=ort.__version__, provider=provider.ort_name)
        return Obstacle(text, table.GET_ORT)
    obstacle = None
    if provider is not CPU:
        obstacle = _driver_obstacle() or _gpu_obstacle(device) or _library_obstacle(provider)
    return obstacle or _session_obstacle(provider, device)


def shows_no_gpu() -> bool:
    """Returns whether there is neither an NVIDIA driver nor an NVIDIA graphics card that may lack
    it.
    """
    if devices.driver_cuda() is not None:
        return False
    for device in PCI_DEVICES.glob("*"):
        with suppress(OSError):
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text()
            if vendor == _NVIDIA and kind.startswith(_DISPLAY_CONTROLLER):
                return False
    return True


def dotted(version: tuple[int, ...]) -> str:
    """Returns (8, 9) as "8.9"."""
    return ".".join(map(str, version))


def _driver_obstacle() -> Obstacle | None:
    problem = devices.driver_problem()
    supported = devices.driver_cuda()
    if supported is None:
        if problem:
            return Obstacle(table.NO_DRIVER.format(problem=problem), table.GET_DRIVER)
        return None
    if supported < (CUDA_MAJOR, 0):
        text = table.DRIVER_TOO_OLD.format(
            version=devices.driver_version() or "it", supported=dotted(supported), needed=CUDA_MAJOR
        )
        return Obstacle(text, table.GET_DRIVER)
    if problem is not None:
        return Obstacle(table.DRIVER_FAILS.format(problem=problem), table.CHECK_DRIVER)
    return None


def _gpu_obstacle(device: int) -> Obstacle | None:
    gpus = devices.gpus()
    if not 0 <= device < len(gpus):
        hidden = ""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            hidden = f' ($CUDA_VISIBLE_DEVICES is "{visible}")'
        return Obstacle(table.NO_GPU.format(hidden=hidden), table.CHECK_GPUS)
    gpu = gpus[device]
    if gpu.capability < _LEAST_CAPABILITY:
        least = dotted(_LEAST_CAPABILITY)
        text = table.GPU_TOO_OLD.format(gpu=gpu, major=CUDA_MAJOR, least=least)
        return Obstacle(text, f"use --provider {CPU.name}, or a newer GPU")
    return None


def _library_obstacle(provider: Provider) -> Obstacle | None:
    """Loads all libraries of a provider as ONNX Runtime will, to name those that fail."""
    libraries.preload()
    parts = [str(libraries.provider_library(part)) for part in ("shared", provider.name)]
    # Where one that the provider needs is missing, its own would only repeat that.
    for files in (libraries.needed_libraries(provider), parts):
        problems = list(filter(None, map(libraries.load_problem, files)))
        if problems:
            text = table.LIBRARY_FAILS.format(problem="; ".join(problems))
            return Obstacle(text, provider.install)
    if provider is TENSORRT:
        return _tensorrt_obstacle()
    return None


def _tensorrt_obstacle() -> Obstacle | None:
    version = libraries.tensorrt_version()
    if version != libraries.UNKNOWN:
        major, minor = map(int, version.split(".")[:2])
        if (major, minor) < _LEAST_TENSORRT:
            least = dotted(_LEAST_TENSORRT)
            text = table.TENSORRT_TOO_OLD.format(version=version, least=least)
            return Obstacle(text, TENSORRT.install)
    if libraries.package_folder(libraries.TENSORRT_MODULE) is None:
        return Obstacle(table.NO_BUILDER.format(version=version), TENSORRT.install)
    return None


def _session_obstacle(provider: Provider, device: int) -> Obstacle | None:
    """Runs a trial session and checks that it uses the provider: without CUDA, ONNX Runtime only
    warns.
    """
    session_options = ort.SessionOptions()
    session_options.log_severity_level = 4
    provider_options = {}
    if provider is not CPU:
        provider_options["device_id"] = str(device)
    if provider is TENSORRT:
        # Else it would load its builder and build an engine, which takes seconds at every start.
        provider_options["trt_op_types_to_exclude"] = "Neg"
    providers = [(provider.ort_name, provider_options)]
    problem = ""
    try:
        session = ort.InferenceSession(
            _TRIAL_MODEL, session_options, providers=providers, enable_fallback=0
        )
        # Only running a kernel shows whether the provider has code for this generation of GPU.
        session.run(None, {"x": np.ones(1, np.float32)})
        actual = session.get_providers()
        if provider.ort_name not in actual:
            problem = f"it runs on {actual[0]} instead"
    except Exception as error:  # noqa: BLE001 -- ORT's errors share no public base; the reason is the answer
        problem = last_line(error)
    if problem:
        return Obstacle(table.SESSION_FAILS.format(problem=problem), table.CHECK_SESSION)
    return None
