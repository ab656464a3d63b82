"""The sampler's coefficients reproduce the release's DDIM."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.diffusion.scheduler import MAX_STEPS, TRAINING_STEPS, alphas_cumprod, ddim_schedule, timesteps
from latentsync_trt.errors import InputError

TRAJECTORY_TOLERANCE = 1e-5
SCHEDULE_TOLERANCE = 1e-5
"""The recorded products of 1000 factors were summed up in float32."""
ROUNDING = 1e-6
"""Coefficients are float32."""


@pytest.fixture(scope="module")
def recorded(reference: Path) -> dict[str, np.ndarray]:
    with np.load(reference / "small" / "ddim.npz") as file:
        return dict(file)


@pytest.mark.parametrize("steps", [4, 10, 20, 50])
def test_timesteps_match_the_release(recorded, steps):
    assert list(timesteps(steps)) == recorded[f"timesteps_{steps}"].tolist()
    assert [step.timestep for step in ddim_schedule(steps)] == list(timesteps(steps))


def test_noise_levels_match_the_release(recorded):
    assert np.allclose(alphas_cumprod(), recorded["alphas_cumprod"], rtol=SCHEDULE_TOLERANCE, atol=0)


def test_trajectory_matches_the_release(recorded):
    latents = recorded["x_T"]
    schedule = ddim_schedule(len(recorded["eps"]))
    for step, eps, wanted in zip(schedule, recorded["eps"], recorded["trajectory"], strict=True):
        c_x, c_eps, *memory = step.coefficients
        latents = c_x * latents + c_eps * eps
        assert memory == [0, 0, 0]
        assert latents.dtype == np.float32
        assert np.abs(latents - wanted).max() <= TRAJECTORY_TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("steps", [1, 3, 7, 20, MAX_STEPS])
def test_the_true_noise_leads_along_the_noise_levels(steps):
    """With eps exact, every step must land on the same clean image and noise, mixed for the next level."""
    clean, noise = np.random.default_rng(4).standard_normal((2, 1000))
    signal, spacing = alphas_cumprod(), TRAINING_STEPS // steps
    for step in ddim_schedule(steps):
        now, then = signal[step.timestep], signal[max(step.timestep - spacing, 0)]
        c_x, c_eps = step.coefficients[:2].astype(np.float64)
        mixed = c_x * (now**0.5 * clean + (1 - now) ** 0.5 * noise) + c_eps * noise
        assert np.allclose(mixed, then**0.5 * clean + (1 - then) ** 0.5 * noise, atol=10 * ROUNDING)


@pytest.mark.parametrize("steps", [0, -1, MAX_STEPS + 1])
def test_impossible_step_counts_are_refused(steps):
    with pytest.raises(InputError, match="denoising steps"):
        ddim_schedule(steps)


def test_shared_table_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        alphas_cumprod()[0] = 1
