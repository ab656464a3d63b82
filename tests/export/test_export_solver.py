"""DPM-Solver++(2M) as coefficients of the step, against diffusers' own scheduler."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler

from latentsync_trt.diffusion import dpmpp_schedule

SOLVER_TOLERANCE = 1e-5
"""Relative, after every step: diffusers computes its coefficients in float32."""

# diffusers gives NumPy a tensor in a way that NumPy 2 has deprecated.
deprecated = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)


def diffusers_solver(steps: int) -> Any:
    """As the release configures its noise schedule; `set_alpha_to_one = False` is "sigma_min"
    here.
    """
    scheduler = DPMSolverMultistepScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        steps_offset=1,
        timestep_spacing="trailing",
        final_sigmas_type="sigma_min",
    )
    scheduler.set_timesteps(steps)
    return scheduler


@deprecated
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 10, 14, 15, 20, 25, 50])
def test_trajectory_of_a_linear_model_is_the_same(steps: int) -> None:
    random = np.random.default_rng(steps)
    latents = random.standard_normal((2, 4, 3, 8, 8), np.float32)
    mixing = random.standard_normal((8, 8), np.float32) / np.float32(6)
    solver = diffusers_solver(steps)
    wanted = torch.from_numpy(latents.copy())
    history = np.zeros_like(latents)
    schedule = dpmpp_schedule(steps)
    assert [step.timestep for step in schedule] == solver.timesteps.tolist()
    for step in schedule:
        c_x, c_eps, c_history, d_x, d_eps = step.coefficients
        eps = latents @ mixing
        next_latents = c_x * latents + c_eps * eps + c_history * history
        history = d_x * latents + d_eps * eps
        latents = next_latents
        wanted = solver.step(wanted @ torch.from_numpy(mixing), step.timestep, wanted).prev_sample
        assert latents.dtype == np.float32
        assert (
            np.abs(latents - wanted.numpy()).max()
            <= SOLVER_TOLERANCE * np.abs(wanted.numpy()).max()
        )
