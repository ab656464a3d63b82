"""Clocks of open files."""

from fractions import Fraction
from typing import cast

import av
from av.container import InputContainer
from av.format import Flags

from latentsync_trt.media.timing import Clock

# PyAV's types have the flags themselves as values.
_RESETS = cast(int, Flags.ts_discont.value)


def clock_of(
    container: InputContainer,
    start_s: Fraction = Fraction(0),
    *,
    origin_s: Fraction | None = None,
    jitter_s: Fraction = Fraction(0),
) -> Clock:
    """A clock for one stream of an open file, which knows what the file states; arguments as `Clock`."""
    resets = bool(container.format.flags & _RESETS)
    return Clock(start_s, origin_s=origin_s, jitter_s=jitter_s, resets=resets, end_s=stated_end_s(container))


def stated_end_s(container: InputContainer) -> Fraction | None:
    """The last stamp plus its duration over all streams, as the file states it."""
    if not container.duration:
        return None
    return Fraction((container.start_time or 0) + container.duration, av.time_base)
