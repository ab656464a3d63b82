"""The clock of a clip: stamps become times from 0. All times are exact seconds.

Where recordings were joined, or a stamp is damaged, the clock jumps, and such a file is refused:
back by `BACK_S` or more; on by `FORWARD_S` or more if the container allows resets (MPEG-TS, Ogg) or
states an earlier end; else by `LONGEST_S`. Any other step on is a picture held, or a gap in the
sound.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice, pairwise
from math import lcm
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import av
from av import AudioFrame, VideoFrame, VideoStream
from av.container import InputContainer
from av.format import Flags
from av.stream import Discard, Stream

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.media.files import guarded, open_input

T = TypeVar("T")

# PyAV's types have the flags themselves as values.
RESETS = cast(int, Flags.ts_discont.value)
NO_STAMPS = cast(int, Flags.no_timestamps.value)

BACK_S = Fraction(1)  # less is disorder or overlapping sound
# FFmpeg's own limit for containers with resets. No held picture is taken for a jump below this.
FORWARD_S = Fraction(10)
LONGEST_S = Fraction(3600)

# Stamps of sound less than this off the count of samples are not followed: each correction would be
# heard as a click, and 40 ms are not seen as late or early (ITU-R BT.1359).
JITTER_S = Fraction(1, 25)
_RATES_AGREE = Fraction(1, 100_000)
# A picture that lasts longer, as in a slide show, is repeated: lips must move.
LONGEST_PERIOD_S = Fraction(1, 10)
_MEASURED = 250  # pictures, for the rate
_SHORTEST_S = Fraction(1, 25)  # of a picture whose duration is not stated or not plausible


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A picture, or samples, and its time in the output."""

    time_s: Fraction
    duration_s: Fraction
    item: T

    @property
    def end_s(self) -> Fraction:
        return self.time_s + self.duration_s


