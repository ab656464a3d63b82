"""Calibration ranges of the small bundle, observed on noise."""

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.observed import ObservingDenoiser, write_observed
from latentsync_trt.quantize.ranges import ActivationRanges
from latentsync_trt.quantize.windows import Loop, RecordedWindow
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.types import Float32Array
from tests.small import small_bundle

GUIDED = ("denoise_step", "denoise_step_cached")


def small_loop(guidance: float = 1.5) -> Loop:
    """A full step and a cached one."""
    return Loop(guidance, 2, (0,))


def small_window(bundle: Bundle) -> RecordedWindow:
    """A window of noise."""
    manifest = bundle.manifest
    random = np.random.default_rng(2)
    side = manifest.latent_px
    frames = manifest.frames
    return RecordedWindow(
        random.standard_normal((1, 4, 1, side, side), np.float32),
        random.standard_normal((9, frames, side, side), np.float32),
        random.standard_normal(
            (frames, 10 * manifest.audio_layers, manifest.audio_width), np.float32
        ),
    )


@functools.cache
def observed_small() -> tuple[ActivationRanges, Float32Array]:
    """What a loop of the small bundle shows, and its latents at the end."""
    bundle = Bundle.load(small_bundle(), verify=False)
    loop = small_loop()
    with TemporaryDirectory() as folder:
        observed = {name: write_observed(bundle, name, Path(folder)) for name in GUIDED}
        denoiser = ObservingDenoiser(observed, Selection("cpu"))
        latents = loop.run(denoiser, small_window(bundle))
        denoiser.close()
    return denoiser.ranges, latents


def small_ranges() -> ActivationRanges:
    """Calibration ranges of all layers of the small bundle."""
    return observed_small()[0]
