"""Calibration ranges of the small bundle, observed on noise."""

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.quantize.observing import ObservingDenoiser, Ranges
from latentsync_trt.quantize.steps import write_observed
from latentsync_trt.quantize.windows import Loop, RecordedWindow
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array
from tests.small import small_bundle

GUIDED = ("denoise_step", "denoise_step_cached")


def small_loop(steps: int = 2, guidance: float = 1.5) -> Loop:
    """Every other step is full."""
    return Loop(guidance, steps, tuple(range(0, steps, 2)))


def small_window(bundle: Bundle) -> RecordedWindow:
    """A window of noise."""
    manifest, random = bundle.manifest, np.random.default_rng(2)
    side, frames = manifest.latent_px, manifest.frames
    return RecordedWindow(
        random.standard_normal((1, 4, 1, side, side), np.float32),
        random.standard_normal((9, frames, side, side), np.float32),
        random.standard_normal((frames, 10 * manifest.audio_layers, manifest.audio_width), np.float32),
    )


def observe_small(loop: Loop) -> tuple[Ranges, Float32Array]:
    """What a loop of the small bundle shows, and its latents at the end."""
    bundle = Bundle.load(small_bundle(), verify=False)
    with TemporaryDirectory() as folder:
        observed = {name: write_observed(bundle, name, Path(folder)) for name in GUIDED}
        denoiser = ObservingDenoiser(observed, Selection("cpu"))
        latents = loop.run(denoiser, small_window(bundle))
        denoiser.close()
    return denoiser.ranges, latents


@functools.cache
def small_ranges() -> Ranges:
    """Calibration ranges of all layers of the small bundle."""
    return observe_small(small_loop())[0]
