"""The mel filters of the audio encoder's input.

Bundles contain them, so that a run need not import librosa, which takes a second and a home folder that can be written.
"""

from pathlib import Path

import numpy as np

from latentsync_trt.audio.mel import FFT, MEL_BANDS, SAMPLE_RATE_HZ
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError
from latentsync_trt.types import Float32Array

MEL_FILTERS = "mel_filters.npy"
"""File of a bundle, since format 5."""

_SHAPE = MEL_BANDS, FFT // 2 + 1


def computed_filters() -> Float32Array:
    """Slaney's mel bands, float32 `(80, 201)`."""
    from librosa.filters import mel

    bands: Float32Array = mel(sr=SAMPLE_RATE_HZ, n_fft=FFT, n_mels=MEL_BANDS)
    return bands


def filters_of(bundle: Bundle) -> Float32Array:
    """The mel filters of a bundle, float32 `(80, 201)`; computed for bundles before format 5.

    Raises:
        BundleError: the file does not contain them.
    """
    if MEL_FILTERS not in bundle.manifest.files:
        return computed_filters()
    path = bundle.folder / MEL_FILTERS
    try:
        filters = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BundleError(f"{path}: cannot be read ({error}); export the model again") from error
    if (filters.shape, filters.dtype) != (_SHAPE, np.float32):
        raise BundleError(f"{path}: {filters.dtype} {filters.shape}, not float32 {_SHAPE}; export the model again")
    return filters


def write_filters(folder: Path, filters: Float32Array) -> None:
    """Writes them into the folder of a bundle that is being made."""
    np.save(folder / MEL_FILTERS, filters)
