"""DPM-Solver++(2M) as coefficients of the step, against diffusers' own scheduler."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler

from latentsync_trt.diffusion.scheduler import dpmpp_schedule

SOLVER_TOLERANCE = 1e-5
"""Relative, after every step: diffusers computes its coefficients in float32."""

# diffusers gives NumPy a tensor in a way that NumPy 2 has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

Predict = Callable[[int, np.ndarray], np.ndarray]


def diffusers_solver(steps: int) -> Any:
    """As the release configures its noise schedule; `set_alpha_to_one = False` is "sigma_min" here."""
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


def assert_same_trajectory(latents: np.ndarray, predict: Predict, steps: int) -> None:
    """`predict` gives the noise in latents at step number i; every step is compared."""
    solver, wanted, history = diffusers_solver(steps), torch.from_numpy(latents.copy()), np.zeros_like(latents)
    schedule = dpmpp_schedule(steps)
    assert [step.timestep for step in schedule] == solver.timesteps.tolist()
    for number, step in enumerate(schedule):
        c_x, c_eps, c_history, d_x, d_eps = step.coefficients
        eps = predict(number, latents)
        latents, history = c_x * latents + c_eps * eps + c_history * history, d_x * latents + d_eps * eps
        noise = torch.from_numpy(predict(number, wanted.numpy()))
        wanted = solver.step(noise, step.timestep, wanted).prev_sample
        assert latents.dtype == np.float32
        assert np.abs(latents - wanted.numpy()).max() <= SOLVER_TOLERANCE * np.abs(wanted.numpy()).max()


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 10, 14, 15, 20, 25, 50])
def test_trajectory_of_a_linear_model_is_the_same(steps: int) -> None:
    random = np.random.default_rng(steps)
    latents = random.standard_normal((2, 4, 3, 8, 8), np.float32)
    mixing = random.standard_normal((8, 8), np.float32) / np.float32(6)
    assert_same_trajectory(latents, lambda _, now: now @ mixing, steps)


@pytest.mark.parametrize("steps", [8, 20])
def test_trajectory_of_recorded_predictions_is_the_same(reference: Path, steps: int) -> None:
    with np.load(reference / "small" / "ddim.npz") as file:
        latents, predictions = file["x_T"], file["eps"]
    assert len(predictions) >= steps
    assert_same_trajectory(latents, lambda number, _: predictions[number], steps)
