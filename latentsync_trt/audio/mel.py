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
"""Samples of an analysis window."""

HALF_FFT = FFT // 2
"""Samples by which the first window begins before the recording."""

HOP = 160
"""Samples from one window to the next."""

MEL_FRAMES_PER_S = SAMPLE_RATE_HZ // HOP

MEL_FILTERS = "mel_filters.npy"
"""The file of a bundle that holds the filters."""

_POWER_FLOOR = 1e-10
"""The least power that a band counts with."""

SILENT_LOG_POWER = -10.0
"""The logarithm of the least power, which is the log power of digital silence."""

_DYNAMIC_RANGE = 8.0
"""Decades below the recording's maximum at which the spectrogram is clipped."""

_BLOCK_FRAMES = 30 * MEL_FRAMES_PER_S
"""The most frames of a block: the spectra of 30 s take 5 MB."""

_BLOCK_SAMPLES = _BLOCK_FRAMES * HOP

_HANN = np.hanning(FFT + 1)[:-1].astype(np.float32)
"""The periodic window."""

# What follows is for the cepstra: the defaults of python_speech_features.
_CEPSTRA_WINDOW = 400
_CEPSTRA_HOP = 160
_CEPSTRA_FFT = 512
_CEPSTRA_FILTERS = 26
_CEPSTRA = 13
_LIFTER = 22
_PREEMPHASIS = 0.97
_CEPSTRA_FLOOR = float(np.finfo(np.float64).eps)


def computed_filters() -> Float32Array:
    """Returns Slaney's mel bands, float32 `(80, 201)`; needs librosa, of the extra `export`."""
    from librosa.filters import mel

    return np.asarray(mel(sr=SAMPLE_RATE_HZ, n_fft=FFT, n_mels=MEL_BANDS), np.float32)


def filters_of(bundle: Bundle) -> Float32Array:
    """Returns the mel filters of a bundle, float32 `(80, 201)`; raises `BundleError` if the file
    cannot be read.
    """
    path = bundle.folder / MEL_FILTERS
    try:
        return np.asarray(np.load(path, allow_pickle=False), np.float32)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); export the model again") from error


def scaled(log_power: Float32Array, peak: float) -> Float32Array:
    """Returns the network's input: `log_power` clipped 8 decades below `peak`, the recording's
    maximum, then (x + 4) / 4.
    """
    clipped = np.maximum(log_power, np.float32(peak - _DYNAMIC_RANGE))
    return (clipped + np.float32(4)) / np.float32(4)


def log_power_blocks(
    pieces: Iterable[Float32Array], filters: Float32Array
) -> Iterator[Float32Array]:
    """Yields log10 of the mel power, at least 1e-10, before clipping: float32 `(80, k)`, k up to
    3000, 100 frames per second.

    Recordings shorter than one analysis window (25 ms) are padded with silence.

    Args:
        pieces: float32 `(samples,)` of any lengths, finite: mono, 16 kHz, full scale ±1.
        filters: the mel bands, float32 `(80, 201)`, from `filters_of`.
    """
    held = np.zeros(0, np.float32)  # from the window of the next frame on
    samples = 0
    frames = 0
    for piece in pieces:
        held = np.concatenate([held, piece])
        samples += len(piece)
        if len(held) >= _BLOCK_SAMPLES + FFT:
            if not frames:
                held = np.pad(held, (HALF_FFT, 0), "reflect")
            # Half a window is kept: if the recording ends here, the reflection needs it.
            count = (len(held) - HALF_FFT - FFT) // HOP + 1
            yield from _log_powers(held, count, filters)
            held = held[count * HOP :]
            frames += count
    if samples:
        held = np.pad(held, (0, max(FFT - samples, 0)))
        before = 0 if frames else HALF_FFT
        held = np.pad(held, (before, HALF_FFT), "reflect")
        count = max(samples, FFT) // HOP - frames
        yield from _log_powers(held, count, filters)


