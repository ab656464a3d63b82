"""How a video is played: when it begins, at which rate, what follows its end. Pure; all times are exact seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from math import floor
from typing import Any, Protocol, TypeVar

from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.media.timing import Timed, at_constant_rate, is_held

T = TypeVar("T")

_LONGEST_PERIOD_S = Fraction(1, 10)
"""A video with longer periods, such as a slide show, is held at the model's rate: lips must move."""


@dataclass(frozen=True, slots=True)
class Playback:
    """How a video becomes frames.

    `fps`: frames per second; None = the source's own frames at its own times. `duration_s`: frames begin before this;
    None = at the end of the video. `extend`: what follows the end of the video, without end: "pingpong" plays it
    backwards and forwards, "loop" from the start, "hold" repeats the last picture; None stops. `delay_s`: time of the
    first picture, which is also shown before.
    """

    fps: Fraction | None = None
    duration_s: Fraction | None = None
    extend: Extend | None = None
    delay_s: Fraction = Fraction(0)


class Passes(Protocol[T]):
    """A video that can be read several times."""

    @property
    def period_s(self) -> Fraction:
        """Seconds from picture to picture, the mean; known as soon as a picture has been read."""
        ...

    def forward(self) -> Iterator[Timed[T]]:
        """All pictures, each until the next one's time; the first one's is 0."""
        ...

    def backward(self) -> Iterator[Timed[T]]:
        """The same pictures from the last one but one to the first, with the same times."""
        ...


def played(source: Passes[T], playback: Playback) -> Iterator[Timed[Timed[T]]]:
    """The output's pictures, each with its time in the source: `Timed(time in the output, …, Timed(source's …))`.

    A constant rate is made as by `timing.at_constant_rate`. With times of the source, a picture that is shown before
    its time or held after the end of the video is repeated with the source's period.
    """
    shown = _extended(source, playback)
    if playback.fps is not None:
        period_s = 1 / playback.fps
        regular = enumerate(at_constant_rate(shown, playback.fps))
        shown = (Timed(index * period_s, period_s, item) for index, item in regular)
    else:
        shown = _filled(shown, source)
    return shown if playback.duration_s is None else _cut(shown, playback.duration_s, source)


def lasting(pictures: Iterable[Timed[T]]) -> Iterator[Timed[T]]:
    """Each picture until the next one's time; holds two."""
    current: Timed[T] | None = None
    for following in pictures:
        if current is not None:
            yield replace(current, duration_s=following.time_s - current.time_s)
        current = following
    if current is not None:
        yield current


def _extended(source: Passes[T], playback: Playback) -> Iterator[Timed[Timed[T]]]:
    """Pass after pass, without end unless `extend` is None; nothing if the source has no picture."""
    at_s, count, backward, last = playback.delay_s, 0, False, None
    while True:
        turned = playback.extend == "pingpong" and count > 0
        pictures = source.backward() if backward else islice(source.forward(), 1 if turned else 0, None)
        for last in pictures:
            yield Timed(at_s, last.duration_s, last)
            at_s += last.duration_s
            count += 1
        if last is None or playback.extend is None:
            return
        left_s = None if playback.duration_s is None else playback.duration_s - at_s
        if playback.extend == "hold" or count == 1 or (left_s is not None and is_held(left_s)):
            break
        backward = playback.extend == "pingpong" and not backward
    while True:
        period_s = _hold_period_s(source)
        yield Timed(at_s, period_s, last)
        at_s += period_s


def _filled(shown: Iterator[Timed[T]], source: Passes[Any]) -> Iterator[Timed[T]]:
    """Repeats the first picture from time 0 to its own time."""
    first = next(shown, None)
    if first is None:
        return
    period_s = _hold_period_s(source)
    count = floor(first.time_s / period_s + Fraction(1, 2))
    starts_s = [Fraction(0), *(first.time_s - left * period_s for left in reversed(range(count)))]
    for start_s, end_s in zip(starts_s, [*starts_s[1:], first.end_s], strict=True):
        yield Timed(start_s, end_s - start_s, first.item)
    yield from shown


def _cut(shown: Iterator[Timed[T]], duration_s: Fraction, source: Passes[Any]) -> Iterator[Timed[T]]:
    """The pictures that begin before `duration_s`; a held one ends there, or after one period."""
    for picture in shown:
        if picture.time_s >= duration_s:
            return
        longest_s = max(duration_s - picture.time_s, _hold_period_s(source))
        yield picture if picture.duration_s <= longest_s else replace(picture, duration_s=longest_s)


def _hold_period_s(source: Passes[Any]) -> Fraction:
    return source.period_s if source.period_s <= _LONGEST_PERIOD_S else Fraction(1, MODEL_FPS)
