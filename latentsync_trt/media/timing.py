"""The clock of a clip: stamps become times from 0. All times are exact seconds.

Clocks are reset where recordings were joined. That is assumed where a stamp goes back by `BACK_S`
or more, or on by `FORWARD_S` or more if the container allows resets (MPEG-TS, Ogg), or to a time
after the end that the file states. Any other step on is a picture held, or a gap in the sound.

Each joined recording begins at one time in all streams: if each stream followed itself
directly, pictures and sound would drift apart, as their ends differ at each joint.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain, pairwise
from math import lcm
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import av
from av import AudioFrame, FFmpegError, VideoFrame, VideoStream
from av.container import InputContainer
from av.format import Flags
from av.stream import Stream

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.media.files import open_input, reading

T = TypeVar("T")

# PyAV's types have the flags themselves as values.
_RESETS, _NO_STAMPS = cast(int, Flags.ts_discont.value), cast(int, Flags.no_timestamps.value)

BACK_S = Fraction(1)
"""A clock that goes back by this or more was reset; less is disorder or overlapping sound."""

# FFmpeg's own limit for containers with resets. No held picture is taken for a reset below this.
FORWARD_S = Fraction(10)
# A step on by this or more is a reset where no end is stated: most likely a damaged stamp.
LONGEST_S = Fraction(3600)

JITTER_S = Fraction(1, 25)
"""Stamps of sound less than this off the count of samples are not followed: each correction
would be heard as a click, and 40 ms are not seen as late or early (ITU-R BT.1359)."""

_RATES_AGREE = Fraction(1, 100_000)
_FINEST_PER_S = 1_000_000
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
    above, below = time_s.numerator * per_s.numerator, time_s.denominator * per_s.denominator
    return (2 * above + below) // (2 * below)


def stamp_of(frame: AudioFrame | VideoFrame) -> Fraction | None:
    """The time stamp of a decoded frame in seconds, if it has one."""
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


@dataclass
class Clock:
    """Turns the stamps of one stream into times, in the order of presentation.

    `next_s`: time of the next picture or samples if they follow directly, at first that of the first stamp. `origin_s`:
    stamp at time 0, where that is known; else the first stamp sets it. `jitter_s`: a stamp less than this off what the
    one before implies counts as exact. `may_reset`: whether the container allows steps on that are no gaps.
    `stated_end_s`: the last stamp plus its duration, as the file states it. `origins`: gives the stamps at time 0 of
    joined recordings, minus the first one, sorted; called at a reset. `resets`: how many there were.
    """

    next_s: Fraction = Fraction(0)
    origin_s: Fraction | None = None
    jitter_s: Fraction = Fraction(0)
    may_reset: bool = False
    stated_end_s: Fraction | None = None
    origins: Callable[[], Sequence[Fraction]] = tuple
    resets: int = 0
    _first_origin_s: Fraction = field(default=Fraction(0), init=False)
    _end_s: Fraction = field(default=Fraction(0), init=False)
    _latest_s: Fraction | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._first_origin_s, self._end_s = self.origin_s or Fraction(0), self.next_s

    def advance(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """The time of the next picture or samples; without a stamp, it follows directly."""
        time_s = self.next_s if stamp_s is None else self._time_of(stamp_s)
        self.next_s = time_s + duration_s
        self._end_s = max(self._end_s, self.next_s)
        self._latest_s = time_s if self._latest_s is None else max(self._latest_s, time_s)
        return time_s

    def plausible(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """`duration_s`, or what the file leaves for it if it is far more: most likely damaged."""
        if stamp_s is None or self.stated_end_s is None:
            return min(duration_s, LONGEST_S)
        left_s = max(self.stated_end_s - stamp_s, _SHORTEST_S)
        return duration_s if duration_s < left_s + FORWARD_S else left_s

    def _time_of(self, stamp_s: Fraction) -> Fraction:
        if self.origin_s is None:
            self.origin_s = self._first_origin_s = stamp_s - self.next_s
        time_s = stamp_s - self.origin_s
        if time_s == self.next_s:  # as nearly all do
            return time_s
        if self._is_reset(time_s, stamp_s):
            self.resets += 1
            self.origin_s = self._origin_after(stamp_s - self._end_s)
            time_s = stamp_s - self.origin_s
        return self.next_s if abs(time_s - self.next_s) < self.jitter_s else time_s

    def _origin_after(self, direct_s: Fraction) -> Fraction:
        """The known origin nearest to `direct_s`, with which the stream follows itself directly."""
        known = {self._first_origin_s + origin_s for origin_s in self.origins()} - {self.origin_s}
        nearest_s = min(known, key=lambda origin_s: abs(origin_s - direct_s), default=direct_s)
        return nearest_s if abs(nearest_s - direct_s) < LONGEST_S else direct_s

    def _is_reset(self, time_s: Fraction, stamp_s: Fraction) -> bool:
        if self._latest_s is None:
            return False
        least_s = LONGEST_S if self.stated_end_s is None and not self.may_reset else FORWARD_S
        beyond = self.may_reset or self.stated_end_s is None or stamp_s > self.stated_end_s
        return time_s <= self._latest_s - BACK_S or (beyond and time_s - self.next_s >= least_s)


def clock_of(container: InputContainer, **settings: Any) -> Clock:
    """A clock for one stream of an open file, with what the file states; without joints."""
    may_reset = bool(container.format.flags & _RESETS)
    return Clock(may_reset=may_reset, stated_end_s=stated_end_s(container), **settings)


def joint_clock(path: Path, stream: Stream, start_s: Fraction = Fraction(0), **settings: Any) -> Clock:
    """A clock of one stream that follows joined recordings; its first stamp is at `start_s`."""
    origins = partial(_origins_of, path, stream.index)
    return clock_of(cast(InputContainer, stream.container), next_s=start_s, origins=origins, **settings)


def stated_end_s(container: InputContainer) -> Fraction | None:
    """The last stamp plus its duration over all streams, as the file states it."""
    if not container.duration:
        return None
    return Fraction((container.start_time or 0) + container.duration, av.time_base)


# What streams, by their index, have of one recording: the stamps at its start and end.
_Spans = dict[int, tuple[Fraction, Fraction]]


def _origins_of(path: Path, stream: int) -> list[Fraction]:
    """The stamps at time 0 for each recording with this stream, minus the first one, sorted.

    A recording begins when the one before it has ended in all its streams. Sound continues directly
    where that shortens the pictures by less than `JITTER_S`. Reads all packets of the file.
    """
    with reading(path):
        status = path.stat()
    sound, recordings = _scanned(path, status.st_mtime_ns, status.st_size)
    origins, ends, origin_s = [], dict[int, Fraction](), Fraction(0)
    for spans in recordings:
        direct = {index: start_s - ends[index] for index, (start_s, _) in spans.items() if index in ends}
        origin_s = min(direct.values(), default=origin_s)
        if sound in direct and direct[sound] - origin_s < JITTER_S:
            origin_s = direct[sound]
        ends |= {index: end_s - origin_s for index, (_, end_s) in spans.items()}
        if stream in spans:
            origins.append(origin_s)
    return sorted(origin_s - origins[0] for origin_s in origins)


# Kept, as several readers need them, and a scan takes seconds; time and size tell changes.
@lru_cache(maxsize=2)
def _scanned(path: Path, _mtime_ns: int, _size_bytes: int) -> tuple[int | None, list[_Spans]]:
    """Index of the sound that is read, and the recordings."""
    with open_input(path) as container:
        sound = container.streams.audio[0].index if container.streams.audio else None
        return sound, _recordings(container)


def _recordings(container: InputContainer) -> list[_Spans]:
    """Each recording's spans. At a joint, packets may be mixed; those of one stream are in order."""
    streams = [*container.streams.video, *container.streams.audio]
    periods_s = {stream.index: period_s(stream) for stream in container.streams.video}
    clocks = {stream.index: clock_of(container) for stream in streams}
    recordings: list[_Spans] = [{}]
    current: dict[int, _Spans] = {}
    with suppress(FFmpegError):  # who decodes the stream reports where it breaks off
        for packet in container.demux(streams):
            if packet.dts is None:
                continue
            index, resets = packet.stream.index, clocks[packet.stream.index].resets
            stamp_s = (packet.dts if packet.pts is None else packet.pts) * packet.time_base
            duration_s = (packet.duration or 0) * packet.time_base or periods_s.get(index, Fraction(0))
            clocks[index].advance(packet.dts * packet.time_base, duration_s)
            if index not in current or clocks[index].resets > resets:
                latest = recordings[-1]
                if index in latest or all(abs(stamp_s - end_s) >= BACK_S for _, end_s in latest.values()):
                    recordings.append({})
                current[index] = recordings[-1]
            start_s, end_s = current[index].get(index, (stamp_s, stamp_s))
            current[index][index] = min(start_s, stamp_s), max(end_s, stamp_s + duration_s)
    return recordings


def frames_per_s(stream: VideoStream) -> Fraction | None:
    """The mean rate, the model's of a single picture; for 59.9401 the usual rate that is meant."""
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
    """The unit of time, or a part of it in which the period is exact, unlike Matroska's 1/1000 s."""
    unit_s, rate = stream.time_base, frames_per_s(stream)
    if unit_s is None or rate is None or (1 / rate / unit_s).denominator == 1:
        return unit_s
    common = lcm(unit_s.denominator, rate.numerator)
    return Fraction(1, common) if common <= _FINEST_PER_S else unit_s


def on_clock(
    pictures: Iterable[tuple[Fraction | None, Fraction | None, T]], clock: Clock, period_s: Fraction
) -> Iterator[Timed[T]]:
    """Assigns strictly increasing times to pictures; drops those not later than the one before.

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


def on_grid(pictures: Iterable[Timed[T]], stream: VideoStream) -> Iterator[Timed[T]]:
    """Moves times that coarse stamps have rounded to the nearest multiple of the period."""
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