def _log_powers(
    samples: Float32Array, frames: int, filters: Float32Array
) -> Iterator[Float32Array]:
    """Yields the log powers of the first windows in `samples`, as many as `frames`, in blocks."""
    for start in range(0, frames, _BLOCK_FRAMES):
        end = min(start + _BLOCK_FRAMES, frames)
        block = samples[start * HOP : (end - 1) * HOP + FFT]
        yield log_power(block, filters)


def log_power(samples: Float32Array, filters: Float32Array) -> Float32Array:
    """Returns log10 of the mel power of all analysis windows in `samples`: float32 `((n − 1)·160 +
    400,)` → `(80, n)`.
    """
    windows = sliding_window_view(samples, FFT)[::HOP]
    spectrum = np.fft.rfft(windows * _HANN, axis=1)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    mel = filters @ power.T
    return np.log10(np.maximum(mel, np.float32(_POWER_FLOOR)))


def cepstra_of(blocks: Iterable[Float32Array]) -> Float32Array:
    """Returns the mel-frequency cepstra of 16-bit samples, float32 `(n, 13)`, 100 per second; the
    first is the log energy.

    Args:
        blocks: consecutive float32 `(samples,)`, mono at 16 kHz, full scale ±1.
    """
    filters = _cepstra_filters()
    transform = _cepstra_transform()
    cepstra = [np.zeros((0, _CEPSTRA), np.float32)]
    held = np.zeros(1)
    for block in blocks:
        levels = np.rint(block * 32768.0).clip(-32768, 32767)
        held = np.append(held, levels)
        if len(held) > _CEPSTRA_WINDOW:
            emphasized = held[1:] - _PREEMPHASIS * held[:-1]
            windows = sliding_window_view(emphasized, _CEPSTRA_WINDOW)[::_CEPSTRA_HOP]
            spectra = np.fft.rfft(windows, _CEPSTRA_FFT)
            power = np.abs(spectra) ** 2 / _CEPSTRA_FFT
            bands = np.maximum(power @ filters, _CEPSTRA_FLOOR)
            energy = np.maximum(power.sum(axis=1), _CEPSTRA_FLOOR)
            rows = np.log(bands) @ transform
            rows[:, 0] = np.log(energy)
            cepstra.append(rows.astype(np.float32))
            held = held[len(windows) * _CEPSTRA_HOP :]
    return np.concatenate(cepstra)


def _cepstra_filters() -> Float64Array:
    """Returns triangular mel filters, `(257, 26)`."""
    highest = 2595 * np.log10(1 + SAMPLE_RATE_HZ / 2 / 700)
    mels = np.linspace(0, highest, _CEPSTRA_FILTERS + 2)
    ratios = 10 ** (mels / 2595) - 1  # of their frequency to 700 Hz
    edges = np.floor((_CEPSTRA_FFT + 1) * 700 * ratios / SAMPLE_RATE_HZ)
    bins = np.arange(_CEPSTRA_FFT // 2 + 1)
    filters = []
    for left, middle, right in sliding_window_view(edges, 3):
        filters.append(np.interp(bins, (left, middle, right), (0, 1, 0)))
    return np.stack(filters, axis=1)


def _cepstra_transform() -> Float64Array:
    """Returns the orthonormal DCT-II with its lifter, `(26, 13)`."""
    order = np.arange(_CEPSTRA)
    bands = np.arange(_CEPSTRA_FILTERS)[:, None] + 0.5
    cosines = np.cos(np.pi / _CEPSTRA_FILTERS * bands * order)
    scale = np.full(_CEPSTRA, np.sqrt(2)) / np.sqrt(_CEPSTRA_FILTERS)
    scale[0] = 1 / np.sqrt(_CEPSTRA_FILTERS)
    lifter = 1 + _LIFTER / 2 * np.sin(np.pi * order / _LIFTER)
    return cosines * scale * lifter
