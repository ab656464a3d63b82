"""The clock of a clip: stamps become times from 0, and pictures a constant rate. All times are exact seconds.

A picture is on screen until the next one's time. Output picture k is the one on screen in the middle of its interval,
at (k + ½) / fps, as FFmpeg's `fps` filter has it. The output lasts as long as the source, rounded to whole pictures.

Clocks are reset where recordings were joined. That is assumed where a stamp goes back by `BACK_S` or more, or on by
`FORWARD_S` or more if the container allows resets (MPEG-TS, Ogg), or to a time after the end that the file states.
What follows then begins directly, or where `joints` has it. Any other step on is a picture held, or a gap in the sound.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import lcm
from typing import Generic, TypeVar, cast

import av
from av.container import InputContainer
from av.format import Flags
from av.video.stream import VideoStream

from latentsync_trt.config import MODEL_FPS

T = TypeVar("T")

# PyAV's types have the flags themselves as values.
_RESETS, _NO_STAMPS = cast(int, Flags.ts_discont.value), cast(int, Flags.no_timestamps.value)

BACK_S = Fraction(1)
"""A clock that goes back by this or more was reset; less means pictures out of order or overlapping sound."""

FORWARD_S = Fraction(10)
"""FFmpeg's own limit for containers with resets. No held picture is taken for a reset below this."""

LONGEST_S = Fraction(3600)
"""A step on by this or more is a reset where the file does not state its end: most likely, the stamp is damaged."""

JITTER_S = Fraction(1, 25)
"""Stamps of sound less than this off the count of samples are not followed: each correction would be heard as a click,
and 40 ms are not seen as late or early (ITU-R BT.1359)."""

_RATES_AGREE = Fraction(1, 100_000)
_FINEST_PER_S = 1_000_000

_SHORTEST_S = Fraction(1, 25)
"""Of a picture whose stated duration is not used or not known."""

HELD_S = Fraction(1, 2)
"""If less than this is missing at the end of a video, its last picture is held: the sound is merely padded."""


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A picture, or samples, and its time in the output."""

    time_s: Fraction
    duration_s: Fraction
    item: T

    @property
    def end_s(self) -> Fraction:
        """When it ends."""
        return self.time_s + self.duration_s


class Clock:
    """Turns the stamps of one stream into times, in the order of presentation.

    Args:
        start_s: time of the first stamp.
        origin_s: stamp at time 0, where that is known; else the first stamp is at `start_s`.
        jitter_s: a stamp less than this off what the one before implies counts as exact.
        resets: whether the container allows steps on that are no gaps.
        end_s: the last stamp plus its duration, as the file states it; None if it does not.
        origins: gives the stamps at time 0, minus that at the start, sorted; called at the first reset.
    """

    def __init__(
        self,
        start_s: Fraction = Fraction(0),
        *,
        origin_s: Fraction | None = None,
        jitter_s: Fraction = Fraction(0),
        resets: bool = False,
        end_s: Fraction | None = None,
        origins: Callable[[], Sequence[Fraction]] = tuple,
    ) -> None:
        self._origin_s, self._jitter_s = origin_s, jitter_s
        self._may_reset, self._stated_end_s = resets, end_s
        self._first_origin_s, self._origins = origin_s or Fraction(0), cache(origins)
        self.resets = 0
        self._next_s = self._end_s = start_s
        self._latest_s: Fraction | None = None

    def advance(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """The time of the next picture or samples; without a stamp, it follows directly."""
        time_s = self._next_s if stamp_s is None else self._time_of(stamp_s)
        self._next_s = time_s + duration_s
        self._end_s = max(self._end_s, self._next_s)
        self._latest_s = time_s if self._latest_s is None else max(self._latest_s, time_s)
        return time_s

    def plausible(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """`duration_s`, or what the file leaves for it if it is far more than that: most likely, it is damaged."""
        if stamp_s is None or self._stated_end_s is None:
            return min(duration_s, LONGEST_S)
        left_s = max(self._stated_end_s - stamp_s, _SHORTEST_S)
        return duration_s if duration_s < left_s + FORWARD_S else left_s

    def _time_of(self, stamp_s: Fraction) -> Fraction:
        if self._origin_s is None:
            self._origin_s = self._first_origin_s = stamp_s - self._next_s
        time_s = stamp_s - self._origin_s
        if time_s == self._next_s:  # as nearly all do
            return time_s
        if self._is_reset(time_s, stamp_s):
            self.resets += 1
            self._origin_s = self._origin_after(stamp_s - self._end_s)
            time_s = stamp_s - self._origin_s
        return self._next_s if abs(time_s - self._next_s) < self._jitter_s else time_s

    def _origin_after(self, direct_s: Fraction) -> Fraction:
        """The other known origin that is nearest to `direct_s`, with which the stream follows itself directly."""
        known = self._origins()
        at = bisect(known, direct_s - self._first_origin_s)
        near = {self._first_origin_s + origin_s for origin_s in known[max(at - 1, 0) : at + 1]} - {self._origin_s}
        nearest_s = min(near, key=lambda origin_s: abs(origin_s - direct_s), default=direct_s)
        return nearest_s if abs(nearest_s - direct_s) < LONGEST_S else direct_s

    def _is_reset(self, time_s: Fraction, stamp_s: Fraction) -> bool:
        if self._latest_s is None:
            return False
        if time_s <= self._latest_s - BACK_S:
            return True
        step_s = time_s - self._next_s
        if self._stated_end_s is None:
            return step_s >= (FORWARD_S if self._may_reset else LONGEST_S)
        return step_s >= FORWARD_S and (self._may_reset or stamp_s > self._stated_end_s)


def clock_of(
    container: InputContainer,
    start_s: Fraction = Fraction(0),
    *,
    origin_s: Fraction | None = None,
    jitter_s: Fraction = Fraction(0),
    origins: Callable[[], Sequence[Fraction]] = tuple,
) -> Clock:
    """A clock for one stream of an open file, with what the file states; arguments as `Clock`."""
    resets = bool(container.format.flags & _RESETS)
    end_s = stated_end_s(container)
    return Clock(start_s, origin_s=origin_s, jitter_s=jitter_s, resets=resets, end_s=end_s, origins=origins)


def stated_end_s(container: InputContainer) -> Fraction | None:
    """The last stamp plus its duration over all streams, as the file states it."""
    if not container.duration:
        return None
    return Fraction((container.start_time or 0) + container.duration, av.time_base)


def frames_per_s(stream: VideoStream) -> Fraction | None:
    """The mean rate, the model's of a single picture; for 59.9401 of coarse stamps, the usual rate that is meant."""
    if stream.frames == 1:
        return Fraction(MODEL_FPS)
    rate = stream.guessed_rate or stream.base_rate
    if not stream.container.format.flags & _NO_STAMPS:  # with raw H.264, FFmpeg has an average of 25 for any rate
        rate = stream.average_rate or rate
    if not rate:
        return None
    usual = (Fraction(round(rate)), Fraction(1000 * round(rate * Fraction(1001, 1000)), 1001))
    return next((one for one in usual if abs(one - rate) <= rate * _RATES_AGREE), Fraction(rate))


