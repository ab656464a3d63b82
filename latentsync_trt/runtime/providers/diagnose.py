"""Why an execution provider does not run, checked in this order: driver, GPU, libraries, a trial session.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what loads. Here, a
provider is available if its libraries load and a session created with it really uses it.
"""

import os
from typing import Any

import numpy as np
import onnxruntime as ort

from latentsync_trt.runtime.compiler import last_line
from latentsync_trt.runtime.providers import gpu as driver
from latentsync_trt.runtime.providers import libraries, table
from latentsync_trt.runtime.providers.libraries import CUDA_MAJOR
from latentsync_trt.runtime.providers.table import CPU, TENSORRT, Obstacle, Provider

# The oldest GPUs that CUDA 13 supports.
_LEAST_CAPABILITY = (7, 5)

# The first version whose parser supports `Attention`.
_LEAST_TENSORRT = (10, 14)

# A one-node ONNX model, y = Neg(x), float32 (1): enough for a session that needs a kernel.
_TRIAL_MODEL = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)

# Else its warnings, as about GPUs that it cannot list in a container, would appear between the lines of the command.
ort.set_default_logger_severity(4)


def diagnose_provider(provider: Provider, device: int = 0) -> Obstacle | None:
    """Tries a provider on GPU `device`; None if it runs, else the first obstacle in the order above."""
    if provider.ort_name not in ort.get_available_providers():
        cure = table.gpu_build_line()
        return _obstacle(table.CPU_BUILD, cure, version=ort.__version__, provider=provider.ort_name)
    obstacle = None
    if provider is not CPU:
        obstacle = _driver_obstacle() or _gpu_obstacle(device) or _library_obstacle(provider)
    return obstacle or _session_obstacle(provider, device)


def _driver_obstacle() -> Obstacle | None:
    problem, supported = driver.driver_problem(), driver.driver_cuda()
    if supported is None:
        return _obstacle(table.NO_DRIVER, table.driver_line(), problem=problem) if problem else None
    if supported < (CUDA_MAJOR, 0):
        found = driver.driver_version() or "it"
        versions = {"found": found, "supported": _dotted(supported), "needed": CUDA_MAJOR}
        return _obstacle(table.DRIVER_TOO_OLD, table.driver_line(), **versions)
    if problem is not None:
        cure = "look at the output of nvidia-smi; after an update of the driver, restart the machine"
        return _obstacle(table.DRIVER_FAILS, cure, problem=problem)
    return None


def _gpu_obstacle(device: int) -> Obstacle | None:
    found = driver.gpus()
    if not 0 <= device < len(found):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f' ($CUDA_VISIBLE_DEVICES is "{visible}")'
        return _obstacle(table.NO_GPU, "look at the output of nvidia-smi for existing GPUs", hidden=hidden)
    if found[device].capability < _LEAST_CAPABILITY:
        what = {"gpu": found[device], "major": CUDA_MAJOR, "least": _dotted(_LEAST_CAPABILITY)}
        return _obstacle(table.GPU_TOO_OLD, f"use --provider {CPU.name}, or a newer GPU", **what)
    return None


def _library_obstacle(provider: Provider) -> Obstacle | None:
    """Loads all libraries of a provider as onnxruntime will, to name those that fail."""
    libraries.preload()
    own = [str(libraries.provider_library(part)) for part in ("shared", provider.name)]
    for files in (libraries.needed_libraries(provider), own):
        if problems := [problem for file in files if (problem := libraries.load_problem(file))]:
            return _obstacle(table.LIBRARY_FAILS, provider.install, problem="; ".join(problems))
    if provider is not TENSORRT:
        return None
    found, least = libraries.tensorrt_version(), _dotted(_LEAST_TENSORRT)
    if found != libraries.UNKNOWN and tuple(map(int, found.split(".")[:2])) < _LEAST_TENSORRT:
        return _obstacle(table.TENSORRT_TOO_OLD, provider.install, found=found, least=least)
    if libraries.package_folder(libraries.TENSORRT_MODULE) is None:
        return _obstacle(table.NO_BUILDER, provider.install, found=found)
    return None


def _session_obstacle(provider: Provider, device: int) -> Obstacle | None:
    """Runs a trial session and checks that it uses the provider: without CUDA, onnxruntime only warns."""
    cure = "see the output of nvidia-smi and docs/providers.md; meanwhile use --provider cpu"
    try:
        session = _trial_session(provider, device)
        # Only running a kernel shows whether the provider has code for this generation of GPU.
        session.run(None, {"x": np.ones(1, np.float32)})
        actual = session.get_providers()
        problem = "" if provider.ort_name in actual else f"it runs on {actual[0]} instead"
    except Exception as error:  # noqa: BLE001 -- ORT's errors share no public base; the reason is the answer
        problem = last_line(error)
    return _obstacle(table.SESSION_FAILS, cure, problem=problem) if problem else None


def _trial_session(provider: Provider, device: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    own = {} if provider is CPU else {"device_id": str(device)}
    if provider is TENSORRT:
        # Else it would load its builder and build an engine, which takes seconds at every start.
        own["trt_op_types_to_exclude"] = "Neg"
    return ort.InferenceSession(_TRIAL_MODEL, options, providers=[(provider.ort_name, own)], enable_fallback=0)


def _obstacle(template: str, cure: str, **fields: object) -> Obstacle:
    return Obstacle(template.format(**fields), cure)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
