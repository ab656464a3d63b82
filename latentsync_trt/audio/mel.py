"""Whisper's log-mel spectrogram, computed in blocks, and its filters, which bundles contain;
cepstra for SyncNet.

Whisper clips a recording 8 decades below its maximum. It is therefore read twice: first for the
maximum of `log_power_blocks`, then to scale them with `scaled`. Only one block is in memory at a
time.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError
from latentsync_trt.types import Float32Array, Float64Array

SAMPLE_RATE_HZ = 16000
MEL_BANDS = 80
FFT = 400
HOP = 160
_HALF = FFT // 2

MEL_FRAMES_PER_S = SAMPLE_RATE_HZ // HOP

MEL_FILTERS = "mel_filters.npy"
"""File of a bundle."""

_POWER_FLOOR = 1e-10
SILENT_LOG_POWER = -10.0
"""Its logarithm: the log power of digital silence."""

_DYNAMIC_RANGE = 8.0
"""Decades below the recording's maximum at which the spectrogram is clipped."""

# 30 s of frames: their spectra take 5 MB.
_BLOCK_FRAMES = 30 * MEL_FRAMES_PER_S
_BLOCK_SAMPLES = _BLOCK_FRAMES * HOP

_HANN = np.hanning(FFT + 1)[:-1].astype(np.float32)
"""The periodic window."""


# python_speech_features' defaults.
_WINDOW = 400
_HOP = 160
_FFT = 512
_FILTERS = 26
_CEPSTRA = 13
_LIFTER = 22
_PREEMPHASIS = 0.97
_LEAST_POWER = float(np.finfo(np.float64).eps)


def computed_filters() -> Float32Array:
    """Slaney's mel bands, float32 `(80, 201)`; needs librosa, of the extra `export`."""
    from librosa.filters import mel

    return np.asarray(mel(sr=SAMPLE_RATE_HZ, n_fft=FFT, n_mels=MEL_BANDS), np.float32)


def filters_of(bundle: Bundle) -> Float32Array:
    """The mel filters of a bundle, float32 `(80, 201)`; raises `BundleError` if the file cannot be
    read.
    """
    path = bundle.folder / MEL_FILTERS
    try:
        return np.asarray(np.load(path, allow_pickle=False), np.float32)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); export the model again") from error


def scaled(log_power: Float32Array, peak: float) -> Float32Array:
    """The network's input: `log_power` clipped 8 decades below `peak`, the recording's maximum,
    then (x + 4) / 4.
    """
    return (np.maximum(log_power, np.float32(peak - _DYNAMIC_RANGE)) + np.float32(4)) / np.float32(
        4
    )


def log_power_blocks(
    pieces: Iterable[Float32Array], filters: Float32Array
) -> Iterator[Float32Array]:
    """log10 of the mel power, at least 1e-10, before clipping: float32 `(80, k)`, k up to 3000, 100
    frames per second.

    Recordings shorter than one analysis window (25 ms) are padded with silence.

    Args:
        pieces: float32 `(samples,)` of any lengths, finite: mono, 16 kHz, full scale ±1.
        filters: the mel bands, float32 `(80, 201)`, from `filters_of`.
    """
    held = np.zeros(0, np.float32)
    count = 0
    made = 0  # from the next frame's window on; samples; frames
    for piece in pieces:
        held = np.concatenate([held, piece])
        count = count + len(piece)
        if len(held) >= _BLOCK_SAMPLES + FFT:
            held = held if made else np.pad(held, (_HALF, 0), "reflect")
            # Half a window is kept: if the recording ends here, the reflection needs it.
            frames = (len(held) - _HALF - FFT) // HOP + 1
            yield from _powers(held, frames, filters)
            held = held[frames * HOP :]
            made = made + frames
    if count:
        held = np.pad(held, (0, max(FFT - count, 0)))
        held = np.pad(held, (0 if made else _HALF, _HALF), "reflect")
        yield from _powers(held, max(count, FFT) // HOP - made, filters)


def _powers(samples: Float32Array, frames: int, filters: Float32Array) -> Iterator[Float32Array]:
    for start in range(0, frames, _BLOCK_FRAMES):
        end = min(start + _BLOCK_FRAMES, frames)
        yield log_power(samples[start * HOP : (end - 1) * HOP + FFT], filters)


def log_power(samples: Float32Array, filters: Float32Array) -> Float32Array:
    """log10 of the mel power of all analysis windows in `samples`: float32 `((n − 1)·160 + 400,)` →
    `(80, n)`.
    """
    windows = sliding_window_view(samples, FFT)[::HOP]
    spectrum = np.fft.rfft(windows * _HANN, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    mel = filters @ power.T
    return np.log10(np.maximum(mel, np.float32(_POWER_FLOOR)))


def cepstra_of(blocks: Iterable[Float32Array]) -> Float32Array:
    """Mel-frequency cepstra of 16-bit samples, float32 `(n, 13)`, 100 per second; the first is the
    log energy.

    Args:
        blocks: consecutive float32 `(samples,)`, mono at 16 kHz, full scale ±1.
    """
    filters, transform = _transforms()
    found = [np.zeros((0, _CEPSTRA), np.float32)]
    held = np.zeros(1)
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
    bins = np.arange(_FFT // 2 + 1)
    order = np.arange(_CEPSTRA)
    filters = [np.interp(bins, edges[at : at + 3], (0, 1, 0)) for at in range(_FILTERS)]
    cosines = np.cos(np.pi / _FILTERS * (np.arange(_FILTERS)[:, None] + 0.5) * order)
    scale = np.where(order == 0, 1, np.sqrt(2)) / np.sqrt(_FILTERS)
    return np.stack(filters, axis=1), cosines * scale * (
        1 + _LIFTER / 2 * np.sin(np.pi * order / _LIFTER)
    )