def period_s(stream: VideoStream) -> Fraction:
    """Seconds between pictures whose durations are missing."""
    rate = frames_per_s(stream)
    return 1 / rate if rate else _SHORTEST_S


def time_base_of(stream: VideoStream) -> Fraction | None:
    """The stream's own unit of time, or a part of it in which the period is exact, as 1/1000 s of Matroska is not."""
    unit_s, rate = stream.time_base, frames_per_s(stream)
    if unit_s is None or rate is None or (1 / rate / unit_s).denominator == 1:
        return unit_s
    common = lcm(unit_s.denominator, rate.numerator)
    return Fraction(1, common) if common <= _FINEST_PER_S else unit_s


def on_grid(pictures: Iterable[Timed[T]], stream: VideoStream) -> Iterator[Timed[T]]:
    """Moves times that a container's coarse stamps have rounded to the nearest multiple of the exact period."""
    unit_s, period = stream.time_base, period_s(stream)
    if unit_s is None or (period / unit_s).denominator == 1 or period < 2 * unit_s:
        yield from pictures
        return
    last_s = Fraction(-1)
    for picture in pictures:
        exact_s = nearest(picture.time_s, 1 / period) * period
        time_s = exact_s if last_s < exact_s and abs(exact_s - picture.time_s) < unit_s else picture.time_s
        rounded = abs(picture.duration_s - period) < unit_s
        yield Timed(time_s, period if rounded else picture.duration_s, picture.item)
        last_s = time_s


def on_clock(
    pictures: Iterable[tuple[Fraction | None, Fraction | None, T]], clock: Clock, period_s: Fraction
) -> Iterator[Timed[T]]:
    """Assigns strictly increasing times to pictures; one that is not later than the one before is dropped.

    Args:
        pictures: each with its stamp and its duration; either may be missing.
        period_s: the duration where it is missing.
    """
    last_s: Fraction | None = None
    for stamp_s, stated_s, item in pictures:
        duration_s = clock.plausible(stamp_s, stated_s or period_s)
        time_s = clock.advance(stamp_s, duration_s)
        if last_s is None or time_s > last_s:
            last_s = time_s
            yield Timed(time_s, duration_s, item)


def at_constant_rate(pictures: Iterable[Timed[T]], fps: Fraction | int) -> Iterator[T]:
    """Repeats or drops pictures to get `fps` per second from time 0, at least one if there is any.

    Holds two pictures at a time. Repeated pictures are the same object. The first picture is shown before its time,
    too.
    """
    index = 0
    current: Timed[T] | None = None
    for following in pictures:
        while current is not None and index < nearest(following.time_s, fps):
            yield current.item
            index += 1
        current = following
    if current is None:
        return
    while index < max(1, nearest(current.end_s, fps)):
        yield current.item
        index += 1


def nearest(time_s: Fraction, per_s: Fraction | int) -> int:
    """The picture or sample whose time is nearest, the later of two equally near."""
    # In integers: ten times as fast, for some hundred thousand packets.
    above, below = time_s.numerator * per_s.numerator, time_s.denominator * per_s.denominator
    return (2 * above + below) // (2 * below)


def frames_in(duration_s: Fraction | None, fps: Fraction | int) -> int | None:
    """Number of pictures from `at_constant_rate` for a video of `duration_s`; None if that is unknown."""
    return None if duration_s is None else max(1, nearest(duration_s, fps))


def is_held(missing_s: Fraction) -> bool:
    """Whether a video that ends `missing_s` early holds its last picture."""
    return missing_s < HELD_S
