"""The noise levels that the sampler visits, and the linear update of each step. Pure."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array, Float64Array

TRAINING_STEPS = 1000
_BETA_FIRST, _BETA_LAST = 0.00085, 0.012
_STEPS_OFFSET = 1

# With fewer steps than this, the last DPM-Solver++ step is first-order, which is more stable near the clean image.
_STEPS_FOR_HIGH_ORDER_END = 15

MAX_STEPS = TRAINING_STEPS - _STEPS_OFFSET
"""With the offset, one more step would exceed the last trained noise level."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One sampler update from the noise level of training step `timestep`; see the function `coefficients`."""

    timestep: int
    coefficients: Float32Array


def coefficients(
    c_x: float, c_eps: float, c_history: float = 0.0, d_x: float = 0.0, d_eps: float = 0.0
) -> Float32Array:
    """The coefficients of a step in the order that step graphs take them, float32 `(5,)`.

    `next = c_x·x + c_eps·eps + c_history·history`, `next_history = d_x·x + d_eps·eps`.
    """
    return np.array([c_x, c_eps, c_history, d_x, d_eps], np.float32)


@lru_cache(maxsize=1)
def alphas_cumprod() -> Float64Array:
    """Share of signal variance left after each training step: float64 `(1000,)`, decreasing, read-only.

    The betas are linear in their square root ("scaled linear").
    """
    betas = np.linspace(_BETA_FIRST**0.5, _BETA_LAST**0.5, TRAINING_STEPS) ** 2
    signal = np.cumprod(1.0 - betas, dtype=np.float64)
    signal.flags.writeable = False
    return signal


def solver_schedule(solver: str, steps: int) -> tuple[Step, ...]:
    """The updates of `solver`, "ddim" or "dpmpp".

    Raises:
        InputError: there is no such solver, or `steps` is outside 1 to 999.
    """
    if solver not in _SOLVERS:
        raise InputError(f"solver {solver}: not one of {', '.join(_SOLVERS)}")
    return _SOLVERS[solver](steps)


def timesteps(steps: int, *, trailing: bool = False) -> tuple[int, ...]:
    """The training steps that `steps` sampling steps visit, noisiest first.

    The spacing is "leading" with an offset of 1, or "trailing": from the last training step on.

    Raises:
        InputError: `steps` is outside 1 to 999.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"{steps} denoising steps: the noise schedule allows 1 to {MAX_STEPS}")
    if trailing:
        spacing = TRAINING_STEPS / steps
        return tuple(round(TRAINING_STEPS - i * spacing) - 1 for i in range(steps))
    return tuple(i * (TRAINING_STEPS // steps) + _STEPS_OFFSET for i in reversed(range(steps)))


def ddim_schedule(steps: int) -> tuple[Step, ...]:
    """The updates of deterministic DDIM (Song et al., "Denoising Diffusion Implicit Models", equation 12, σ = 0).

    With ā the signal share now and ā' at the next visited level: x₀ = (x − √(1 − ā)·eps) / √ā and
    next = √ā'·x₀ + √(1 − ā')·eps. The last step goes to training step 0, not to a clean image. DDIM
    has no history, so its three coefficients are 0. Raises as `timesteps`.
    """
    visited = timesteps(steps)
    spacing = TRAINING_STEPS // steps
    signal = alphas_cumprod()
    return tuple(Step(t, _ddim_coefficients(signal[t], signal[max(t - spacing, 0)])) for t in visited)


def dpmpp_schedule(steps: int) -> tuple[Step, ...]:
    """The updates of DPM-Solver++(2M) (Lu et al. 2022, "DPM-Solver++", algorithm 2), which keeps
    the previous estimate of the clean image.

    With α = √ā, σ = √(1 − ā), λ = log(α/σ), the estimate x₀ = (x − σ·eps)/α and h = λ' − λ: next =
    (σ'/σ)·x + α'·(1 − e^−h)·((1 + r)·x₀ − r·p₀), where r = h / (2·g); p₀ and g: the previous x₀ and
    h. r is 0 on the first step, and on the last of fewer than 15.

    The spacing is "trailing" (Lin et al. 2023, "Common Diffusion Noise Schedules and Sample Steps are Flawed"): it
    starts at the noisiest trained level, to match the pure noise that the loop starts from. With few steps, "leading"
    spacing starts at a level where the latents should contain a part of the picture, which shifts its mean. As with
    DDIM, the last step goes to training step 0, not to a clean image. Raises as `timesteps`.
    """
    visited = timesteps(steps, trailing=True)
    signal = alphas_cumprod()
    levels = [float(signal[t]) for t in (*visited, 0)]
    log_ratios = [log(level / (1 - level)) / 2 for level in levels]
    widths = [then - now for now, then in pairwise(log_ratios)]
    updates = []
    for i, timestep in enumerate(visited):
        ends_low = i == steps - 1 and steps < _STEPS_FOR_HIGH_ORDER_END
        weight = 0.0 if i == 0 or ends_low else widths[i] / (2 * widths[i - 1])
        updates.append(Step(timestep, _dpmpp_coefficients(levels[i], levels[i + 1], weight)))
    return tuple(updates)


_SOLVERS = {"ddim": ddim_schedule, "dpmpp": dpmpp_schedule}


def _dpmpp_coefficients(now: float, then: float, weight: float) -> Float32Array:
    """From signal share `now` to `then`; `weight` is the r of `dpmpp_schedule`."""
    # (α'/α)/(σ'/σ) is e^h, so that 1 − e^−h needs no logarithm.
    noise_kept = ((1 - then) / (1 - now)) ** 0.5
    gain = then**0.5 - noise_kept * now**0.5
    from_x, from_eps = now**-0.5, -(((1 - now) / now) ** 0.5)
    ahead = gain * (1 + weight)
    return coefficients(noise_kept + ahead * from_x, ahead * from_eps, -gain * weight, from_x, from_eps)


def _ddim_coefficients(now: float, then: float) -> Float32Array:
    to_clean = (then / now) ** 0.5
    return coefficients(to_clean, (1 - then) ** 0.5 - to_clean * (1 - now) ** 0.5)
