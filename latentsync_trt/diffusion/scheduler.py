"""Which noise levels the sampler visits, and the linear update of each step. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array, Float64Array

TRAINING_STEPS = 1000
_BETA_FIRST, _BETA_LAST = 0.00085, 0.012
_STEPS_OFFSET = 1

MAX_STEPS = TRAINING_STEPS - _STEPS_OFFSET
"""With the offset, one step more would ask for a noise level beyond the last one trained."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One update of the sampler.

    `timestep` is the training step whose noise level the latents have before it. `coefficients (5,)` float32 are c_x,
    c_eps, c_history, d_x, d_eps: `next = c_x·x + c_eps·eps + c_history·history`, `next_history = d_x·x + d_eps·eps`.
    """

    timestep: int
    coefficients: Float32Array


@lru_cache(maxsize=1)
def alphas_cumprod() -> Float64Array:
    """Share of signal variance left after each training step: float64 `(1000,)`, falling, read-only.

    The betas are linear in their square root ("scaled linear").
    """
    betas = np.linspace(_BETA_FIRST**0.5, _BETA_LAST**0.5, TRAINING_STEPS) ** 2
    signal = np.cumprod(1.0 - betas, dtype=np.float64)
    signal.flags.writeable = False
    return signal


def timesteps(steps: int) -> tuple[int, ...]:
    """The training steps that `steps` sampling steps visit, noisiest first ("leading" spacing, offset 1).

    Raises:
        InputError: `steps` is outside 1 to 999.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"{steps} denoising steps: the noise schedule has room for 1 to {MAX_STEPS}")
    spacing = TRAINING_STEPS // steps
    return tuple(i * spacing + _STEPS_OFFSET for i in reversed(range(steps)))


def ddim_schedule(steps: int) -> tuple[Step, ...]:
    """The updates of deterministic DDIM (Song et al., "Denoising Diffusion Implicit Models", equation 12, σ = 0).

    With ā the signal share now and ā' at the next visited level:
    x₀ = (x − √(1 − ā)·eps) / √ā and next = √ā'·x₀ + √(1 − ā')·eps. The last step goes to training step 0, not to a
    clean image. DDIM remembers nothing, so the three coefficients of the history are 0.

    Raises:
        InputError: `steps` is outside 1 to 999.
    """
    visited = timesteps(steps)
    spacing = TRAINING_STEPS // steps
    signal = alphas_cumprod()
    return tuple(Step(t, _ddim_coefficients(signal[t], signal[max(t - spacing, 0)])) for t in visited)


def _ddim_coefficients(now: float, then: float) -> Float32Array:
    to_clean = (then / now) ** 0.5
    return np.array([to_clean, (1 - then) ** 0.5 - to_clean * (1 - now) ** 0.5, 0.0, 0.0, 0.0], np.float32)
