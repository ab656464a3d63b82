"""A sampler as coefficients: every step is linear in the latents, the guided noise prediction and one memory. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array, Float64Array

TRAIN_STEPS = 1000
BETA_START, BETA_END = 0.00085, 0.012
STEPS_OFFSET = 1
"""With leading spacing the smallest timestep is this, not 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One denoising step.

    `coefficients (5,)` float32 = c_x, c_eps, c_history, d_x, d_eps: the step computes
    `next = c_x·latents + c_eps·eps + c_history·history` and `next_history = d_x·latents + d_eps·eps`.
    """

    timestep: int
    coefficients: Float32Array


@lru_cache(maxsize=1)
def alphas_cumprod() -> Float64Array:
    """ᾱ_t of the training schedule, float64 `(1000,)`: betas whose square roots are evenly spaced ("scaled linear")."""
    roots = np.linspace(BETA_START**0.5, BETA_END**0.5, TRAIN_STEPS, dtype=np.float64)
    return np.cumprod(1.0 - roots**2, dtype=np.float64)


def leading_timesteps(steps: int) -> list[int]:
    """`steps` timesteps from high to low: multiples of 1000 // steps, plus the offset.

    Raises:
        InputError: fewer than 1 step or more than the schedule has.
    """
    if not 1 <= steps <= TRAIN_STEPS:
        raise InputError(f"{steps} steps: the schedule has 1 to {TRAIN_STEPS}")
    spacing = TRAIN_STEPS // steps
    highest = TRAIN_STEPS - 1
    return [min(index * spacing + STEPS_OFFSET, highest) for index in reversed(range(steps))]


def ddim_schedule(steps: int) -> tuple[Step, ...]:
    """DDIM with η = 0 (Song et al. 2021, eq. 12), epsilon prediction, no clipping.

    x' = √ᾱ' · (x − √(1−ᾱ)·ε) / √ᾱ + √(1−ᾱ') · ε, where ᾱ' belongs to the timestep 1000 // steps lower, and is ᾱ_0
    below zero. Nothing is remembered: c_history, d_x and d_eps are 0.

    Raises:
        InputError: as `leading_timesteps`.
    """
    alphas = alphas_cumprod()
    spacing = TRAIN_STEPS // steps if steps else 0
    schedule = []
    for timestep in leading_timesteps(steps):
        alpha, previous = alphas[timestep], alphas[max(timestep - spacing, 0)]
        c_x = (previous / alpha) ** 0.5
        c_eps = (1.0 - previous) ** 0.5 - c_x * (1.0 - alpha) ** 0.5
        schedule.append(Step(timestep, np.array([c_x, c_eps, 0.0, 0.0, 0.0], np.float32)))
    return tuple(schedule)
