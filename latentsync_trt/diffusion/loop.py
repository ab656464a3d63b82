"""The denoising loop over a `Denoiser`, its inputs, and its plan: which steps run the whole
network, which reuse its inner features, and which are guided. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

import numpy as np

from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.errors import InputError
from latentsync_trt.types import Denoiser, Float32Array, WindowBatch

LATENT_CHANNELS = 4

EVERYWHERE = (0.0, 1.0)
"""The guidance interval that guides every step."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """How one step runs. `full`: the whole network, otherwise its last layer only; `guided`: with guidance."""

    full: bool
    guided: bool = True


def plan_for(options: SyncOptions) -> tuple[PlannedStep, ...]:
    """The plan of a run with `options`."""
    sampling = options.sampling
    return cache_plan(
        sampling.steps, sampling.cache_interval, guidance_interval=options.guidance_interval or EVERYWHERE
    )


def cache_plan(
    steps: int, interval: int | tuple[int, ...], *, guidance_interval: tuple[float, float] = EVERYWHERE
) -> tuple[PlannedStep, ...]:
    """How each of `steps` steps runs.

    Guided and unguided steps cannot use each other's inner features, so the whole network runs
    where guidance starts or ends.

    Args:
        interval: every `interval`-th step is full, counted from the first one and anew where
            guidance starts or ends; or the numbers of the full steps, from 0.
        guidance_interval: start and end, as fractions of the schedule; step i of n covers i/n to (i
            + 1)/n, and is guided if that overlaps the interval.
    """
    guided = _guided_steps(steps, guidance_interval)
    plan: list[PlannedStep] = []
    switched_at = 0
    for step in range(steps):
        if plan and plan[-1].guided != (step in guided):
            switched_at = step
        due = step in interval if isinstance(interval, tuple) else (step - switched_at) % interval == 0
        plan.append(PlannedStep(due or step == switched_at, step in guided))
    return tuple(plan)


def _guided_steps(steps: int, interval: tuple[float, float]) -> range:
    # Decimal, not binary fractions: 0.7 of 10 steps is exactly 7.
    start, end = (Fraction(str(float(part))) * steps for part in interval)
    return range(floor(start), ceil(end))


def denoise(
    denoiser: Denoiser,
    noise: Float32Array,
    conditioning: Float32Array,
    audio: Float32Array,
    guidance: float,
    schedule: Sequence[Step],
    plan: Sequence[PlannedStep],
    on_step: Callable[[int, int], None] | None = None,
) -> Float32Array:
    """Turns noise into latents, float32 `(B, 4, F, h, w)`.

    Args:
        noise: float32 `(1, 4, 1, h, w)`, repeated over windows and frames.
        conditioning: float32 `(B, 9, F, h, w)`. audio: float32 `(B, F, S, D)`.
        guidance: classifier-free guidance scale.
        schedule: the steps. plan: how each of them runs.
        on_step: called after each step with the number of steps done and their total.

    Raises:
        InputError: shapes disagree.
    """
    batch, _, frames, height, width = conditioning.shape
    if noise.shape != (1, LATENT_CHANNELS, 1, height, width) or audio.shape[:2] != (batch, frames):
        raise InputError(f"noise {noise.shape}, conditioning {conditioning.shape} and audio {audio.shape} do not fit")
    repeated = np.broadcast_to(noise, (batch, LATENT_CHANNELS, frames, height, width))
    latents = np.ascontiguousarray(repeated, np.float32)
    unguided_too = not all(planned.guided for planned in plan)
    denoiser.begin(WindowBatch(latents, conditioning, audio, guidance, unguided_too))
    for done, (step, planned) in enumerate(zip(schedule, plan, strict=True), start=1):
        denoiser.step(step.timestep, step.coefficients, cached=not planned.full, guided=planned.guided)
        if on_step is not None:
            on_step(done, len(schedule))
    return denoiser.latents()


def initial_noise(seed: int, height: int, width: int) -> Float32Array:
    """The noise latent of a run, float32 `(1, 4, 1, height, width)`, standard normal, from PCG64(`seed`).

    Drawn in double precision and rounded, so that the values do not depend on NumPy's float32 sampler.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal((1, LATENT_CHANNELS, 1, height, width)).astype(np.float32)


def conditioning(latent_mask: Float32Array, masked: Float32Array, reference: Float32Array) -> Float32Array:
    """The network's input for each frame besides noise and audio: float32 `(B, 9, F, h, w)`.

    Args:
        latent_mask: float32 `(h, w)`, 1 = kept.
        masked: float32 `(B, F, 4, h, w)`, scaled latents of the masked images.
        reference: float32 `(B, F, 4, h, w)`, scaled latents of the whole images.
    """
    batch, frames, _, height, width = masked.shape
    mask = np.broadcast_to(latent_mask, (batch, frames, 1, height, width))
    stacked = np.concatenate([mask, masked, reference], axis=2, dtype=np.float32)
    return np.ascontiguousarray(stacked.transpose(0, 2, 1, 3, 4))
