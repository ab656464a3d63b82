"""The denoising loop, over denoisers whose answer is known; which steps are full and cached."""

from collections.abc import Sequence

import numpy as np
import pytest

from latentsync_trt.diffusion import cache_plan, conditioning, ddim_schedule, denoise, initial_noise

FLOAT32_LOOP = 1e-5
"""Twenty steps of float32 rounding."""
FRAMES, HEIGHT, WIDTH = 3, 4, 5
SLOPE = 0.3


class LinearDenoiser:
    """Predicts SLOPE × latents on full steps; on cached ones again what the last full step predicted."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def begin(self, *window):
        self.started = window
        self._x, self._eps = window[0], np.zeros_like(window[0])

    def step(self, timestep, coefficients, *, cached):
        self.calls.append((timestep, cached))
        if not cached:
            self._eps = np.float32(SLOPE) * self._x
        self._x = coefficients[0] * self._x + coefficients[1] * self._eps

    def latents(self):
        return self._x


@pytest.fixture
def inputs() -> dict[str, np.ndarray]:
    return {
        "noise": initial_noise(1, HEIGHT, WIDTH),
        "conditioning": np.zeros((9, FRAMES, HEIGHT, WIDTH), np.float32),
        "audio": np.zeros((FRAMES, 50, 8), np.float32),
    }


def run(inputs, steps=20, interval=1, **others):
    denoiser = LinearDenoiser()
    schedule = ddim_schedule(steps)
    result = denoise(denoiser, **inputs, guidance=1.5, schedule=schedule, plan=cache_plan(steps, interval), **others)
    return result, denoiser, schedule


def test_loop_equals_the_closed_form(inputs):
    result, _, schedule = run(inputs)
    factor = np.prod([s.coefficients[0] + SLOPE * s.coefficients[1] for s in schedule], dtype=np.float64)
    wanted = np.broadcast_to(factor * inputs["noise"][0], (4, FRAMES, HEIGHT, WIDTH))
    assert result.shape == wanted.shape
    assert np.abs(result - wanted).max() <= FLOAT32_LOOP * np.abs(wanted).max()


def test_inputs_reach_the_denoiser_whole(inputs):
    _, denoiser, _ = run(inputs)
    latents, *others = denoiser.started
    assert latents.flags.c_contiguous and latents.dtype == np.float32
    assert np.array_equal(latents[:, 2], inputs["noise"][0, :, 0])
    assert others == [inputs["conditioning"], inputs["audio"], 1.5]


def test_plan_decides_which_steps_are_cached(inputs):
    _, denoiser, _ = run(inputs, steps=5, interval=2)
    assert [cached for _, cached in denoiser.calls] == [False, True, False, True, False]


def test_noise_is_the_seeds_own():
    noise = initial_noise(1247, 64, 64)
    assert np.array_equal(noise, initial_noise(1247, 64, 64))
    assert not np.allclose(noise, initial_noise(1248, 64, 64))
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    # A change here changes the picture of every user who names a seed.
    assert np.allclose(initial_noise(0, 1, 1).ravel(), [0.12573022, -0.13210486, 0.64042265, 0.10490012], atol=1e-7)


def test_conditioning_is_mask_masked_reference():
    mask = np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(HEIGHT, WIDTH)
    masked, reference = np.random.default_rng(2).standard_normal((2, FRAMES, 4, HEIGHT, WIDTH), np.float32)
    found = conditioning(mask, masked, reference)
    assert found.shape == (9, FRAMES, HEIGHT, WIDTH)
    assert found.dtype == np.float32
    assert (found[0] == mask).all()
    assert np.array_equal(found[1:5, 2], masked[2])
    assert np.array_equal(found[5:, 2], reference[2])


@pytest.mark.parametrize(
    ("interval", "full"), [(1, range(7)), (3, (0, 3, 6)), (9, (0,)), ((0, 1, 4), (0, 1, 4))], ids=str
)
def test_steps_of_the_interval_or_of_the_list_run_the_whole_network(
    interval: int | tuple[int, ...], full: Sequence[int]
) -> None:
    assert [step for step, is_full in enumerate(cache_plan(7, interval)) if is_full] == [*full]
