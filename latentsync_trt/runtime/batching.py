"""How many windows to denoise together where nobody says: as many as the engines take and free memory holds. Pure."""

from collections.abc import Mapping

from latentsync_trt.bundle import DimensionRange, Manifest

_HALVES = 2
"""Of a guided step: with the sound and without."""

_FEATURES_AT_ONCE = 32
"""How often a full step holds features of the first level's size at its peak. 29 were measured: each further window of
16 frames at 256 px took 0.61 GB of the published U-Net on the CUDA provider in float16 (benchmarks/)."""

_USABLE_SHARE = 0.7
"""Of the memory that is free once all networks are open: the image codec runs in it, too, and so may other programs."""

_VALUE_BYTES = {"fp32": 4, "fp16": 2}


def windows_that_fit(manifest: Manifest, ranges: Mapping[str, DimensionRange], free_bytes: int | None) -> int:
    """Windows for one run of the denoiser, at least 1.

    Args:
        ranges: of the engines' variable dimensions. free_bytes: of the device, with all networks open; None where that
            is not known.
    """
    windows = ranges.get("windows")
    if windows is None or free_bytes is None:
        return 1
    return max(1, windows.minimum, min(windows.maximum, int(_USABLE_SHARE * free_bytes) // window_bytes(manifest)))


def window_bytes(manifest: Manifest) -> int:
    """About what one more window takes on the device in a full guided step."""
    features = manifest.frames * manifest.latent_px**2 * manifest.unet["widths"][0]
    return int(_FEATURES_AT_ONCE * _HALVES * features * _VALUE_BYTES[manifest.arithmetic])
