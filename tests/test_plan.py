"""Which steps are full, cached, guided, and what a plan costs."""

import pytest

from latentsync_trt.diffusion.loop import PlannedStep, cache_plan
from latentsync_trt.errors import InputError


def full(plan: tuple[PlannedStep, ...]) -> list[int]:
    return [number for number, step in enumerate(plan) if step.full]


def guided(plan: tuple[PlannedStep, ...]) -> list[int]:
    return [number for number, step in enumerate(plan) if step.guided]


def test_every_third_step_is_full_and_every_step_guided() -> None:
    plan = cache_plan(7, 3)
    assert (len(plan), full(plan), guided(plan)) == (7, [0, 3, 6], list(range(7)))


def test_an_interval_of_one_and_one_beyond_the_end() -> None:
    assert full(cache_plan(4, 1)) == [0, 1, 2, 3]
    assert full(cache_plan(3, 20)) == [0]


def test_a_list_overrides_the_interval() -> None:
    assert full(cache_plan(20, (0, 1, 2, 5, 9, 14))) == [0, 1, 2, 5, 9, 14]


@pytest.mark.parametrize("interval", [0, -3])
def test_impossible_intervals_are_refused(interval: int) -> None:
    with pytest.raises(InputError, match="cache-interval"):
        cache_plan(5, interval)


@pytest.mark.parametrize(
    ("steps", "interval", "wanted"),
    [
        (20, (0.0, 1.0), range(20)),
        (20, (0.2, 0.8), range(4, 16)),
        (10, (0.7, 1.0), range(7, 10)),  # 0.7 × 10 is more than 7 in binary fractions
        (10, (0.1, 0.3), range(1, 3)),  # and 0.1 × 3 more than 0.3
        (8, (0.2, 0.8), range(1, 7)),
        (4, (0.3, 0.301), range(1, 2)),
        (1, (0.9, 1.0), range(1)),
    ],
)
def test_steps_that_overlap_the_interval_are_guided(steps: int, interval: tuple[float, float], wanted: range) -> None:
    assert guided(cache_plan(steps, 3, guidance_interval=interval)) == list(wanted)


def test_the_whole_network_runs_where_guidance_starts_or_ends() -> None:
    plan = cache_plan(20, 3, guidance_interval=(0.2, 0.8))
    assert full(plan) == [0, 3, 4, 7, 10, 13, 16, 19]
    plan = cache_plan(20, (0, 9), guidance_interval=(0.2, 0.8))
    assert full(plan) == [0, 4, 9, 16]
