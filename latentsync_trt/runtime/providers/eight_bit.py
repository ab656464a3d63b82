"""What runs bundles in eight bits as such, and what only rounds as they do. Pure."""

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Manifest
from latentsync_trt.errors import InputError
from latentsync_trt.runtime.providers.select import Selection

FP8_FROM = (8, 9)
"""Compute capability of the first GPUs that compute in FP8: RTX 40xx, L4, H100."""

_WITH_KERNELS = ("tensorrt", "rtx")


def eight_bit_notice(manifest: Manifest, selection: Selection) -> str:
    """What to tell of a bundle on a provider; empty if nothing.

    Raises:
        InputError: the GPU cannot compute in the bundle's precision.
    """
    if manifest.precision not in EIGHT_BIT_PRECISIONS:
        return ""
    gpu, name = selection.gpu, selection.name
    if name not in _WITH_KERNELS:
        return (
            f"{name} runs this {manifest.precision} bundle by rounding between operations in "
            f"{manifest.arithmetic}: results are those of eight bits, speed is not; use tensorrt or rtx for that"
        )
    if manifest.precision == "fp8" and gpu is not None and gpu.capability < FP8_FROM:
        least = ".".join(map(str, FP8_FROM))
        raise InputError(
            f"bundle {manifest.name} is in fp8, which {gpu} lacks: it takes compute capability {least}; "
            f"use an int8 or {manifest.arithmetic} bundle"
        )
    return ""
