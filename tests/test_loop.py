"""The denoising loop, over denoisers whose answer is known; which steps are full and cached."""

from collections.abc import Sequence

import numpy as np
import pytest

from latentsync_trt.diffusion import (
    DenoisingPlan,
    cache_plan,
    conditioning,
    ddim_schedule,
    denoise,
    initial_noise,
)

FLOAT32_LOOP = 1e-5
"""Twenty steps of float32 rounding."""
FRAMES = 3
HEIGHT = 4
WIDTH = 5
SLOPE = 0.3


class LinearDenoiser:
    """Predicts SLOPE × latents on full steps; on cached ones again what the last full step
    predicted.
    """

    def begin(self, *window):
        self.started = window
        self._x = window[0]
        self._eps = np.zeros_like(window[0])

    def step(self, timestep, coefficients, *, cached):
        if not cached:
            self._eps = np.float32(SLOPE) * self._x
        self._x = coefficients[0] * self._x + coefficients[1] * self._eps

    def latents(self):
        return self._x


def test_loop_equals_the_closed_form_and_inputs_reach_the_denoiser_whole():
    noise = initial_noise(1, HEIGHT, WIDTH)
    denoiser = LinearDenoiser()
    schedule = ddim_schedule(20)
    known = np.zeros((9, FRAMES, HEIGHT, WIDTH), np.float32)
    audio = np.zeros((FRAMES, 50, 8), np.float32)
    plan = DenoisingPlan(1.5, schedule, cache_plan(20, 1))
    result = denoise(denoiser, noise, known, audio, plan)
    factor = np.prod(
        [s.coefficients[0] + SLOPE * s.coefficients[1] for s in schedule], dtype=np.float64
    )
    wanted = np.broadcast_to(factor * noise[0], (4, FRAMES, HEIGHT, WIDTH))
    assert result.shape == wanted.shape
    assert np.abs(result - wanted).max() <= FLOAT32_LOOP * np.abs(wanted).max()
    latents, *others = denoiser.started
    assert latents.flags.c_contiguous and latents.dtype == np.float32
    assert np.array_equal(latents[:, 2], noise[0, :, 0])
    assert others == [known, audio, 1.5]


def test_noise_is_the_seeds_own():
    noise = initial_noise(1247, 64, 64)
    assert np.array_equal(noise, initial_noise(1247, 64, 64))
    assert not np.allclose(noise, initial_noise(1248, 64, 64))
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    # A change here changes the picture of every user who names a seed.
    assert np.allclose(
        initial_noise(0, 1, 1).ravel(), [0.12573022, -0.13210486, 0.64042265, 0.10490012], atol=1e-7
    )


def test_conditioning_is_mask_masked_reference():
    mask = np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(HEIGHT, WIDTH)
    masked, reference = np.random.default_rng(2).standard_normal(
        (2, FRAMES, 4, HEIGHT, WIDTH), np.float32
    )
    found = conditioning(mask, masked, reference)
    assert found.shape == (9, FRAMES, HEIGHT, WIDTH)
    assert found.dtype == np.float32
    assert (found[0] == mask).all()
    assert np.array_equal(found[1:5, 2], masked[2])
    assert np.array_equal(found[5:, 2], reference[2])


@pytest.mark.parametrize(
    ("interval", "full"),
    [(1, range(7)), (3, (0, 3, 6)), (9, (0,)), ((0, 1, 4), (0, 1, 4))],
    ids=str,
)
def test_steps_of_the_interval_or_of_the_list_run_the_whole_network(
    interval: int | tuple[int, ...], full: Sequence[int]
) -> None:
    assert [step for step, is_full in enumerate(cache_plan(7, interval)) if is_full] == [*full]
