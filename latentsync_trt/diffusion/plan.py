"""Which steps run the whole network and which reuse the inner features of the last whole one. Pure."""

from latentsync_trt.errors import InputError


def cache_plan(steps: int, interval: int) -> tuple[bool, ...]:
    """One bool a step, True = the whole network: steps 0, interval, 2·interval, …; interval 1 = every step.

    Raises:
        InputError: `interval` is below 1.
    """
    if interval < 1:
        raise InputError(f"cache interval {interval}: at least 1 is needed")
    return tuple(index % interval == 0 for index in range(steps))
