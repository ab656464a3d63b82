"""Chooses the execution provider that runs the graphs."""

from dataclasses import replace

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Manifest
from latentsync_trt.errors import InputError, ProviderUnavailable
from latentsync_trt.runtime.providers import devices, table
from latentsync_trt.runtime.providers.diagnosis import diagnose_provider, dotted
from latentsync_trt.runtime.providers.remembered_tests import tested
from latentsync_trt.runtime.providers.selection import Selection, SkippedProvider
from latentsync_trt.runtime.providers.table import CPU, PROVIDERS, TENSORRT, Provider

FP8_FROM = (8, 9)
"""Compute capability of the first GPUs with FP8: RTX 40xx, L4, H100."""


def select_provider(
    request: str = "auto", device: int = 0, bundle_sha256: str | None = None
) -> Selection:
    """Chooses a provider on GPU `device`; naming a provider disables fallback.

    "auto" takes the fastest that loads and that the newest `setup` or `selftest` did not find wrong
    or slower; one that builds engines only where that passed it. Without `bundle_sha256`, of a
    manifest, only what loads counts.

    Raises `ProviderUnavailable` if the named provider is unknown or does not load, `InputError`
    without such a GPU.
    """
    if request == "auto":
        return _best(tuple(PROVIDERS.values()), device, bundle_sha256)
    if request not in PROVIDERS:
        choices = ", ".join(table.PROVIDER_CHOICES)
        text = table.NOT_A_PROVIDER.format(request=request, choices=choices)
        raise ProviderUnavailable(text, usage=True)
    return replace(_best((PROVIDERS[request],), device, None), is_named=True)


def next_provider(selection: Selection, bundle_sha256: str | None = None) -> Selection:
    """Returns the next fastest provider that `select_provider` would take; raises
    `ProviderUnavailable` if there is none.
    """
    providers = tuple(PROVIDERS.values())
    slower = providers[providers.index(selection.provider) + 1 :]
    if not slower:
        raise ProviderUnavailable(table.NOTHING_AFTER.format(name=selection.name))
    return _best(slower, selection.device_id, bundle_sha256)


def why_not_taken(selection: Selection, bundle_sha256: str) -> str:
    """Returns why "auto" does not take a provider that loads, by its newest self-test, and what
    tests it; empty if "auto" takes it.
    """
    result = tested(selection, bundle_sha256)
    selftest = f"`latentsync-trt selftest --provider {selection.name} --bundle NAME` tests it"
    if result == "failed":
        return f"{table.FAILED_TEST}; {selftest}"
    if result == "slower":
        return f"{table.SLOWER}; {selftest}"
    if result is None and selection.provider.builds:
        return f"{table.NOT_TESTED}; `latentsync-trt setup`, or {selftest}"
    return ""


def _best(providers: tuple[Provider, ...], device: int, bundle_sha256: str | None) -> Selection:
    """Returns the first of `providers` that runs and that its self-test does not speak against."""
    if providers != (CPU,):
        _check_device(device)
    skipped: list[SkippedProvider] = []
    for provider in providers:
        reason = str(diagnose_provider(provider, device) or "")
        if not reason:
            gpu = None
            if provider is not CPU:
                gpu = devices.gpus()[device]
            selection = Selection(provider.name, tuple(skipped), gpu)
            if bundle_sha256 is None:
                return selection
            reason = why_not_taken(selection, bundle_sha256)
            if not reason:
                return selection
        skipped.append(SkippedProvider(provider.name, reason))
    raise ProviderUnavailable("; ".join(f"{one.name}: {one.reason}" for one in skipped))


def _check_device(device: int) -> None:
    gpus = devices.gpus()
    # Without any GPU, the driver's obstacle is reported instead of number 0, with more detail.
    if 0 <= device < len(gpus) or (device == 0 and not gpus):
        return
    existing = "this machine has none"
    if gpus:
        existing = f"available: {', '.join(map(str, gpus))}"
    raise InputError(table.NO_SUCH_GPU.format(device=device, existing=existing))


def eight_bit_notice(manifest: Manifest, selection: Selection) -> str:
    """Returns a notice for an 8-bit bundle on a provider without 8-bit kernels, else an empty
    string; raises `InputError` on a GPU without FP8.
    """
    if manifest.precision not in EIGHT_BIT_PRECISIONS:
        return ""
    if selection.provider is not TENSORRT:
        return (
            f"{selection.name} emulates this {manifest.precision} bundle in {manifest.arithmetic}: "
            f"results are those of 8 bits, speed is not; use {TENSORRT.name} for that"
        )
    gpu = selection.gpu
    if manifest.precision == "fp8" and gpu is not None and gpu.capability < FP8_FROM:
        raise InputError(
            f"bundle {manifest.name} is in fp8, which {gpu} does not support: it needs "
            f"compute capability {dotted(FP8_FROM)}; use an int8 or {manifest.arithmetic} bundle"
        )
    return ""
