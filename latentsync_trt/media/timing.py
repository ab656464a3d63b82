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
from av import AudioFrame, Packet, VideoFrame, VideoStream
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

BACK_S = Fraction(1)
"""A step back by this is a jump; less is disorder or overlapping sound."""
FORWARD_S = Fraction(10)
"""A step on by this is a jump where the container allows resets: FFmpeg's own limit. No held
picture is taken for a jump below this.
"""
LONGEST_S = Fraction(3600)
"""A step on by this is a jump everywhere."""

JITTER_S = Fraction(1, 25)
"""Stamps of sound less than this off the count of samples are not followed: each correction would
be heard as a click, and 40 ms are not seen as late or early (ITU-R BT.1359).
"""
LONGEST_PERIOD_S = Fraction(1, 10)
"""A picture that lasts longer, as in a slide show, is repeated: lips must move."""

_RATE_TOLERANCE = Fraction(1, 100_000)
"""Share by which a rate may differ from the usual one that is meant."""
_PICTURES_MEASURED = 250
"""From how many pictures the rate is measured that a file does not state."""
_DEFAULT_PERIOD_S = Fraction(1, 25)
"""How long a picture lasts whose duration is not stated or not plausible."""


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A picture, or samples, and when it is shown or heard."""

    time_s: Fraction
    duration_s: Fraction
    item: T

    @property
    def end_s(self) -> Fraction:
        return self.time_s + self.duration_s


def with_next(items: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Yields each item with the one after it; holds two."""
    for item, following in pairwise(chain(items, (None,))):
        yield cast(T, item), following


def nearest(time_s: Fraction, per_s: Fraction | int) -> int:
    """Returns the index of the picture or sample whose time is nearest, the later of two equally
    near.
    """
    # In integers: ten times as fast, for some hundred thousand packets.
    above = time_s.numerator * per_s.numerator
    below = time_s.denominator * per_s.denominator
    return (2 * above + below) // (2 * below)


def stamp_packet(packet: "Packet[Any]", stream: Stream, stamp: int, per_s: int) -> None:
    """Makes a packet one of `stream`, shown and decoded at `stamp` units, of which `per_s` are a
    second.
    """
    packet.stream = stream
    packet.pts = stamp
    packet.dts = stamp
    packet.time_base = Fraction(1, per_s)


def stamp_of(frame: AudioFrame | VideoFrame) -> Fraction | None:
    if frame.pts is None or frame.time_base is None:
        return None
    return frame.pts * frame.time_base