def with_next(items: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Each item with the one after it; holds two."""
    for item, following in pairwise(chain(items, (None,))):
        yield cast(T, item), following


def nearest(time_s: Fraction, per_s: Fraction | int) -> int:
    """The picture or sample whose time is nearest, the later of two equally near."""
    # In integers: ten times as fast, for some hundred thousand packets.
    above = time_s.numerator * per_s.numerator
    below = time_s.denominator * per_s.denominator
    return (2 * above + below) // (2 * below)


def stamp_of(frame: AudioFrame | VideoFrame) -> Fraction | None:
    if frame.pts is None or frame.time_base is None:
        return None
    return frame.pts * frame.time_base


@dataclass
class Clock:
    """Turns the stamps of one stream into times, in the order of presentation. `path`: for errors.
    `next_s`: time of the next picture or samples if they follow directly, at first that of the
    first stamp. `origin_s`: stamp at time 0, where that is known; else the first stamp sets it.
    `jitter_s`: a stamp less than this off what the one before implies counts as exact. `may_reset`:
    whether the container allows resets.
    """

    path: Path
    next_s: Fraction = Fraction(0)
    origin_s: Fraction | None = None
    jitter_s: Fraction = Fraction(0)
    may_reset: bool = False
    stated_end_s: Fraction | None = None
    _latest_s: Fraction | None = field(default=None, init=False)

    def advance(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """The time of the next picture or samples, directly after the last without a stamp; refuses
        jumps.
        """
        time_s = self.next_s if stamp_s is None else self._time_of(stamp_s)
        self.next_s = time_s + duration_s
        if self._latest_s is None:
            self._latest_s = time_s
        else:
            self._latest_s = max(self._latest_s, time_s)
        return time_s

    def plausible(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """`duration_s`, or what the file leaves for it if it is far more: most likely damaged."""
        if stamp_s is None or self.stated_end_s is None:
            return min(duration_s, LONGEST_S)
        left_s = max(self.stated_end_s - stamp_s, _SHORTEST_S)
        if duration_s < left_s + FORWARD_S:
            return duration_s
        return left_s

    def _time_of(self, stamp_s: Fraction) -> Fraction:
        if self.origin_s is None:
            self.origin_s = stamp_s - self.next_s
        time_s = stamp_s - self.origin_s
        if time_s == self.next_s:  # as nearly all do
            return time_s
        beyond = self.may_reset or (self.stated_end_s is not None and stamp_s > self.stated_end_s)
        most_s = FORWARD_S if beyond else LONGEST_S
        if self._latest_s is not None and (
            time_s <= self._latest_s - BACK_S or time_s - self.next_s >= most_s
        ):
            jump = f"from {float(self._latest_s):.2f} s to {float(time_s):.2f} s"
            cure = "write it anew: ffmpeg -i OLD -c copy NEW.mkv"
            raise MediaError(
                f"{self.path}: its clock jumps {jump}, as where recordings were joined; {cure}"
            )
        if abs(time_s - self.next_s) < self.jitter_s:
            return self.next_s
        return time_s


def clock_of(path: Path, stream: Stream, **settings: Any) -> Clock:
    container = cast(InputContainer, stream.container)
    may_reset = bool(container.format.flags & RESETS)
    return Clock(path, may_reset=may_reset, stated_end_s=stated_end_s(container), **settings)


def stated_end_s(container: InputContainer) -> Fraction | None:
    """The last stamp plus its duration over all streams, as the file states it."""
    end = (container.start_time or 0) + (container.duration or 0)
    if container.duration:
        return Fraction(end, av.time_base)
    return None


def frames_per_s(path: Path, stream: VideoStream) -> Fraction | None:
    """The mean rate, the model's of a single picture; for 59.9401 the usual rate that is meant."""
    if stream.frames == 1:
        return Fraction(MODEL_FPS)
    # with raw H.264, FFmpeg has an average of 25 for any rate
    if stream.container.format.flags & NO_STAMPS:
        rate = stream.guessed_rate or stream.base_rate
    elif stream.average_rate and not _is_unit(stream.average_rate, stream):
        rate = stream.average_rate
    else:
        rate = _rate_of_stamps(path, stream.index)
    if not rate:
        return None
    usual = (Fraction(round(rate)), Fraction(1000 * round(rate * Fraction(1001, 1000)), 1001))
    return next((one for one in usual if abs(one - rate) <= rate * _RATES_AGREE), Fraction(rate))


def _is_unit(rate: Fraction, stream: VideoStream) -> bool:
    """Whether a rate is only the unit of time, as FFmpeg has it for raw DV: its pictures are
    further apart.
    """
    return (
        stream.time_base is not None and rate * stream.time_base == 1 and rate != stream.base_rate
    )


def _rate_of_stamps(path: Path, index: int) -> Fraction:
    """The rate at which the first pictures of a stream are played, those that are held with their
    repetitions. For recordings of browsers and screens, FFmpeg only has the unit of time, as 1000
    pictures a second.
    """
    with open_input(path) as container:
        stream = container.streams[index]
        for other in container.streams:
            if other.index != index:
                other.discard = Discard.all
        packets = islice(guarded(path, stream, container.demux(stream)), _MEASURED)
        stamps = {packet.pts for packet in packets if packet.pts is not None}
        unit_s = stream.time_base or Fraction(0)
    frames = Fraction(0)
    length_s = Fraction(0)
    for stamp, following in pairwise(sorted(stamps)):
        step_s = (following - stamp) * unit_s
        frames += 1 if step_s <= LONGEST_PERIOD_S else step_s * MODEL_FPS
        length_s += step_s
    if length_s:
        return frames / length_s
    return Fraction(MODEL_FPS)


def period_of(rate: Fraction | None) -> Fraction:
    """Seconds between pictures whose durations are missing."""
    if rate:
        return 1 / rate
    return _SHORTEST_S


def time_base_of(stream: VideoStream, rate: Fraction | None) -> Fraction | None:
    """The unit of time, or a part of it in which the period is exact, unlike Matroska's 1/1000
    s.
    """
    unit_s = stream.time_base
    if (
        unit_s is None
        or rate is None
        or not stream.average_rate
        or (1 / rate / unit_s).denominator == 1
    ):
        return unit_s
    common = lcm(unit_s.denominator, rate.numerator)
    if common <= 1_000_000:
        return Fraction(1, common)
    return unit_s


def on_clock(
    pictures: Iterable[tuple[Fraction | None, Fraction | None, T]], clock: Clock, period_s: Fraction
) -> Iterator[Timed[T]]:
    """Assigns strictly increasing times to pictures with stamps and durations, which may be
    missing; drops those not later than the one before. `period_s`: the duration where it is
    missing.
    """
    last_s: Fraction | None = None
    for stamp_s, stated_s, item in pictures:
        duration_s = clock.plausible(stamp_s, stated_s or period_s)
        time_s = clock.advance(stamp_s, duration_s)
        if last_s is None or time_s > last_s:
            last_s = time_s
            yield Timed(time_s, duration_s, item)


def on_grid(
    pictures: Iterable[Timed[T]], unit_s: Fraction | None, period: Fraction
) -> Iterator[Timed[T]]:
    """Moves times that coarse stamps, multiples of `unit_s`, have rounded to the nearest multiple
    of the period.
    """
    if unit_s is None or (period / unit_s).denominator == 1 or period < 2 * unit_s:
        yield from pictures
        return
    last_s = Fraction(-1)
    for picture in pictures:
        exact_s = nearest(picture.time_s, 1 / period) * period
        if last_s < exact_s and abs(exact_s - picture.time_s) < unit_s:
            time_s = exact_s
        else:
            time_s = picture.time_s
        rounded = abs(picture.duration_s - period) < unit_s
        yield Timed(time_s, period if rounded else picture.duration_s, picture.item)
        last_s = time_s
