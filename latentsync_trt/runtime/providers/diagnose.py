"""What keeps an execution provider from running, checked in this order: driver, GPU, libraries, a trial session.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what loads. So a provider counts as
available only if its libraries load and a session created with it really uses it.
"""

import functools
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.runtime.compiler.failures import last_line
from latentsync_trt.runtime.compiler.process import Answer, CompileOrder, run_compiler
from latentsync_trt.runtime.providers import gpu as driver
from latentsync_trt.runtime.providers import libraries, messages
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.libraries import CUDA_MAJOR, TENSORRT_MAJOR
from latentsync_trt.runtime.providers.messages import INSTALL_LINES, Obstacle

ProviderName = Literal["tensorrt", "rtx", "cuda", "cpu"]
ORT_NAMES: dict[str, str] = {
    "tensorrt": "TensorrtExecutionProvider",
    "rtx": "NvTensorRTRTXExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}

# The oldest GPUs that CUDA 13 supports.
_LEAST_CAPABILITY = (7, 5)

# The first version whose parser supports `Attention`.
_LEAST_TENSORRT = (10, 14)

# What the plug-in's `IsComputeCapabilitySupported` accepts.
_RTX_CAPABILITIES = ((8, 6), (8, 9))
_RTX_ANY_FROM = (12, 0)

# A one-node ONNX model, y = Neg(x), float32 (1): enough for a session that needs a kernel.
_TRIAL_MODEL = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)

# Else it warns on stderr of devices that a plug-in offers and no session uses.
ort.set_default_logger_severity(4)


def examine(name: ProviderName, device: int = 0) -> Obstacle | None:
    """Tries a provider on GPU `device`; None if it runs there, else the first obstacle from the driver upwards."""
    if name == "rtx":
        return gpu_obstacle(device) or _plugin_obstacle(device) or _session_obstacle(name, device)
    missing = build_obstacle(name)
    if missing or name == "cpu":
        return missing or _session_obstacle(name, device)
    return gpu_obstacle(device) or library_obstacle(name) or _session_obstacle(name, device)


def build_obstacle(name: str) -> Obstacle | None:
    """Whether the installed onnxruntime was built without a provider."""
    if ORT_NAMES[name] in ort.get_available_providers():
        return None
    text = messages.CPU_BUILD.format(version=ort.__version__, provider=ORT_NAMES[name])
    return Obstacle(text, messages.gpu_build_line())


def driver_obstacle() -> Obstacle | None:
    """What is wrong with the NVIDIA driver."""
    problem, supported = driver.driver_problem(), driver.driver_cuda()
    if problem is not None and supported is None:
        return Obstacle(messages.NO_DRIVER.format(problem=problem), messages.driver_line())
    if supported is not None and supported < (CUDA_MAJOR, 0):
        text = messages.DRIVER_TOO_OLD.format(
            found=driver.driver_version() or "it", supported=_dotted(supported), needed=CUDA_MAJOR
        )
        return Obstacle(text, messages.driver_line())
    if problem is not None:
        cure = "look at the output of nvidia-smi; after an update of the driver, restart the machine"
        return Obstacle(messages.DRIVER_FAILS.format(problem=problem), cure)
    return None


def gpu_obstacle(device: int) -> Obstacle | None:
    """What is wrong with the driver, or with GPU `device` for CUDA."""
    obstacle = driver_obstacle()
    if obstacle is not None:
        return obstacle
    found = driver.gpus()
    if not 0 <= device < len(found):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f' ($CUDA_VISIBLE_DEVICES is "{visible}")'
        return Obstacle(messages.NO_GPU.format(hidden=hidden), "look at the output of nvidia-smi for existing GPUs")
    if found[device].capability < _LEAST_CAPABILITY:
        text = messages.GPU_TOO_OLD.format(gpu=found[device], major=CUDA_MAJOR, least=_dotted(_LEAST_CAPABILITY))
        return Obstacle(text, "use --provider cpu, or a newer GPU")
    return None


def library_obstacle(name: str) -> Obstacle | None:
    """Loads all libraries of "cuda" or "tensorrt" as onnxruntime will, to learn the names of missing ones."""
    libraries.preload()
    problems = {file: libraries.load_problem(file) for file in libraries.needed_libraries(name)}
    missing = {file: problem for file, problem in problems.items() if problem and _is_absence(file, problem)}
    if missing:
        return _missing(name, missing)
    for part in ("shared", name):
        path = libraries.provider_library(part)
        problems[path.name] = libraries.load_problem(str(path))
    for file, problem in problems.items():
        if problem is not None:
            return Obstacle(messages.LIBRARY_BROKEN.format(file=file, problem=problem), INSTALL_LINES[name])
    return _tensorrt_obstacle() if name == "tensorrt" else None


def _tensorrt_obstacle() -> Obstacle | None:
    version = libraries.tensorrt_version()
    if version != libraries.UNKNOWN and tuple(map(int, version.split(".")[:2])) < _LEAST_TENSORRT:
        text = messages.TENSORRT_TOO_OLD.format(found=version, least=_dotted(_LEAST_TENSORRT))
        return Obstacle(text, INSTALL_LINES["tensorrt"])
    if libraries.package_folder(libraries.TENSORRT_MODULE) is None:
        return Obstacle(messages.NO_BUILDER.format(found=version), INSTALL_LINES["tensorrt"])
    return None


