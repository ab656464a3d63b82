"""The sampler's coefficients reproduce the release's DDIM."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt.diffusion import (
    SOLVERS,
    alphas_cumprod,
    ddim_schedule,
    timesteps,
)

TRAJECTORY_TOLERANCE = 1e-5
SCHEDULE_TOLERANCE = 1e-5
"""The recorded products of 1000 factors were summed up in float32."""


@pytest.fixture(scope="module")
def recorded(reference: Path) -> dict[str, np.ndarray]:
    with np.load(reference / "small" / "ddim.npz") as file:
        return dict(file)


@pytest.mark.parametrize("steps", [4, 10, 20, 50])
def test_timesteps_match_the_release(recorded, steps):
    assert list(timesteps(steps)) == recorded[f"timesteps_{steps}"].tolist()
    assert [step.timestep for step in ddim_schedule(steps)] == list(timesteps(steps))


def test_noise_levels_match_the_release(recorded):
    assert np.allclose(
        alphas_cumprod(), recorded["alphas_cumprod"], rtol=SCHEDULE_TOLERANCE, atol=0
    )


def test_trajectory_matches_the_release(recorded):
    latents = recorded["x_T"]
    schedule = ddim_schedule(len(recorded["eps"]))
    for step, eps, wanted in zip(schedule, recorded["eps"], recorded["trajectory"], strict=True):
        c_x, c_eps, *memory = step.coefficients
        latents = c_x * latents + c_eps * eps
        assert memory == [0, 0, 0]
        assert latents.dtype == np.float32
        assert np.abs(latents - wanted).max() <= TRAJECTORY_TOLERANCE * np.abs(wanted).max()


def error_on_gaussians(solver: str, steps: int) -> float:
    """Relative error on numbers from known Gaussians, of which both the noise and the exact answer
    can be written down.

    Means are 0.8 in size, variances from 0.001, almost settled by what is known, to 2.
    """
    random = np.random.default_rng(6)
    signal = alphas_cumprod()
    noise, mean = random.standard_normal((2, 4000))
    mean = 0.8 * mean
    variance = np.exp(random.uniform(np.log(1e-3), np.log(2), 4000))
    spread = np.sqrt(signal[-1] * variance + 1 - signal[-1])
    exact = mean + np.sqrt(variance) / spread * (noise - signal[-1] ** 0.5 * mean)
    x = noise
    history = np.zeros_like(noise)
    for step in SOLVERS[solver](steps):
        level = signal[step.timestep]
        eps = (1 - level) ** 0.5 * (x - level**0.5 * mean) / (level * variance + 1 - level)
        c_x, c_eps, c_history, d_x, d_eps = step.coefficients.astype(np.float64)
        x, history = c_x * x + c_eps * eps + c_history * history, d_x * x + d_eps * eps
    return float(np.sqrt(np.mean((x - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize(("steps", "share"), [(8, 0.8), (10, 0.8), (12, 0.8), (20, 1.0)])
def test_dpmpp_comes_nearer_than_ddim_where_the_answer_is_known(steps, share):
    assert error_on_gaussians("dpmpp", steps) < share * error_on_gaussians("ddim", steps)
