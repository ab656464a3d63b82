"""What keeps an execution provider from running, found from the driver upwards: GPU, libraries, a session.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what loads. So a provider counts only
when its libraries load and a session made with it really uses it.
"""

import functools
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from latentsync_trt.errors import ProviderUnavailable
from latentsync_trt.runtime.compiler.process import Answer, CompileOrder, run_compiler
from latentsync_trt.runtime.providers import gpu as driver
from latentsync_trt.runtime.providers import libraries
from latentsync_trt.runtime.providers import messages as reasons
from latentsync_trt.runtime.providers.gpu import Gpu, visible_only
from latentsync_trt.runtime.providers.messages import INSTALL_LINES, Obstacle
from latentsync_trt.runtime.sessions.session import last_line

ProviderName = Literal["tensorrt", "rtx", "cuda", "cpu"]
ORT_NAMES: dict[str, str] = {
    "tensorrt": "TensorrtExecutionProvider",
    "rtx": "NvTensorRTRTXExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "cpu": "CPUExecutionProvider",
}

# The first GPUs that CUDA 13 has code for; CUDA 12 still had it for Maxwell.
_LEAST_CAPABILITY = {12: (5, 0), 13: (7, 5)}

# The first whose parser reads `Attention`.
_LEAST_TENSORRT = (10, 14)

# What the plug-in's `IsComputeCapabilitySupported` accepts.
_RTX_CAPABILITIES = ((8, 6), (8, 9))
_RTX_ANY_FROM = (12, 0)

# A one-node ONNX model, y = Neg(x), float32 (1): enough to make a session with, and to need a kernel.
_TRIAL_MODEL = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)


def examine(name: ProviderName, device: int = 0) -> Obstacle | None:
    """Tries a provider on GPU `device`; None if it runs there, else the first obstacle from the driver upwards."""
    if name == "rtx":
        return _why_no_gpu(name, device) or _why_no_plugin(device) or _why_no_session(name, device)
    if ORT_NAMES[name] not in ort.get_available_providers():
        text = reasons.CPU_BUILD.format(version=ort.__version__, provider=ORT_NAMES[name])
        return Obstacle(text, reasons.gpu_build_line())
    if name == "cpu":
        return _why_no_session(name, device)
    return _why_no_gpu(name, device) or _why_no_libraries(name) or _why_no_session(name, device)


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


def _why_no_gpu(name: ProviderName, device: int) -> Obstacle | None:
    """What is wrong with the driver, or with the GPU for the CUDA version that the provider was built for."""
    major = (libraries.rtx_cuda_major() if name == "rtx" else libraries.cuda_major()) or 0
    problem, supported = driver.driver_problem(), driver.driver_cuda()
    if problem is not None and supported is None:
        return Obstacle(reasons.NO_DRIVER.format(problem=problem), reasons.driver_line(major))
    if supported is not None and supported < (major, 0):
        return Obstacle(
            reasons.DRIVER_TOO_OLD.format(
                found=driver.driver_version() or "it", supported=".".join(map(str, supported)), needed=major
            ),
            reasons.driver_line(major),
        )
    if problem is not None:
        cure = "look at the output of nvidia-smi; after an update of the driver, restart the machine"
        return Obstacle(reasons.DRIVER_FAILS.format(problem=problem), cure)
    return _why_not_this_gpu(device, major)


def _why_not_this_gpu(device: int, cuda_major: int) -> Obstacle | None:
    found = driver.gpus()
    if not 0 <= device < len(found):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f' ($CUDA_VISIBLE_DEVICES is "{visible}")'
        return Obstacle(reasons.NO_GPU.format(hidden=hidden), "look at the output of nvidia-smi for what there is")
    least = _LEAST_CAPABILITY.get(cuda_major, (0, 0))
    if found[device].capability < least:
        text = reasons.GPU_TOO_OLD.format(gpu=found[device], major=cuda_major, least=".".join(map(str, least)))
        return Obstacle(text, "use --provider cpu, or a newer GPU")
    return None


def _why_no_libraries(name: ProviderName) -> Obstacle | None:
    """Loads all that the provider needs, as onnxruntime will, to learn the names of what is missing."""
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
            return Obstacle(reasons.LIBRARY_BROKEN.format(file=file, problem=problem), INSTALL_LINES[name])
    return _why_no_tensorrt() if name == "tensorrt" else None


