"""Which execution provider runs the graphs, and why a better one does not.

`onnxruntime.get_available_providers()` lists what the wheel was built with, not what loads. Here, a
provider is available if its libraries load and a session created with it really uses it.

    <cache>/.facts/tested.json      the newest self-test by digest of its key, the newest last

A file that cannot be read or written means that nothing is remembered, so the caller tests again.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Manifest
from latentsync_trt.errors import InputError, ProviderUnavailable
from latentsync_trt.files import whole_file
from latentsync_trt.option_fields import ALL_DEVICES
from latentsync_trt.paths import CACHE_VARIABLE, below_home, user_folder
from latentsync_trt.runtime.compiler import last_line
from latentsync_trt.runtime.providers import gpu as machine
from latentsync_trt.runtime.providers import table
from latentsync_trt.runtime.providers.gpu import CUDA_MAJOR, Gpu
from latentsync_trt.runtime.providers.table import CPU, PROVIDERS, TENSORRT, Obstacle, Provider
from latentsync_trt.version import __version__

PCI_DEVICES = Path("/sys/bus/pci/devices")

TestResult = Literal["passed", "failed", "slower"]
"""Of a self-test: "slower" passed, but its steps took longer than with the reference."""

FP8_FROM = (8, 9)
"""Compute capability of the first GPUs with FP8: RTX 40xx, L4, H100."""

# The oldest GPUs that CUDA 13 supports.
_LEAST_CAPABILITY = (7, 5)

# The first version whose parser supports `Attention`.
_LEAST_TENSORRT = (10, 14)

# A one-node ONNX model, y = Neg(x), float32 (1): enough for a session that needs a kernel.
_TRIAL_MODEL = (
    b'\x08\x08:2\n\x0b\n\x01x\x12\x01y"\x03Neg\x12\x01pZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)

# Else its warnings, as about GPUs that it cannot list in a container, would appear between the
# lines of the command.
ort.set_default_logger_severity(4)

FOLDER = ".facts"
_MOST_KEYS = 200


@dataclass(frozen=True, slots=True)
class Selection:
    """`skipped_providers`: faster ones, and why; `gpu`: None on the CPU; `is_named`: no other may
    take its place.
    """

    name: str
    skipped_providers: tuple[tuple[str, str], ...] = ()
    gpu: Gpu | None = None
    is_named: bool = False

    def notices(self) -> list[str]:
        """One line for each reason, with the providers that were skipped for it; none on a machine
        without a GPU.
        """
        if self.gpu is None and shows_no_gpu():
            return []
        names: dict[str, list[str]] = {}
        for name, reason in self.skipped_providers:
            names.setdefault(reason, []).append(name)
        return [f"skipped {', '.join(group)}: {reason}" for reason, group in names.items()]

    @property
    def provider(self) -> Provider:
        return PROVIDERS[self.name]

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return self.provider.buffers

    @property
    def device_id(self) -> int:
        """Index of the GPU; 0 on the CPU."""
        if self.gpu:
            return self.gpu.index
        return 0


def select_provider(
    request: str = "auto", device: int = 0, bundle_sha256: str | None = None
) -> Selection:
    """Chooses a provider on GPU `device`; naming a provider disables fallback.

    "auto" takes the fastest that loads and that the newest `setup` or `selftest` did not find wrong
    or slower; one that builds engines only where that passed it. Without `bundle_sha256`, of a
    manifest, it looks at what loads alone.

    Raises `ProviderUnavailable` if the named provider is unknown or does not load, `InputError`
    without such a GPU.
    """
    if request == "auto":
        return _best(tuple(PROVIDERS.values()), device, bundle_sha256)
    if request not in PROVIDERS:
        choices = ", ".join(table.PROVIDER_CHOICES)
        raise ProviderUnavailable(
            table.NOT_A_PROVIDER.format(request=request, choices=choices), usage=True
        )
    return replace(_best((PROVIDERS[request],), device, None), is_named=True)


def device_numbers(device: int | str | tuple[int, ...]) -> tuple[int, ...]:
    """The GPUs that `RuntimeOptions.device` names; (0,) for "all" on a machine without one."""
    if device == ALL_DEVICES:
        return tuple(gpu.index for gpu in machine.gpus()) or (0,)
    if isinstance(device, tuple):
        return device
    return (int(device),)


def tested(selection: Selection, bundle_sha256: str) -> str | None:
    """The newest `TestResult` of a bundle, by the SHA-256 of its manifest, on such a GPU with this
    version and these libraries; None without one, and on the CPU.
    """
    if selection.gpu is None:
        return None
    result = _results().get(_test_key(selection, selection.gpu, bundle_sha256))
    if isinstance(result, str):
        return result
    return None


def remember_test(selection: Selection, bundle_sha256: str, result: TestResult) -> None:
    """Keeps what `tested` returns from now on, and drops the oldest; nothing on the CPU. Of two
    processes at once, one may be lost.
    """
    if selection.gpu is None:
        return
    key = _test_key(selection, selection.gpu, bundle_sha256)
    kept = _results()
    kept.pop(key, None)
    kept[key] = result  # the last
    with suppress(OSError, InputError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with whole_file(_file()) as part:
            part.write_text(json.dumps(dict([*kept.items()][-_MOST_KEYS:])), encoding="utf-8")


def _test_key(selection: Selection, gpu: Gpu, bundle_sha256: str) -> str:
    """A digest of everything on which the result depends."""
    of_provider = [machine.cuda_version, machine.cudnn_version]
    if selection.provider is TENSORRT:
        of_provider = [machine.tensorrt_version]
    finders = [machine.onnxruntime_version, machine.driver_version, *of_provider]
    versions = [find() for find in finders]
    device = gpu.name, gpu.compute_capability  # not which of several
    key = __version__, selection.name, bundle_sha256, device, versions
    return sha256(json.dumps(key).encode()).hexdigest()


def next_provider(selection: Selection, bundle_sha256: str | None = None) -> Selection:
    """The next fastest provider that `select_provider` would take; raises `ProviderUnavailable` if
    there is none.
    """
    known = tuple(PROVIDERS.values())
    left = known[known.index(selection.provider) + 1 :]
    if not left:
        raise ProviderUnavailable(table.NOTHING_AFTER.format(name=selection.name))
    return _best(left, selection.device_id, bundle_sha256)


def why_not_taken(selection: Selection, bundle_sha256: str) -> str:
    """Why "auto" does not take a provider that loads, by its newest self-test, and what tests it;
    empty if it does.
    """
    reasons: dict[str | None, str] = {"failed": table.FAILED_TEST, "slower": table.SLOWER}
    if selection.provider.builds:
        reasons[None] = table.NOT_TESTED
    result = tested(selection, bundle_sha256)
    setup = "" if result else "`latentsync-trt setup`, or "
    cure = f"{setup}`latentsync-trt selftest --provider {selection.name} --bundle NAME` tests it"
    if result in reasons:
        return f"{reasons[result]}; {cure}"
    return ""


def _best(providers: tuple[Provider, ...], device: int, bundle_sha256: str | None) -> Selection:
    found = machine.gpus()
    # Without any, the driver's obstacle is reported instead, with more detail.
    if providers != (CPU,) and (device or found) and not 0 <= device < len(found):
        if found:
            existing = f"available: {', '.join(map(str, found))}"
        else:
            existing = "this machine has none"
        raise InputError(table.NO_SUCH_GPU.format(device=device, existing=existing))
    skipped_providers: list[tuple[str, str]] = []
    for provider in providers:
        reason = str(diagnose_provider(provider, device) or "")
        if not reason:
            gpu = None if provider is CPU else found[device]
            selection = Selection(provider.name, tuple(skipped_providers), gpu)
            reason = why_not_taken(selection, bundle_sha256) if bundle_sha256 else ""
            if not reason:
                return selection
        skipped_providers.append((provider.name, reason))
    raise ProviderUnavailable("; ".join(f"{name}: {reason}" for name, reason in skipped_providers))


def eight_bit_notice(manifest: Manifest, selection: Selection) -> str:
    """A notice for an 8-bit bundle on a provider without 8-bit kernels; raises `InputError` on a
    GPU without FP8.
    """
    if manifest.precision not in EIGHT_BIT_PRECISIONS:
        return ""
    if selection.provider is not TENSORRT:
        return (
            f"{selection.name} emulates this {manifest.precision} "
            f"bundle in {manifest.arithmetic}: results are those "
            f"of 8 bits, speed is not; use {TENSORRT.name} for that"
        )
    if (
        manifest.precision == "fp8"
        and selection.gpu is not None
        and selection.gpu.capability < FP8_FROM
    ):
        raise InputError(
            f"bundle {manifest.name} is in fp8, which {selection.gpu} "
            "does not support: it needs compute capability "
            f"{_dotted(FP8_FROM)}; use an int8 or {manifest.arithmetic} bundle"
        )
    return ""


def diagnose_provider(provider: Provider, device: int = 0) -> Obstacle | None:
    """Tries a provider on GPU `device`: driver, GPU, libraries, a trial session; None if it runs,
    else the first obstacle.
    """
    if provider.ort_name not in ort.get_available_providers():
        text = table.CPU_BUILD.format(version=ort.__version__, provider=provider.ort_name)
        return Obstacle(text, table.GET_ORT)
    obstacle = None
    if provider is not CPU:
        obstacle = _driver_obstacle() or _gpu_obstacle(device) or _library_obstacle(provider)
    return obstacle or _session_obstacle(provider, device)


def _driver_obstacle() -> Obstacle | None:
    problem = machine.driver_problem()
    supported = machine.driver_cuda()
    if supported is None:
        if problem:
            return Obstacle(table.NO_DRIVER.format(problem=problem), table.GET_DRIVER)
        return None
    if supported < (CUDA_MAJOR, 0):
        found = machine.driver_version() or "it"
        text = table.DRIVER_TOO_OLD.format(
            found=found, supported=_dotted(supported), needed=CUDA_MAJOR
        )
        return Obstacle(text, table.GET_DRIVER)
    if problem is not None:
        cure = (
            "look at the output of nvidia-smi; after an update of the driver, restart the machine"
        )
        return Obstacle(table.DRIVER_FAILS.format(problem=problem), cure)
    return None


def _gpu_obstacle(device: int) -> Obstacle | None:
    found = machine.gpus()
    if not 0 <= device < len(found):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            hidden = ""
        else:
            hidden = f' ($CUDA_VISIBLE_DEVICES is "{visible}")'
        return Obstacle(
            table.NO_GPU.format(hidden=hidden), "look at the output of nvidia-smi for existing GPUs"
        )
    if found[device].capability < _LEAST_CAPABILITY:
        text = table.GPU_TOO_OLD.format(
            gpu=found[device], major=CUDA_MAJOR, least=_dotted(_LEAST_CAPABILITY)
        )
        return Obstacle(text, f"use --provider {CPU.name}, or a newer GPU")
    return None


def _library_obstacle(provider: Provider) -> Obstacle | None:
    """Loads all libraries of a provider as onnxruntime will, to name those that fail."""
    machine.preload()
    own = [str(machine.provider_library(part)) for part in ("shared", provider.name)]
    for files in (machine.needed_libraries(provider), own):
        if problems := [problem for file in files if (problem := machine.load_problem(file))]:
            return Obstacle(
                table.LIBRARY_FAILS.format(problem="; ".join(problems)), provider.install
            )
    if provider is not TENSORRT:
        return None
    found = machine.tensorrt_version()
    least = _dotted(_LEAST_TENSORRT)
    if found != machine.UNKNOWN and tuple(map(int, found.split(".")[:2])) < _LEAST_TENSORRT:
        return Obstacle(table.TENSORRT_TOO_OLD.format(found=found, least=least), provider.install)
    if machine.package_folder(machine.TENSORRT_MODULE) is None:
        return Obstacle(table.NO_BUILDER.format(found=found), provider.install)
    return None


def _session_obstacle(provider: Provider, device: int) -> Obstacle | None:
    """Runs a trial session and checks that it uses the provider: without CUDA, onnxruntime only
    warns.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    own = {} if provider is CPU else {"device_id": str(device)}
    if provider is TENSORRT:
        # Else it would load its builder and build an engine, which takes seconds at every start.
        own["trt_op_types_to_exclude"] = "Neg"
    try:
        session = ort.InferenceSession(
            _TRIAL_MODEL, options, providers=[(provider.ort_name, own)], enable_fallback=0
        )
        # Only running a kernel shows whether the provider has code for this generation of GPU.
        session.run(None, {"x": np.ones(1, np.float32)})
        actual = session.get_providers()
        if provider.ort_name in actual:
            problem = ""
        else:
            problem = f"it runs on {actual[0]} instead"
    except Exception as error:  # noqa: BLE001 -- ORT's errors share no public base; the reason is the answer
        problem = last_line(error)
    cure = "see the output of nvidia-smi and docs/providers.md; meanwhile use --provider cpu"
    if problem:
        return Obstacle(table.SESSION_FAILS.format(problem=problem), cure)
    return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def shows_no_gpu() -> bool:
    """Whether there is no NVIDIA driver, nor a display controller in Linux's list that may lack
    it.
    """
    if machine.driver_cuda() is not None:
        return False
    for device in PCI_DEVICES.glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith("0x03"):
                return False
    return True


def _file() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    return (below_home(named, "") if named else user_folder("cache")) / FOLDER / "tested.json"


def _results() -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError, InputError):
        content = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
        return {}
    return {}
