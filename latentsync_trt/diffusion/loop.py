"""The denoising loop over anything that can do one step. Pure."""

from typing import Protocol

import numpy as np

from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array

LATENT_CHANNELS = 4


class Denoiser(Protocol):
    """Holds the latents of a batch of windows and moves them one step at a time; see `runtime.denoiser`."""

    def begin(self, latents: Float32Array, conditioning: Float32Array, audio: Float32Array, guidance: float) -> None:
        """Takes in noise `(B, 4, F, h, w)`, conditioning `(B, 9, F, h, w)`, audio `(B, F, S, D)` and the scale."""
        ...

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool) -> None:
        """Replaces the latents by the next ones; `cached` reuses inner features of the last step that did not."""
        ...

    def latents(self) -> Float32Array:
        """The current latents `(B, 4, F, h, w)`."""
        ...


def denoise(
    denoiser: Denoiser,
    noise: Float32Array,
    conditioning: Float32Array,
    audio: Float32Array,
    guidance: float,
    schedule: tuple[Step, ...],
    plan: tuple[bool, ...],
) -> Float32Array:
    """Denoised latents, float32 `(B, 4, F, h, w)`.

    Args:
        noise: `(1, 4, 1, h, w)`, repeated over windows and frames. conditioning: `(B, 9, F, h, w)`.
        audio: `(B, F, S, D)`. guidance: scale. schedule: the steps. plan: True where the whole network runs.

    Raises:
        InputError: the plan is of another length than the schedule or starts with a cached step, or shapes do not fit.
    """
    if len(plan) != len(schedule) or not plan or not plan[0]:
        raise InputError(f"a plan of {len(plan)} steps, first full: {plan[:1]}, for a schedule of {len(schedule)}")
    windows, _, frames, height, width = conditioning.shape
    if noise.shape != (1, LATENT_CHANNELS, 1, height, width):
        raise InputError(f"noise {noise.shape}: the model needs {(1, LATENT_CHANNELS, 1, height, width)}")
    start = np.broadcast_to(noise, (windows, LATENT_CHANNELS, frames, height, width))
    denoiser.begin(np.ascontiguousarray(start, np.float32), conditioning, audio, guidance)
    for step, full in zip(schedule, plan, strict=True):
        denoiser.step(step.timestep, step.coefficients, cached=not full)
    return denoiser.latents()


def initial_noise(seed: int, latent_px: int) -> Float32Array:
    """Standard normal noise `(1, 4, 1, h, w)` float32 from NumPy's PCG64, the same on any machine."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal((1, LATENT_CHANNELS, 1, latent_px, latent_px), np.float32)


def conditioning(mask: Float32Array, masked: Float32Array, reference: Float32Array) -> Float32Array:
    """What the U-Net sees beside the noise, float32 `(B, 9, F, h, w)`: mask, masked latents, reference latents.

    Args:
        mask: `(h, w)`, 1 = kept. masked, reference: latents of the faces with and without mask, `(B, F, 4, h, w)`.
    """
    windows, frames, _, height, width = masked.shape
    planes = np.broadcast_to(mask, (windows, frames, 1, height, width))
    stacked = np.concatenate([planes, masked, reference], axis=2, dtype=np.float32)
    return np.ascontiguousarray(stacked.transpose(0, 2, 1, 3, 4))