def _why_no_tensorrt() -> Obstacle | None:
    version = libraries.tensorrt_version()
    numbers = tuple(int(part) for part in version.split(".")[:2]) if version != libraries.UNKNOWN else _LEAST_TENSORRT
    if numbers < _LEAST_TENSORRT:
        text = reasons.TENSORRT_TOO_OLD.format(found=version, least=".".join(map(str, _LEAST_TENSORRT)))
        return Obstacle(text, INSTALL_LINES["tensorrt"])
    if libraries.package_folder(libraries.TENSORRT_MODULE) is None:
        return Obstacle(reasons.NO_BUILDER.format(found=version), INSTALL_LINES["tensorrt"])
    return None


def try_builder(gpu: Gpu) -> Answer:
    """Has TensorRT build an engine of one node, in a process of its own: its builder loads a library for each GPU.

    Raises:
        EngineBuildError: the process cannot be started. OutOfMemory: the host's memory is short.
    """
    with TemporaryDirectory(prefix="latentsync-trt-") as folder:
        graph = Path(folder) / "one_node.onnx"
        graph.write_bytes(_TRIAL_MODEL)
        return run_compiler(CompileOrder("tensorrt", str(graph), {}, optimization_level=0), visible_only(gpu))


def _missing(name: ProviderName, missing: dict[str, str]) -> Obstacle:
    """Tells libraries that are not there at all from those of which there is another major version."""
    files = ", ".join(missing)
    # Windows does not tell a library that is missing from one that lacks what it needs itself.
    or_part = ", or what they need" if any("dependencies" in problem for problem in missing.values()) else ""
    text = reasons.LIBRARY_MISSING.format(files=files, or_part=or_part)
    of_tensorrt = {file for file in missing if "nvinfer" in file or "nvonnxparser" in file}
    for concerned, template, needed, search in (
        (of_tensorrt, reasons.WRONG_TENSORRT, libraries.tensorrt_major(), libraries.installed_tensorrt),
        (missing.keys() - of_tensorrt, reasons.WRONG_CUDA, libraries.cuda_major(), libraries.installed_cuda),
    ):
        found = search() if concerned else ()
        if found and all(one.major != needed for one in found):
            text = template.format(files=files, found=found[0].version, place=found[0].place, needed=needed)
            break
    return Obstacle(text, INSTALL_LINES[name])


def _is_absence(file: str, problem: str) -> bool:
    """Whether the loader's words mean that `file` itself is not there, not that it is broken."""
    return problem.startswith(f"{file}: cannot open shared object file") or "Could not find module" in problem


def _why_no_plugin(device: int) -> Obstacle | None:
    found = driver.gpus()[device]
    if found.capability not in _RTX_CAPABILITIES and found.capability < _RTX_ANY_FROM:
        return Obstacle(reasons.RTX_GPU.format(gpu=found), "use --provider tensorrt or cuda")
    if libraries.package_folder(libraries.RTX_PACKAGE) is None:
        return Obstacle(reasons.PLUGIN_ABSENT, INSTALL_LINES["rtx"])
    problem = _register_plugin()
    if problem is None and not rtx_devices(device):
        text = reasons.PLUGIN_WITHOUT_DEVICE.format(gpu=found)
        problem = Obstacle(text, "a container must show /sys/bus/pci/devices; else use --provider tensorrt or cuda")
    return problem


@functools.cache
def _register_plugin() -> Obstacle | None:
    """Makes the plug-in known to onnxruntime; once, as a second time is an error."""
    try:
        path = libraries.rtx_library()
        ort.register_execution_provider_library(ORT_NAMES["rtx"], str(path))
    except Exception as error:  # noqa: BLE001 -- ORT's errors share no public base; the reason is the answer
        cure = f"pip install --force-reinstall {libraries.rtx_distribution()}"
        if "libnvidia-ml" in str(error):
            cure = "in a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility; else reinstall the driver"
        return Obstacle(reasons.PLUGIN_FAILS.format(problem=last_line(error)), cure)
    return None


def _cuda_index(device: Any) -> int | None:
    """CUDA's number of a device that the plug-in offers: its memory carries it."""
    memory = device.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    return None if memory is None else int(memory.device_id)


def _why_no_session(name: ProviderName, device: int) -> Obstacle | None:
    """Makes a session with the provider and looks whether it uses it: CUDA's goes on without, after a warning."""
    cure = "look at the output of nvidia-smi, and in docs/providers.md; --provider cpu runs meanwhile"
    try:
        session = _trial_session(name, device)
        # A provider without code for this generation of GPU is found out by a kernel, not before.
        session.run(None, {"x": np.ones(1, np.float32)})
    except Exception as error:  # noqa: BLE001 -- as above
        return Obstacle(reasons.SESSION_FAILS.format(problem=last_line(error)), cure)
    actual = session.get_providers()
    if ORT_NAMES[name] not in actual:
        return Obstacle(reasons.SESSION_ELSEWHERE.format(actual=actual[0]), cure)
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
