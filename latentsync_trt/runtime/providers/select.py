"""Which execution provider runs the graphs, and why a better one does not."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Manifest
from latentsync_trt.errors import InputError, ProviderUnavailable
from latentsync_trt.remembered import Key, recall, remember
from latentsync_trt.runtime.providers import gpu as driver
from latentsync_trt.runtime.providers import table
from latentsync_trt.runtime.providers.diagnose import diagnose_provider
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.libraries import (
    cuda_version,
    cudnn_version,
    onnxruntime_version,
    tensorrt_version,
)
from latentsync_trt.runtime.providers.table import CPU, PROVIDERS, TENSORRT, Provider
from latentsync_trt.values import ALL_DEVICES

PCI_DEVICES = Path("/sys/bus/pci/devices")

TestResult = Literal["passed", "failed", "slower"]
"""Of a self-test: "slower" passed, but its steps took longer than with the reference."""

FP8_FROM = (8, 9)
"""Compute capability of the first GPUs with FP8: RTX 40xx, L4, H100."""


@dataclass(frozen=True, slots=True)
class Selection:
    """`skipped_providers`: faster ones, and why; `gpu`: None on the CPU; `is_named`: no other may take its place."""

    name: str
    skipped_providers: tuple[tuple[str, str], ...] = ()
    gpu: Gpu | None = None
    is_named: bool = False

    def notices(self) -> list[str]:
        """One line for each reason, with the providers that were skipped for it; none on a machine without a GPU."""
        if self.gpu is None and driver.driver_cuda() is None and not _has_nvidia_gpu():
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
        return self.gpu.index if self.gpu else 0


def select_provider(request: str = "auto", device: int = 0, bundle_sha256: str | None = None) -> Selection:
    """Chooses a provider on GPU `device`; naming a provider disables fallback.

    "auto" takes the fastest that loads and that the newest `setup` or `selftest` did not find wrong or slower; one that
    builds engines only where that passed it. Without `bundle_sha256`, of a manifest, it looks at what loads alone.

    Raises:
        ProviderUnavailable: the named provider is unknown or does not load. InputError: there is no such GPU.
    """
    if request == "auto":
        return _best(tuple(PROVIDERS.values()), device, bundle_sha256)
    if request not in PROVIDERS:
        choices = ", ".join(("auto", *PROVIDERS))
        raise ProviderUnavailable(table.NOT_A_PROVIDER.format(request=request, choices=choices), usage=True)
    return replace(_best((PROVIDERS[request],), device, None), is_named=True)


def device_numbers(device: int | str | tuple[int, ...]) -> tuple[int, ...]:
    """The GPUs that `RuntimeOptions.device` names; (0,) for "all" on a machine without one."""
    if device == ALL_DEVICES:
        return tuple(gpu.index for gpu in driver.gpus()) or (0,)
    return device if isinstance(device, tuple) else (int(device),)


def tested(selection: Selection, bundle_sha256: str) -> str | None:
    """The newest `TestResult` of a bundle, by the SHA-256 of its manifest; None without one, and on the CPU."""
    return None if selection.gpu is None else recall(_test_key(selection, selection.gpu, bundle_sha256))


def remember_test(selection: Selection, bundle_sha256: str, result: TestResult) -> None:
    """Keeps what `tested` returns from now on; nothing on the CPU."""
    if selection.gpu is not None:
        remember(_test_key(selection, selection.gpu, bundle_sha256), result)


def _test_key(selection: Selection, gpu: Gpu, bundle_sha256: str) -> Key:
    versions = [onnxruntime_version(), driver.driver_version()]
    versions += [tensorrt_version()] if selection.provider is TENSORRT else [cuda_version(), cudnn_version()]
    return {
        "provider": selection.name,
        "bundle": bundle_sha256,
        "gpu": [gpu.name, gpu.compute_capability],  # not which of several
        "versions": versions,
    }


def next_provider(selection: Selection, bundle_sha256: str | None = None) -> Selection:
    """The next fastest provider that `select_provider` would take; raises `ProviderUnavailable` if there is none."""
    known = tuple(PROVIDERS.values())
    left = known[known.index(selection.provider) + 1 :]
    if not left:
        raise ProviderUnavailable(table.NOTHING_AFTER.format(name=selection.name))
    return _best(left, selection.device_id, bundle_sha256)


def why_not_taken(selection: Selection, bundle_sha256: str) -> str:
    """Why "auto" does not take a provider that loads, by its newest self-test, and what tests it; empty if it does."""
    reasons: dict[str | None, str] = {"failed": table.FAILED_TEST, "slower": table.SLOWER}
    if selection.provider.builds:
        reasons[None] = table.NOT_TESTED
    result = tested(selection, bundle_sha256)
    setup = "" if result else "`latentsync-trt setup`, or "
    cure = f"{setup}`latentsync-trt selftest --provider {selection.name} --bundle NAME` tests it"
    return f"{reasons[result]}; {cure}" if result in reasons else ""


def _best(providers: tuple[Provider, ...], device: int, bundle_sha256: str | None) -> Selection:
    found = driver.gpus()
    # Without any, the driver's obstacle is reported instead, with more detail.
    if providers != (CPU,) and (device or found) and not 0 <= device < len(found):
        existing = f"available: {', '.join(map(str, found))}" if found else "this machine has none"
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
    """A notice for an 8-bit bundle on a provider without 8-bit kernels; raises `InputError` on a GPU without FP8."""
    if manifest.precision not in EIGHT_BIT_PRECISIONS:
        return ""
    if selection.provider is not TENSORRT:
        return (
            f"{selection.name} emulates this {manifest.precision} bundle in {manifest.arithmetic}: results are those "
            f"of 8 bits, speed is not; use {TENSORRT.name} for that"
        )
    if manifest.precision == "fp8" and selection.gpu is not None and selection.gpu.capability < FP8_FROM:
        raise InputError(
            f"bundle {manifest.name} is in fp8, which {selection.gpu} does not support: it needs compute capability "
            f"{'.'.join(map(str, FP8_FROM))}; use an int8 or {manifest.arithmetic} bundle"
        )
    return ""


def _has_nvidia_gpu() -> bool:
    """Whether Linux lists an NVIDIA display controller, which may lack its driver."""
    for device in PCI_DEVICES.glob("*"):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith("0x03"):
                return True
    return False
