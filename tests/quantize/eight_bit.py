"""The small bundle in eight bits, with ranges of what it does on noise."""

import functools
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.diffusion.loop import denoise
from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.quantize.bundle_out import Provenance, quantize_bundle
from latentsync_trt.quantize.cast import EightBit
from latentsync_trt.quantize.observe import write_observed
from latentsync_trt.quantize.options import QuantizeOptions
from latentsync_trt.quantize.ranges import LayerInput, Ranges, merged, observed
from latentsync_trt.runtime.networks.observer import ObservedTensor, ObservingDenoiser
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.types import Float32Array
from tests.small import small_bundle

GUIDED = ("denoise_step", "denoise_step_cached")
SCHEDULE, PLAN = solver_schedule("ddim", 2), cache_plan(2, 2)
GUIDANCE = 1.5


def inputs(bundle: Bundle) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Noise, conditioning and audio for a window."""
    manifest, random = bundle.manifest, np.random.default_rng(2)
    side, frames = manifest.latent_px, manifest.frames
    audio = (1, frames, 10 * manifest.audio_layers, manifest.audio_width)
    shapes: Sequence[tuple[int, ...]] = [(1, 4, 1, side, side), (1, 9, frames, side, side), audio]
    noise, known, heard = (random.standard_normal(shape, np.float32) for shape in shapes)
    return noise, known, heard


@functools.cache
def small_ranges() -> Ranges:
    """What a full and a cached step of the small bundle show."""
    bundle, seen = Bundle.load(small_bundle(), verify=False), dict[str, LayerInput]()

    def see(tensor: ObservedTensor, timestep: int, amax: Float32Array, sample: Float32Array) -> None:
        now = observed(amax, sample, timestep)
        for layer in tensor.layers:
            seen[layer] = merged(seen[layer], now) if layer in seen else now

    with TemporaryDirectory() as folder:
        graphs = {name: write_observed(bundle, name, Path(folder)) for name in GUIDED}
        denoiser = ObservingDenoiser(graphs, Selection("cpu"), see)
        denoise(denoiser, *inputs(bundle), GUIDANCE, SCHEDULE, PLAN)
        denoiser.close()
    return seen


def write_eight_bit(folder: Path, kind: EightBit, provenance: Provenance | None = None) -> Path:
    """The small bundle in eight bits, all options at their defaults."""
    return quantize_bundle(small_bundle(), small_ranges(), QuantizeOptions(kind), folder, provenance)
