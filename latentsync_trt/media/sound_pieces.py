"""Pieces of recordings on the timeline of an output, and their sum."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import Self

import numpy as np

from latentsync_trt.media.audio import regrouped, silent_blocks
from latentsync_trt.media.timing import nearest
from latentsync_trt.types import Float32Array

CUT_RAMP_S = Fraction(8, 1000)
"""Length of the ramp around a cut, half of it on each side: a step of the wave would be heard as a
click, a longer ramp as two sounds at once. Ramps of adjacent pieces sum to 1, so that a cut through
one sound changes nothing.
"""
_BLOCK_S = Fraction(1, 4)
"""Length of the blocks in which tracks are summed: long enough that calls of numpy do not count,
short enough that many tracks take little memory.
"""


@dataclass(frozen=True, slots=True)
class SoundPiece:
    """A part of the main audio stream of a file, and when it is heard in an output. Times of the
    file count from its first sample.
    """

    path: Path
    at_s: Fraction = Fraction(0)
    """When the piece begins in the output; what is before 0 is not heard."""
    from_s: Fraction = Fraction(0)
    """Where the piece begins in the file."""
    to_s: Fraction | None = None
    """Where the piece ends in the file; None = at its end."""

    @property
    def end_s(self) -> Fraction | None:
        """When it ends in the output; None if that is the end of the file."""
        if self.to_s is None:
            return None
        return self.at_s + self.to_s - self.from_s

    def within(self, start_s: Fraction, end_s: Fraction | None) -> Self | None:
        """Returns what of it is heard from `start_s` to `end_s` (None = the end) of the output, if
        any.
        """
        at_s = max(self.at_s, start_s)
        shift_s = self.from_s - self.at_s
        ends_s = [each for each in (self.end_s, end_s) if each is not None]
        stop_s = min(ends_s, default=None)
        if stop_s is None:
            return replace(self, at_s=at_s, from_s=at_s + shift_s)
        if stop_s <= at_s:
            return None
        return replace(self, at_s=at_s, from_s=at_s + shift_s, to_s=stop_s + shift_s)


def splice(
    video_sound: SoundPiece | None,
    speech: Iterable[SoundPiece],
    start_s: Fraction,
    end_s: Fraction | None,
) -> tuple[SoundPiece, ...]:
    """Returns `speech` from `start_s` to `end_s` (None = the end), and around it the sound of the
    video.
    """
    pieces = list[SoundPiece | None]()
    if video_sound is not None:
        pieces.append(video_sound.within(Fraction(0), start_s))
        if end_s is not None:
            pieces.append(video_sound.within(end_s, None))
    pieces += [piece.within(start_s, end_s) for piece in speech]
    return tuple(piece for piece in pieces if piece is not None)


def place_piece(
    recording: Generator[Float32Array], piece: SoundPiece, channels: int, rate_hz: int
) -> Generator[Float32Array]:
    """Yields a piece of its recording in blocks `(n, channels)` from sample 0 of the output on,
    with ramps at cuts. The recording's own start and end have no ramp. It is open only while it is
    heard.
    """
    first = nearest(piece.from_s, rate_hz)
    half = nearest(CUT_RAMP_S / 2, rate_hz)
    shift = nearest(piece.at_s, rate_hz) - first
    start = max(first - half, 0, -shift)
    last = None if piece.to_s is None else nearest(piece.to_s, rate_hz)
    end = None if last is None else last + half
    yield from silent_blocks(start + shift, channels, rate_hz)
    at = 0
    with closing(recording):
        for block in recording:
            if end is not None and at >= end:
                return
            begin = max(start - at, 0)
            heard = block[begin:] if end is None else block[begin : end - at]
            positions = np.arange(len(heard)) + max(start, at)
            at += len(block)
            gain = np.ones(len(heard), np.float32)
            if first:
                gain *= _ramp(positions - first, half)
            if last is not None:
                gain *= 1 - _ramp(positions - last, half)
            if len(heard):
                yield heard * gain[:, None]


def _ramp(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], half: int) -> Float32Array:
    """Returns a gain that rises from 0 to 1 within `half` samples on each side of a cut, by the
    offsets from it.
    """
    gain = (offsets + half + 0.5) / (2 * half)
    return gain.clip(0, 1).astype(np.float32)


def mix_tracks(
    tracks: Sequence[Generator[Float32Array]], channels: int, rate_hz: int
) -> Generator[Float32Array]:
    """Yields the sum of `tracks` from sample 0 to the end of the last: blocks `(n, channels)`."""
    with ExitStack() as opened:
        count = nearest(_BLOCK_S, rate_hz)
        nothing = np.zeros((0, channels), np.float32)
        players = [regrouped(opened.enter_context(closing(track)), count) for track in tracks]
        for blocks in zip_longest(*players, fillvalue=nothing):
            total = np.zeros((max(map(len, blocks)), channels), np.float32)
            for block in blocks:
                total[: len(block)] += block
            yield total
