"""Which steps run the whole network, which reuse its inner features, and which are guided. Pure."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from latentsync_trt.config import SyncOptions
from latentsync_trt.values import check_cache_interval, parse_guidance_interval

EVERYWHERE = (0.0, 1.0)
"""The guidance interval that guides every step."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """How one step runs. `full`: the whole network, otherwise its last layer only; `guided`: with guidance."""

    full: bool
    guided: bool = True


def plan_for(options: SyncOptions) -> tuple[PlannedStep, ...]:
    """The plan of a run with `options`."""
    sampling = options.sampling
    return cache_plan(
        sampling.steps, sampling.cache_interval, guidance_interval=options.guidance_interval or EVERYWHERE
    )


def cache_plan(
    steps: int, interval: int | tuple[int, ...], *, guidance_interval: tuple[float, float] = EVERYWHERE
) -> tuple[PlannedStep, ...]:
    """How each of `steps` steps runs.

    Guided and unguided steps cannot use each other's inner features, so the whole network runs where guidance starts or
    ends.

    Args:
        interval: every `interval`-th step is full, counted from the first one and anew where guidance starts or ends;
            or the numbers of the full steps, from 0.
        guidance_interval: start and end, as fractions of the schedule; step i of n covers i/n to (i + 1)/n, and is
            guided if that overlaps the interval.

    Raises:
        InputError: `interval` is below 1, or its numbers omit the first step, are not in order or beyond the last; the
            guidance interval is empty or not within 0 to 1.
    """
    check_cache_interval(interval, steps)
    guided = _guided_steps(steps, guidance_interval)
    plan: list[PlannedStep] = []
    switched_at = 0
    for step in range(steps):
        if plan and plan[-1].guided != (step in guided):
            switched_at = step
        due = step in interval if isinstance(interval, tuple) else (step - switched_at) % interval == 0
        plan.append(PlannedStep(due or step == switched_at, step in guided))
    return tuple(plan)


def _guided_steps(steps: int, interval: tuple[float, float]) -> range:
    # Decimal, not binary fractions: 0.7 of 10 steps is exactly 7.
    start, end = (Fraction(str(float(part))) * steps for part in parse_guidance_interval(interval))
    return range(floor(start), ceil(end))
