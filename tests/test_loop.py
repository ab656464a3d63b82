"""The denoising loop, over denoisers whose answer is known; which steps are full, cached and guided."""

import numpy as np
import pytest

from latentsync_trt.diffusion import PlannedStep, cache_plan, conditioning, ddim_schedule, denoise, initial_noise
from latentsync_trt.types import WindowBatch

FLOAT32_LOOP = 1e-5
"""Twenty steps of float32 rounding."""
WINDOWS, FRAMES, HEIGHT, WIDTH = 2, 3, 4, 5
SLOPE = 0.3


class LinearDenoiser:
    """Predicts SLOPE × latents on full steps; on cached ones again what the last full step predicted."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []
        self.guided: list[bool] = []
        self.started: WindowBatch

    def begin(self, batch):
        self.started = batch
        self._x, self._eps = batch.latents, np.zeros_like(batch.latents)

    def step(self, timestep, coefficients, *, cached, guided):
        self.calls.append((timestep, cached))
        self.guided.append(guided)
        if not cached:
            self._eps = np.float32(SLOPE) * self._x
        self._x = coefficients[0] * self._x + coefficients[1] * self._eps

    def latents(self):
        return self._x


@pytest.fixture
def inputs() -> dict[str, np.ndarray]:
    return {
        "noise": initial_noise(1, HEIGHT, WIDTH),
        "conditioning": np.zeros((WINDOWS, 9, FRAMES, HEIGHT, WIDTH), np.float32),
        "audio": np.zeros((WINDOWS, FRAMES, 50, 8), np.float32),
    }


def run(inputs, steps=20, interval=1, **others):
    denoiser = LinearDenoiser()
    schedule = ddim_schedule(steps)
    result = denoise(denoiser, **inputs, guidance=1.5, schedule=schedule, plan=cache_plan(steps, interval), **others)
    return result, denoiser, schedule


def test_loop_equals_the_closed_form(inputs):
    result, _, schedule = run(inputs)
    factor = np.prod([s.coefficients[0] + SLOPE * s.coefficients[1] for s in schedule], dtype=np.float64)
    wanted = np.broadcast_to(factor * inputs["noise"], (WINDOWS, 4, FRAMES, HEIGHT, WIDTH))
    assert result.shape == wanted.shape
    assert np.abs(result - wanted).max() <= FLOAT32_LOOP * np.abs(wanted).max()


def test_inputs_reach_the_denoiser_whole(inputs):
    _, denoiser, _ = run(inputs)
    batch = denoiser.started
    assert batch.latents.flags.c_contiguous and batch.latents.dtype == np.float32
    assert np.array_equal(batch.latents[1, :, 2], inputs["noise"][0, :, 0])
    assert batch.conditioning is inputs["conditioning"]
    assert batch.audio is inputs["audio"]
    assert batch.guidance == 1.5


def test_plan_decides_which_steps_are_cached_and_guided(inputs):
    schedule, denoiser = ddim_schedule(5), LinearDenoiser()
    plan = cache_plan(5, 2, guidance_interval=(0.2, 0.8))
    denoise(denoiser, **inputs, guidance=1.5, schedule=schedule, plan=plan)
    assert denoiser.guided == [False, True, True, True, False]
    assert [cached for _, cached in denoiser.calls] == [False, False, True, False, False]


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
    masked, reference = np.random.default_rng(2).standard_normal((2, WINDOWS, FRAMES, 4, HEIGHT, WIDTH), np.float32)
    found = conditioning(mask, masked, reference)
    assert found.shape == (WINDOWS, 9, FRAMES, HEIGHT, WIDTH)
    assert found.dtype == np.float32
    assert (found[:, 0] == mask).all()
    assert np.array_equal(found[1, 1:5, 2], masked[1, 2])
    assert np.array_equal(found[1, 5:, 2], reference[1, 2])


def full(plan: tuple[PlannedStep, ...]) -> list[int]:
    return [number for number, step in enumerate(plan) if step.full]


def guided(plan: tuple[PlannedStep, ...]) -> list[int]:
    return [number for number, step in enumerate(plan) if step.guided]


@pytest.mark.parametrize(
    ("steps", "interval", "wanted"),
    [
        (20, (0.0, 1.0), range(20)),
        (10, (0.7, 1.0), range(7, 10)),  # 0.7 × 10 is more than 7 in binary fractions
        (10, (0.1, 0.3), range(1, 3)),  # and 0.1 × 3 more than 0.3
        (8, (0.2, 0.8), range(1, 7)),
        (4, (0.3, 0.301), range(1, 2)),
    ],
)
def test_steps_that_overlap_the_interval_are_guided(steps: int, interval: tuple[float, float], wanted: range) -> None:
    assert guided(cache_plan(steps, 3, guidance_interval=interval)) == list(wanted)


def test_the_whole_network_runs_where_guidance_starts_or_ends() -> None:
    plan = cache_plan(20, 3, guidance_interval=(0.2, 0.8))
    assert full(plan) == [0, 3, 4, 7, 10, 13, 16, 19]
    assert full(cache_plan(20, (0, 9), guidance_interval=(0.2, 0.8))) == [0, 4, 9, 16]
