"""Resamples to a constant frame rate by time stamps. Pure; all times are exact seconds.

Output picture k, at time k/fps, is the nearest source picture in time, the earlier one of two equally near. The output
lasts as long as the source, rounded to whole pictures.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

T = TypeVar("T")

DISCONTINUITY_S = Fraction(1)
"""A clock that goes back by this or more was reset (joined recordings); less means pictures out of order."""


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A picture and its time on the video's own clock, which is 0 at the first picture."""

    time_s: Fraction
    duration_s: Fraction
    item: T


def on_own_clock(
    pictures: Iterable[tuple[Fraction | None, Fraction | None, T]], period_s: Fraction
) -> Iterator[Timed[T]]:
    """Assigns strictly increasing times from 0 to pictures in presentation order.

    A missing time is one `period_s` after the previous picture's. A picture not later than the previous one is dropped.
    If the clock goes back by `DISCONTINUITY_S` or more, the next picture comes one period later.

    Args:
        pictures: each with its time on the stream's own clock and its duration; either may be missing.
    """
    origin_s: Fraction | None = None
    last_s = -period_s
    for stamp_s, duration_s, item in pictures:
        time_s = last_s + period_s
        if stamp_s is not None:
            if origin_s is None or stamp_s - origin_s <= last_s - DISCONTINUITY_S:
                origin_s = stamp_s - time_s
            time_s = stamp_s - origin_s
        if time_s > last_s:
            last_s = time_s
            yield Timed(time_s, duration_s or period_s, item)


def at_constant_rate(pictures: Iterable[Timed[T]], fps: int) -> Iterator[T]:
    """Repeats or drops pictures to get `fps` per second, at least one if there is any.

    Holds two pictures at a time. Repeated pictures are the same object.
    """
    index = 0
    current: Timed[T] | None = None
    for following in pictures:
        while current is not None and 2 * Fraction(index, fps) <= current.time_s + following.time_s:
            yield current.item
            index += 1
        current = following
    if current is None:
        return
    half_s = Fraction(1, 2 * fps)
    while index == 0 or Fraction(index, fps) + half_s < current.time_s + current.duration_s:
        yield current.item
        index += 1


def frames_in(duration_s: Fraction | None, fps: int) -> int | None:
    """Number of pictures from `at_constant_rate` for a video of `duration_s`; None if that is unknown."""
    return None if duration_s is None else max(1, round(duration_s * fps))
