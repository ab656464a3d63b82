"""The denoising loop: the noise levels that a sampler visits, the linear update of each step, and
the network's inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log

import numpy as np

from latentsync_trt.config import Solver, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.types import Denoiser, Float32Array, Float64Array

LATENT_CHANNELS = 4

TRAINING_STEPS = 1000
"""Noise levels that the network was trained at."""

# The variance of the noise that the first and the last training step add, and the offset of
# "leading" spacing: as the model was trained.
_BETA_FIRST = 0.00085
_BETA_LAST = 0.012
_STEPS_OFFSET = 1

_STEPS_FOR_HIGH_ORDER_END = 15
"""With fewer steps than this, the last DPM-Solver++ step is first-order, which is more stable near
the clean image.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One sampler update: `next = c_x·x + c_eps·eps + c_history·history` and `next_history = d_x·x
    + d_eps·eps`, where `eps` is the noise that the network predicts.
    """

    timestep: int
    """The training step whose noise level it starts from."""
    coefficients: Float32Array
    """c_x, c_eps, c_history, d_x and d_eps: `(5,)`, in the order in which step graphs take them."""


@dataclass(frozen=True, slots=True, eq=False)
class DenoisingPlan:
    """How windows are denoised."""

    guidance: float
    """At 1 or below, steps run without guidance."""
    schedule: Sequence[Step]
    full: Sequence[bool]
    """Whether each step runs the whole network; others reuse its inner features."""


def alphas_cumprod() -> Float64Array:
    """Returns the share of signal variance left after each training step: float64 `(1000,)`,
    decreasing. The betas are linear in their square root ("scaled linear").
    """
    betas = np.linspace(_BETA_FIRST**0.5, _BETA_LAST**0.5, TRAINING_STEPS) ** 2
    return np.cumprod(1.0 - betas, dtype=np.float64)


def timesteps(steps: int, *, trailing: bool = False) -> tuple[int, ...]:
    """Returns the training steps that `steps` sampling steps, 1 to 999, visit, noisiest first. The
    spacing is "leading" with an offset of 1, or "trailing": from the last training step on.
    """
    if trailing:
        spacing = TRAINING_STEPS / steps
        levels = [TRAINING_STEPS - i * spacing for i in range(steps)]
        return tuple(round(level) - 1 for level in levels)
    stride = TRAINING_STEPS // steps
    return tuple(i * stride + _STEPS_OFFSET for i in reversed(range(steps)))


def ddim_schedule(steps: int) -> tuple[Step, ...]:
    """Returns the updates of deterministic DDIM (Song et al., "Denoising Diffusion Implicit
    Models", equation 12, σ = 0).

    With ā the signal share now and ā' at the next visited level: x₀ = (x − √(1 − ā)·eps) / √ā and
    next = √ā'·x₀ + √(1 − ā')·eps. The last step goes to training step 0, not to a clean image. DDIM
    has no history, so its three coefficients are 0.
    """
    signal = alphas_cumprod()
    updates = []
    for timestep in timesteps(steps):
        now = signal[timestep]
        then = signal[max(timestep - TRAINING_STEPS // steps, 0)]
        to_clean = (then / now) ** 0.5
        c_eps = (1 - then) ** 0.5 - to_clean * (1 - now) ** 0.5
        coefficients = np.array([to_clean, c_eps, 0, 0, 0], np.float32)
        updates.append(Step(timestep, coefficients))
    return tuple(updates)


def dpmpp_schedule(steps: int) -> tuple[Step, ...]:
    """Returns the updates of DPM-Solver++(2M) (Lu et al. 2022, "DPM-Solver++", algorithm 2), which
    keeps the previous estimate of the clean image.

    With α = √ā, σ = √(1 − ā), λ = log(α/σ), the estimate x₀ = (x − σ·eps)/α and h = λ' − λ: next =
    (σ'/σ)·x + α'·(1 − e^−h)·((1 + r)·x₀ − r·p₀), where r = h / (2·g); p₀ and g: the previous x₀ and
    h. r is 0 on the first step, and on the last of fewer than 15.

    The spacing is "trailing" (Lin et al. 2023, "Common Diffusion Noise Schedules and Sample Steps
    are Flawed"): it starts at the noisiest trained level, to match the pure noise that the loop
    starts from. With few steps, "leading" spacing starts at a level where the latents should
    contain a part of the picture, which shifts its mean. As with DDIM, the last step goes to
    training step 0, not to a clean image.
    """
    visited = timesteps(steps, trailing=True)
    signal = alphas_cumprod()
    levels = [float(signal[timestep]) for timestep in (*visited, 0)]
    updates = []
    width = inf
    for timestep, (now, then) in zip(visited, pairwise(levels), strict=True):
        previous_width = width
        width = _lambda_of(then) - _lambda_of(now)
        weight = width / (2 * previous_width)
        if timestep == visited[-1] and steps < _STEPS_FOR_HIGH_ORDER_END:
            weight = 0.0
        coefficients = _dpmpp_coefficients(now, then, weight)
        updates.append(Step(timestep, coefficients))
    return tuple(updates)


def _lambda_of(signal: float) -> float:
    """Returns log(α/σ) of a signal share."""
    return log(signal / (1 - signal)) / 2


def _dpmpp_coefficients(now: float, then: float, weight: float) -> Float32Array:
    """Returns the coefficients for a step from signal share `now` to `then`, by the equation in
    `dpmpp_schedule`; `weight` is r.
    """
    # (α'/α)/(σ'/σ) is e^h, so that 1 − e^−h needs no logarithm.
    noise_kept = ((1 - then) / (1 - now)) ** 0.5
    gain = then**0.5 - noise_kept * now**0.5
    d_x = now**-0.5
    d_eps = -(((1 - now) / now) ** 0.5)
    ahead = gain * (1 + weight)
    c_x = noise_kept + ahead * d_x
    c_eps = ahead * d_eps
    c_history = -gain * weight
    return np.array([c_x, c_eps, c_history, d_x, d_eps], np.float32)


SOLVERS: dict[Solver, Callable[[int], tuple[Step, ...]]] = {
    "ddim": ddim_schedule,
    "dpmpp": dpmpp_schedule,
}
"""The updates of each solver, by the number of steps."""


def denoising_plan(options: SyncOptions) -> DenoisingPlan:
    sampling = options.sampling
    schedule = SOLVERS[sampling.solver](sampling.steps)
    return DenoisingPlan(options.guidance, schedule, full_steps(options))


def full_steps(options: SyncOptions) -> tuple[bool, ...]:
    """Returns which steps of a run use the whole network."""
    return cache_plan(options.sampling.steps, options.sampling.cache_interval)


def cache_plan(steps: int, interval: int | tuple[int, ...]) -> tuple[bool, ...]:
    """Returns which of `steps` steps run the whole network; the others run its last layer only.
    `interval`: every `interval`-th step runs it, from the first one on; or the numbers of those
    that do, from 0.
    """
    if isinstance(interval, tuple):
        full: Sequence[int] = interval
    else:
        full = range(0, steps, interval)
    return tuple(step in full for step in range(steps))


def denoise(
    denoiser: Denoiser,
    noise: Float32Array,
    conditioning: Float32Array,
    audio: Float32Array,
    plan: DenoisingPlan,
    on_step: Callable[[int, int], None] | None = None,
) -> Float32Array:
    """Turns `noise (1, 4, 1, h, w)`, repeated over frames, into the latents of a window, `(4, F, h,
    w)`.

    `conditioning (9, F, h, w)`, `audio (F, S, D)`: float32. `on_step` is called after each step
    with the number of steps done and their total. Raises `InputError` if shapes disagree.
    """
    _, frames, height, width = conditioning.shape
    noise_shape = (1, LATENT_CHANNELS, 1, height, width)
    if noise.shape != noise_shape or len(audio) != frames:
        raise InputError(
            f"noise {noise.shape}, conditioning "
            f"{conditioning.shape} and audio {audio.shape} do not fit"
        )
    latents = np.ascontiguousarray(np.repeat(noise[0], frames, axis=1), np.float32)
    denoiser.begin(latents, conditioning, audio, plan.guidance)
    steps = zip(plan.schedule, plan.full, strict=True)
    for done, (step, full) in enumerate(steps, start=1):
        denoiser.step(step.timestep, step.coefficients, cached=not full)
        if on_step is not None:
            on_step(done, len(plan.schedule))
    return denoiser.latents()


def initial_noise(seed: int, height: int, width: int) -> Float32Array:
    """Returns the noise latent of a run, float32 `(1, 4, 1, height, width)`, standard normal, from
    PCG64(`seed`). Drawn in double precision and rounded, so that the values do not depend on
    NumPy's float32 sampler.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal((1, LATENT_CHANNELS, 1, height, width)).astype(np.float32)


def conditioning(
    latent_mask: Float32Array, masked: Float32Array, reference: Float32Array
) -> Float32Array:
    """Returns the network's input for each frame besides noise and audio: float32 `(9, F, h, w)`.

    `latent_mask (h, w)`: 1 = kept. `masked`, `reference (F, 4, h, w)`: scaled latents of masked and
    of whole images.
    """
    mask = np.broadcast_to(latent_mask, (len(masked), 1, *latent_mask.shape))
    stacked = np.concatenate([mask, masked, reference], axis=1, dtype=np.float32)
    return np.ascontiguousarray(stacked.transpose(1, 0, 2, 3))
