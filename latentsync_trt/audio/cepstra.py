"""Mel-frequency cepstra of speech, which SyncNet takes. Pure."""

from collections.abc import Iterable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.types import Float32Array, Float64Array

# python_speech_features' defaults.
_WINDOW, _HOP, _FFT, _FILTERS, _CEPSTRA, _LIFTER, _PREEMPHASIS = 400, 160, 512, 26, 13, 22, 0.97
_LEAST_POWER = float(np.finfo(np.float64).eps)


def cepstra_of(blocks: Iterable[Float32Array]) -> Float32Array:
    """Mel-frequency cepstra of 16-bit samples, float32 `(n, 13)`, 100 per second; the first is the log energy.

    Args:
        blocks: consecutive float32 `(samples,)`, mono at 16 kHz, full scale ±1.
    """
    filters, transform = _transforms()
    found, held = [np.zeros((0, _CEPSTRA), np.float32)], np.zeros(1)
    for block in blocks:
        held = np.append(held, np.clip(np.rint(block * 32768.0), -32768, 32767))
        if len(held) > _WINDOW:
            windows = sliding_window_view(held[1:] - _PREEMPHASIS * held[:-1], _WINDOW)[::_HOP]
            power = np.abs(np.fft.rfft(windows, _FFT)) ** 2 / _FFT
            rows = np.log(np.maximum(power @ filters, _LEAST_POWER)) @ transform
            rows[:, 0] = np.log(np.maximum(power.sum(axis=1), _LEAST_POWER))
            found.append(rows.astype(np.float32))
            held = held[len(windows) * _HOP :]
    return np.concatenate(found)


def _transforms() -> tuple[Float64Array, Float64Array]:
    """Triangular mel filters `(257, 26)`, and the orthonormal DCT-II with its lifter `(26, 13)`."""
    mels = np.linspace(0, 2595 * np.log10(1 + SAMPLE_RATE_HZ / 2 / 700), _FILTERS + 2)
    edges = np.floor((_FFT + 1) * 700 * (10 ** (mels / 2595) - 1) / SAMPLE_RATE_HZ)
    bins, order = np.arange(_FFT // 2 + 1), np.arange(_CEPSTRA)
    filters = [np.interp(bins, edges[at : at + 3], (0, 1, 0)) for at in range(_FILTERS)]
    cosines = np.cos(np.pi / _FILTERS * (np.arange(_FILTERS)[:, None] + 0.5) * order)
    scale = np.where(order == 0, 1, np.sqrt(2)) / np.sqrt(_FILTERS)
    return np.stack(filters, axis=1), cosines * scale * (1 + _LIFTER / 2 * np.sin(np.pi * order / _LIFTER))
