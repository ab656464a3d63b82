"""Pieces of sound on one timeline: cut to the sample, joined without clicks, summed where they overlap. Pure."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from latentsync_trt.media.timing import nearest
from latentsync_trt.types import Float32Array

FADE_S = Fraction(8, 1000)
"""Length of the ramp around a cut, half of it on each side: a step of the wave would be heard as a click, a longer ramp
as two sounds at once. Ramps of adjacent pieces sum to 1, so that a cut through one sound changes nothing."""

_BLOCK_S = Fraction(1, 4)


@dataclass(frozen=True, slots=True)
class Track:
    """Sound from output sample `at` on, which may be below 0; `open` gives its blocks `(n, channels)` float32."""

    at: int
    open: Callable[[], Generator[Float32Array, None, None]]


def lead_in(from_s: Fraction, rate_hz: int) -> int:
    """Samples of the ramp before a cut at `from_s`, which `cut_out` gives, too."""
    return min(nearest(from_s, rate_hz), nearest(FADE_S / 2, rate_hz))


def cut_out(
    blocks: Iterable[Float32Array], from_s: Fraction, to_s: Fraction | None, rate_hz: int
) -> Generator[Float32Array, None, None]:
    """Samples from `from_s` to `to_s` (None = the end) of a recording's blocks `(n, channels)`, with ramps at the cuts.

    The recording's own start and end have no ramp.
    """
    first, half = nearest(from_s, rate_hz), nearest(FADE_S / 2, rate_hz)
    last = None if to_s is None else nearest(to_s, rate_hz)
    start, end = first - lead_in(from_s, rate_hz), None if last is None else last + half
    at = 0
    for block in blocks:
        if end is not None and at >= end:
            return
        kept = block[max(start - at, 0) : None if end is None else end - at]
        positions = np.arange(len(kept)) + max(start, at)
        at += len(block)
        gain = np.ones(len(kept), np.float32)
        if first:
            gain *= _ramp(positions - first, half)
        if last is not None:
            gain *= 1 - _ramp(positions - last, half)
        if len(kept):
            yield kept * gain[:, None]


def _ramp(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], half: int) -> Float32Array:
    """0 to 1 from `-half` to `half` samples around a cut."""
    return np.clip((offsets + half + 0.5) / (2 * half), 0, 1).astype(np.float32)


def mixed(tracks: Sequence[Track], channels: int, rate_hz: int) -> Generator[Float32Array, None, None]:
    """The sum of `tracks` from sample 0 to the end of the last, in blocks `(n, channels)`; silent where there is none.

    A track is open only while it is heard.
    """
    waiting = sorted(tracks, key=lambda track: track.at, reverse=True)
    playing: list[Samples] = []
    now, block = min([0, *(track.at for track in waiting)]), nearest(_BLOCK_S, rate_hz)
    with ExitStack() as opened:
        while waiting or playing:
            while waiting and waiting[-1].at <= now:
                playing.append(Samples(opened.enter_context(closing(waiting.pop().open()))))
            end = min([now + block, *(track.at for track in waiting[-1:]), *([0] if now < 0 else [])])
            parts = [player.take(end - now) for player in playing]
            playing = [player for player, part in zip(playing, parts, strict=True) if len(part) == end - now]
            length = end - now if waiting or playing else max(map(len, parts), default=0)
            total = np.zeros((length, channels), np.float32)
            for part in parts:
                total[: len(part)] += part
            if now >= 0 and length:
                yield total
            now = end


class Samples:
    """Blocks `(n, channels)` of a sound, given in parts of other lengths."""

    def __init__(self, blocks: Iterator[Float32Array]) -> None:
        self._blocks = blocks
        self._held: list[Float32Array] = []

    def take(self, count: int) -> Float32Array:
        """The next `count` samples; fewer at the end."""
        held, length = self._held, sum(map(len, self._held))
        while length < count and (block := next(self._blocks, None)) is not None:
            held.append(block)
            length += len(block)
        joined = np.concatenate(held) if held else np.zeros((0, 1), np.float32)
        self._held = [joined[count:]] if len(joined) > count else []
        return joined[:count]
