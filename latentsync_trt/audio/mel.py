"""Whisper's log-mel spectrogram, block by block. Pure.

Whisper clamps to 8 below the maximum of the whole recording, so a long one is read twice: once for the maximum, once
for the values. Nothing but a block is in memory.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
from librosa.filters import mel as mel_filters
from numpy.lib.stride_tricks import sliding_window_view

from latentsync_trt.types import Float32Array

SAMPLE_RATE_HZ = 16_000
N_FFT = 400  # 25 ms
HOP = 160  # 10 ms
MEL_BANDS = 80
MEL_FPS = SAMPLE_RATE_HZ // HOP

_PAD = N_FFT // 2
# Two spectrogram frames make one feature; a shorter recording is followed by silence up to here.
_MIN_SAMPLES = 2 * HOP
_BLOCK_FRAMES = 3000
_POWER_FLOOR = 1e-10
_LOG_RANGE = 8.0


def log_power_blocks(samples: Iterable[Float32Array]) -> Iterator[Float32Array]:
    """log10 of the mel power, floored at 1e-10, not yet clamped: blocks `(80, k)` float32.

    Frame i covers samples 160·i − 200 … 160·i + 199, reflected at both ends; n samples give n // 160 frames (Whisper
    drops the last), at least 2.

    Args:
        samples: 16 kHz mono float32 in [−1, 1], in pieces of any length.
    """
    emitted = 0
    for padded, count in _padded(samples):
        frames = (len(padded) - N_FFT) // HOP + 1 if count is None else count // HOP - emitted
        for first in range(0, frames, _BLOCK_FRAMES):
            last = min(first + _BLOCK_FRAMES, frames)
            yield _log_power(padded[first * HOP : (last - 1) * HOP + N_FFT])
        emitted += frames


def _padded(samples: Iterable[Float32Array]) -> Iterator[tuple[Float32Array, int | None]]:
    """Pieces that begin at the next frame to make, each overlapping the one before; the last with the sample count."""
    held: list[Float32Array] = []
    count, buffered = 0, np.zeros(0, np.float32)
    for piece in samples:
        held.append(piece)
        count += len(piece)
        if sum(map(len, held)) + len(buffered) < _BLOCK_FRAMES * HOP:
            continue
        if count - sum(map(len, held)) == 0:
            joined = np.concatenate(held)
            buffered = np.pad(joined, (_PAD, 0), "reflect")
        else:
            buffered = np.concatenate([buffered, *held])
        held.clear()
        # The last _PAD samples stay behind: should the recording end here, they are needed for the reflection.
        frames = (len(buffered) - _PAD - N_FFT) // HOP + 1
        yield buffered[: (frames - 1) * HOP + N_FFT], None
        buffered = buffered[frames * HOP :]
    first = count == sum(map(len, held))
    tail = np.concatenate([buffered, *held])
    if count < _MIN_SAMPLES:
        tail, count = np.pad(tail, (0, _MIN_SAMPLES - count)), _MIN_SAMPLES
    yield np.pad(tail, (_PAD if first else 0, _PAD), "reflect"), count


def _log_power(samples: Float32Array) -> Float32Array:
    frames = sliding_window_view(samples, N_FFT)[::HOP] * _hann()
    power = np.abs(np.fft.rfft(frames)).astype(np.float32) ** 2
    mel: Float32Array = np.maximum(_filters() @ power.T, np.float32(_POWER_FLOOR))
    return np.log10(mel)


def scaled(log_power: Float32Array, peak: float) -> Float32Array:
    """Whisper's input values: `log_power` clamped to 8 below `peak`, the recording's maximum; then (x + 4) / 4."""
    return (np.maximum(log_power, np.float32(peak - _LOG_RANGE)) + np.float32(4)) / np.float32(4)


@lru_cache(maxsize=1)
def _hann() -> Float32Array:
    """Periodic Hann window."""
    return np.hanning(N_FFT + 1)[:-1].astype(np.float32)


@lru_cache(maxsize=1)
def _filters() -> Float32Array:
    """Slaney's mel filters `(80, 201)`."""
    return np.asarray(mel_filters(sr=SAMPLE_RATE_HZ, n_fft=N_FFT, n_mels=MEL_BANDS), np.float32)