def _missing(name: str, missing: dict[str, str]) -> Obstacle:
    """Distinguishes libraries that are not installed from those installed in another major version."""
    files = ", ".join(missing)
    # Windows reports a missing library and a missing dependency of it with the same words.
    or_part = ", or what they need" if any("dependencies" in problem for problem in missing.values()) else ""
    text = messages.LIBRARY_MISSING.format(files=files, or_part=or_part)
    of_tensorrt = {file for file in missing if "nvinfer" in file or "nvonnxparser" in file}
    for what, concerned, needed, search in (
        ("TensorRT", of_tensorrt, TENSORRT_MAJOR, libraries.installed_tensorrt),
        ("CUDA", missing.keys() - of_tensorrt, CUDA_MAJOR, libraries.installed_cuda),
    ):
        found = search() if concerned else ()
        if found and all(one.major != needed for one in found):
            text = messages.WRONG_VERSION.format(
                files=files, what=what, found=found[0].version, place=found[0].place, needed=needed
            )
            break
    return Obstacle(text, INSTALL_LINES[name])


def _is_absence(file: str, problem: str) -> bool:
    """Whether the loader's message means that `file` itself is missing, not that it is broken."""
    return problem.startswith(f"{file}: cannot open shared object file") or "Could not find module" in problem


def try_builder(gpu: Gpu) -> Answer:
    """Has TensorRT build an engine of one node, in a child process: its builder loads a library for each GPU.

    Raises:
        EngineBuildError: the process cannot be started. OutOfMemory: the host has too little memory.
    """
    with TemporaryDirectory(prefix="latentsync-trt-") as folder:
        graph = Path(folder) / "one_node.onnx"
        graph.write_bytes(_TRIAL_MODEL)
        return run_compiler(CompileOrder("tensorrt", str(graph), {}, optimization_level=0), visible_only(gpu))


def rtx_devices(index: int) -> list[Any]:
    """What the TensorRT-RTX plug-in offers for GPU `index`, as `onnxruntime.OrtEpDevice`; empty if it offers nothing.

    Raises:
        ProviderUnavailable: the plug-in is not installed or does not load.
    """
    problem = _register_plugin()
    if problem is not None:
        raise ProviderUnavailable(f"rtx: {problem}")
    return [
        found for found in ort.get_ep_devices() if found.ep_name == ORT_NAMES["rtx"] and _cuda_index(found) == index
    ]


def _plugin_obstacle(device: int) -> Obstacle | None:
    found = driver.gpus()[device]
    if found.capability not in _RTX_CAPABILITIES and found.capability < _RTX_ANY_FROM:
        return Obstacle(messages.RTX_GPU.format(gpu=found), "use --provider tensorrt or cuda")
    if libraries.package_folder(libraries.RTX_PACKAGE) is None:
        return Obstacle(messages.PLUGIN_ABSENT, INSTALL_LINES["rtx"])
    problem = _register_plugin()
    if problem is None and not rtx_devices(device):
        text = messages.PLUGIN_WITHOUT_DEVICE.format(gpu=found)
        problem = Obstacle(text, "a container must show /sys/bus/pci/devices; else use --provider tensorrt or cuda")
    return problem


@functools.cache
def _register_plugin() -> Obstacle | None:
    """Registers the plug-in with onnxruntime; once per process, as a second time is an error."""
    try:
        path = libraries.rtx_library()
        ort.register_execution_provider_library(ORT_NAMES["rtx"], str(path))
    except Exception as error:  # noqa: BLE001 -- ORT's errors share no public base; the reason is the answer
        cure = f"pip install --force-reinstall {libraries.RTX_DISTRIBUTION}"
        if "libnvidia-ml" in str(error):
            cure = "in a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility; else reinstall the driver"
        return Obstacle(messages.PLUGIN_FAILS.format(problem=last_line(error)), cure)
    return None


def _cuda_index(device: Any) -> int | None:
    """CUDA's index of a device that the plug-in offers, as its memory information states it."""
    memory = device.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    return None if memory is None else int(memory.device_id)


def _session_obstacle(name: ProviderName, device: int) -> Obstacle | None:
    """Creates a session and checks that it uses the provider: onnxruntime continues without CUDA after a warning."""
    cure = "see the output of nvidia-smi and docs/providers.md; meanwhile use --provider cpu"
    try:
        session = _trial_session(name, device)
        # Only running a kernel shows whether the provider has code for this generation of GPU.
        session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as error:  # noqa: BLE001 -- as above
        return Obstacle(messages.SESSION_FAILS.format(problem=last_line(error)), cure)
    actual = session.get_providers()
    if ORT_NAMES[name] not in actual:
        return Obstacle(messages.SESSION_ELSEWHERE.format(actual=actual[0]), cure)
    return None


def _trial_session(name: ProviderName, device: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if name == "rtx":
        options.add_provider_for_devices(rtx_devices(device), {})
        return ort.InferenceSession(_TRIAL_MODEL, options, enable_fallback=0)
    own = {} if name == "cpu" else {"device_id": str(device)}
    if name == "tensorrt":
        # Else it would load its builder and build an engine, which takes seconds at every start.
        own["trt_op_types_to_exclude"] = "Neg"
    return ort.InferenceSession(_TRIAL_MODEL, options, providers=[(ORT_NAMES[name], own)], enable_fallback=0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