@dataclass
class Clock:
    """Turns the stamps of one stream into times, in the order of presentation."""

    path: Path
    """For errors."""
    next_s: Fraction = Fraction(0)
    """Time of the next picture or samples if they follow directly, at first that of the first
    stamp.
    """
    origin_s: Fraction | None = None
    """Stamp at time 0, where that is known; else the first stamp sets it."""
    jitter_s: Fraction = Fraction(0)
    """A stamp less than this off what the one before implies counts as exact."""
    may_reset: bool = False
    """Whether the container allows resets."""
    stated_end_s: Fraction | None = None
    """The last stamp that the file states."""
    _latest_s: Fraction | None = field(default=None, init=False)

    def advance(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """Returns the time of the next picture or samples: without a stamp, directly after the
        last. Raises `MediaError` where the clock jumps.
        """
        time_s = self.next_s if stamp_s is None else self._time_of(stamp_s)
        self.next_s = time_s + duration_s
        if self._latest_s is None or time_s > self._latest_s:
            self._latest_s = time_s
        return time_s

    def plausible(self, stamp_s: Fraction | None, duration_s: Fraction) -> Fraction:
        """Returns `duration_s`, or what the file leaves for it if it is far more: most likely
        damaged.
        """
        if stamp_s is None or self.stated_end_s is None:
            return min(duration_s, LONGEST_S)
        left_s = max(self.stated_end_s - stamp_s, _DEFAULT_PERIOD_S)
        return duration_s if duration_s < left_s + FORWARD_S else left_s

    def _time_of(self, stamp_s: Fraction) -> Fraction:
        if self.origin_s is None:
            self.origin_s = stamp_s - self.next_s
        time_s = stamp_s - self.origin_s
        if time_s == self.next_s:  # as nearly all do
            return time_s
        if self._latest_s is not None and self._jumps(time_s, stamp_s, self._latest_s):
            raise MediaError(
                f"{self.path}: its clock jumps from {float(self._latest_s):.2f} s to "
                f"{float(time_s):.2f} s, as where recordings were joined; "
                "write it anew: ffmpeg -i OLD -c copy NEW.mkv"
            )
        if abs(time_s - self.next_s) < self.jitter_s:
            return self.next_s
        return time_s

    def _jumps(self, time_s: Fraction, stamp_s: Fraction, latest_s: Fraction) -> bool:
        is_beyond_end = self.stated_end_s is not None and stamp_s > self.stated_end_s
        limit_s = FORWARD_S if self.may_reset or is_beyond_end else LONGEST_S
        is_back = time_s <= latest_s - BACK_S
        is_ahead = time_s - self.next_s >= limit_s
        return is_back or is_ahead


def clock_of(path: Path, stream: Stream) -> Clock:
    """Returns the clock of a stream whose first stamp is time 0."""
    container = cast(InputContainer, stream.container)
    may_reset = bool(container.format.flags & RESETS)
    return Clock(path, may_reset=may_reset, stated_end_s=stated_end_s(container))


def stated_end_s(container: InputContainer) -> Fraction | None:
    """Returns the last stamp plus its duration over all streams, as the file states it."""
    if not container.duration:
        return None
    return Fraction((container.start_time or 0) + container.duration, av.time_base)


def frames_per_s(path: Path, stream: VideoStream) -> Fraction | None:
    """Returns the mean rate, the model's of a single picture; for 59.9401 the usual rate that is
    meant.
    """
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
    ntsc_rate = Fraction(1000 * round(rate * Fraction(1001, 1000)), 1001)
    for usual in (Fraction(round(rate)), ntsc_rate):
        if abs(usual - rate) <= rate * _RATE_TOLERANCE:
            return usual
    return Fraction(rate)


def _is_unit(rate: Fraction, stream: VideoStream) -> bool:
    """Returns whether a rate is only the unit of time, as FFmpeg has it for raw DV: its pictures
    are further apart.
    """
    unit_s = stream.time_base
    return unit_s is not None and rate * unit_s == 1 and rate != stream.base_rate


def _rate_of_stamps(path: Path, index: int) -> Fraction:
    """Returns the rate at which the first pictures of a stream are played, those that are held with
    their repetitions. For recordings of browsers and screens, FFmpeg only has the unit of time, as
    1000 pictures a second.
    """
    frames = Fraction(0)
    length_s = Fraction(0)
    for stamp_s, following_s in pairwise(_first_stamps_s(path, index)):
        step_s = following_s - stamp_s
        frames += 1 if step_s <= LONGEST_PERIOD_S else step_s * MODEL_FPS
        length_s += step_s
    if length_s:
        return frames / length_s
    return Fraction(MODEL_FPS)


def _first_stamps_s(path: Path, index: int) -> list[Fraction]:
    with open_input(path) as container:
        stream = container.streams[index]
        for other in container.streams:
            if other.index != index:
                other.discard = Discard.all
        packets = islice(guarded(path, stream, container.demux(stream)), _PICTURES_MEASURED)
        stamps = {packet.pts for packet in packets if packet.pts is not None}
        unit_s = stream.time_base or Fraction(0)
    return [stamp * unit_s for stamp in sorted(stamps)]


def period_of(rate: Fraction | None) -> Fraction:
    """Returns the seconds between pictures whose durations are missing."""
    return 1 / rate if rate else _DEFAULT_PERIOD_S


def time_base_of(stream: VideoStream, rate: Fraction | None) -> Fraction | None:
    """Returns the unit of time, or a part of it in which the period is exact, unlike Matroska's
    1/1000 s.
    """
    unit_s = stream.time_base
    if unit_s is None or rate is None or not stream.average_rate:
        return unit_s
    common = lcm(unit_s.denominator, rate.numerator)
    if _is_exact(1 / rate, unit_s) or common > 1_000_000:
        return unit_s
    return Fraction(1, common)


def _is_exact(time_s: Fraction, unit_s: Fraction) -> bool:
    """Returns whether a time is a multiple of a unit."""
    return (time_s / unit_s).denominator == 1


def on_clock(
    pictures: Iterable[VideoFrame], clock: Clock, period_s: Fraction
) -> Iterator[Timed[VideoFrame]]:
    """Assigns strictly increasing times to pictures; drops those not later than the one before.

    Args:
        period_s: the duration where it is missing.
    """
    last_s: Fraction | None = None
    for picture in pictures:
        stamp_s = stamp_of(picture)
        stated_s = max(picture.duration, 0) * (picture.time_base or Fraction(0))
        duration_s = clock.plausible(stamp_s, stated_s or period_s)
        time_s = clock.advance(stamp_s, duration_s)
        if last_s is None or time_s > last_s:
            last_s = time_s
            yield Timed(time_s, duration_s, picture)


def on_grid(
    pictures: Iterable[Timed[T]], unit_s: Fraction | None, period_s: Fraction
) -> Iterator[Timed[T]]:
    """Moves times that coarse stamps, multiples of `unit_s`, have rounded to the nearest multiple
    of the period.
    """
    if unit_s is None or _is_exact(period_s, unit_s) or period_s < 2 * unit_s:
        yield from pictures
        return
    last_s = Fraction(-1)
    for picture in pictures:
        time_s = picture.time_s
        exact_s = nearest(time_s, 1 / period_s) * period_s
        if last_s < exact_s and abs(exact_s - time_s) < unit_s:
            time_s = exact_s
        duration_s = picture.duration_s
        if abs(duration_s - period_s) < unit_s:
            duration_s = period_s
        yield Timed(time_s, duration_s, picture.item)
        last_s = time_s
