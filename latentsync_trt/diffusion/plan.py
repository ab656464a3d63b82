"""Which steps run the whole network and which reuse its inner features. Pure."""

from latentsync_trt.errors import InputError


def cache_plan(steps: int, interval: int) -> tuple[bool, ...]:
    """For each of `steps` steps: True = the whole network runs. Every `interval`-th does, from the first on.

    Raises:
        InputError: `interval` is below 1.
    """
    if interval < 1:
        raise InputError(f"cache interval {interval}: the whole network must run every N-th step, N at least 1")
    return tuple(step % interval == 0 for step in range(steps))
