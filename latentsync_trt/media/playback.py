"""How a video is played: when it begins, at which rate, what follows its end. Pure; all times are exact seconds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, takewhile
from typing import Any, Protocol, TypeVar

from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.media.timing import Timed, at_constant_rate, is_held

T = TypeVar("T")

LONGEST_PERIOD_S = Fraction(1, 10)
"""A picture that lasts longer, as in a slide show, is repeated: lips must move."""


@dataclass(frozen=True, slots=True)
class Playback:
    """How a video becomes frames.

    `fps`: frames per second; None = the source's own frames at its own times, long ones repeated. `duration_s`: frames
    begin before this; None = at the end of the video. `extend`: what follows the end of the video, without end:
    "pingpong" plays it backwards and forwards, "loop" from the start, "hold" repeats the last picture; None stops.
    `delay_s`: time of the first picture, which is also shown before.
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
    its time, held after the end of the video, or lasts longer than `LONGEST_PERIOD_S` is repeated with the source's
    period.
    """
    shown, fps, duration_s = _extended(source, playback), playback.fps, playback.duration_s
    if fps is None:
        repeated = _repeated(shown, source)
        return repeated if duration_s is None else _cut(repeated, duration_s, source)
    regular = (Timed(index / fps, 1 / fps, item) for index, item in enumerate(at_constant_rate(shown, fps)))
    return regular if duration_s is None else takewhile(lambda picture: picture.time_s < duration_s, regular)


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


def _repeated(shown: Iterator[Timed[T]], source: Passes[Any]) -> Iterator[Timed[T]]:
    """Repeats the first picture from time 0 to its own time, and every picture that lasts long."""
    at_s = Fraction(0)
    for picture in shown:
        period_s = _hold_period_s(source)
        if at_s < picture.time_s or picture.duration_s > LONGEST_PERIOD_S:
            while picture.end_s - at_s >= 2 * period_s:
                yield Timed(at_s, period_s, picture.item)
                at_s += period_s
        yield Timed(at_s, picture.end_s - at_s, picture.item)
        at_s = picture.end_s


def _cut(shown: Iterator[Timed[T]], duration_s: Fraction, source: Passes[Any]) -> Iterator[Timed[T]]:
    """The pictures that begin before `duration_s`; the last one ends there, or after one period.

    One that is shown already is not repeated for less than a period: sound that is a few samples longer than the
    picture must not add a frame.
    """
    current: Timed[T] | None = None
    for following in shown:
        left_s = duration_s - following.time_s
        if left_s <= 0:
            break
        if current is not None:
            if following.item is current.item and left_s < _hold_period_s(source):
                current = replace(current, duration_s=current.duration_s + left_s)
                break
            yield current
        current = following
    if current is not None:
        longest_s = max(duration_s - current.time_s, _hold_period_s(source))
        yield replace(current, duration_s=min(current.duration_s, longest_s))


def _hold_period_s(source: Passes[Any]) -> Fraction:
    return source.period_s if source.period_s <= LONGEST_PERIOD_S else Fraction(1, MODEL_FPS)
