"""Samples on one line in time: gaps become silence, overlaps are dropped, changes of format are converted."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.audio.resampler import AudioResampler

from latentsync_trt.media.files import reading
from latentsync_trt.media.timing import Timed, nearest
from latentsync_trt.types import Float32Array

# Without the limit swresample does not normalize when it mixes into float: stereo would come out 3 dB too loud.
_MIX_OPTIONS = {"rematrix_maxval": "1.0"}

_Format = tuple[str, str, int]


def sound_blocks(path: Path, frames: Iterable[Timed[AudioFrame]], layout: str, rate_hz: int) -> Iterator[Float32Array]:
    """All samples from time 0 to the end of the last frame, `(n, channels)` float32, so that each has its frame's time.

    Silence is filled in before the first frame and where one starts later than the one before ends. Samples of a time
    that was given already are dropped. Blocks are small: silence comes in seconds.

    Raises:
        MediaError: a format cannot be converted.
    """
    channels, given = AudioLayout(layout).nb_channels, 0
    for run in _runs(frames):
        first = next(run)
        at = nearest(first.time_s, rate_hz)
        yield from _silence(at - given, channels, rate_hz)
        given, end = max(given, at), at
        for samples, known_end in _resampled(path, chain([first], run), layout, rate_hz):
            end = at + samples.size // channels if known_end is None else known_end
            block = samples.reshape(-1, channels)
            fresh = block[max(given - at, 0) : max(end - at, 0)]
            at += len(block)
            given += len(fresh)
            if len(fresh):
                yield fresh
        yield from _silence(end - given, channels, rate_hz)  # resamplers round
        given = max(given, end)


def format_of(frame: AudioFrame) -> _Format:
    """Sample format, channel layout and rate."""
    return frame.format.name, frame.layout.name, frame.sample_rate


def _runs(frames: Iterable[Timed[AudioFrame]]) -> Iterator[Iterator[Timed[AudioFrame]]]:
    """Frames of one format that follow each other directly."""
    number = 0
    before: Timed[AudioFrame] | None = None

    def number_of(timed: Timed[AudioFrame]) -> int:
        nonlocal number, before
        if before is not None and (before.end_s != timed.time_s or format_of(before.item) != format_of(timed.item)):
            number += 1
        before = timed
        return number

    return (run for _, run in groupby(frames, number_of))


def _resampled(
    path: Path, run: Iterator[Timed[AudioFrame]], layout: str, rate_hz: int
) -> Iterator[tuple[Float32Array, int | None]]:
    """Packed samples, and at which sample the run ends, once that is known; the last one always says it."""
    resampler = AudioResampler("flt", layout, rate_hz, options=_MIX_OPTIONS)
    end_s, end = Fraction(0), None
    for timed in chain(run, (None,)):
        if timed is None:
            end = nearest(end_s, rate_hz)
        else:
            end_s = timed.end_s
            if timed.duration_s < Fraction(timed.item.samples, timed.item.sample_rate):
                end = nearest(end_s, rate_hz)
            # With time stamps the resampler would fill gaps itself, and not to the sample.
            timed.item.pts = None
        with reading(path, "its audio cannot be resampled"):
            pieces = resampler.resample(None if timed is None else timed.item)
        for piece in pieces:
            if piece is not None:
                yield piece.to_ndarray().astype(np.float32, copy=False), end
    yield np.zeros(0, np.float32), end


def _silence(count: int, channels: int, rate_hz: int) -> Iterator[Float32Array]:
    for start in range(0, count, rate_hz):
        yield np.zeros((min(rate_hz, count - start), channels), np.float32)
