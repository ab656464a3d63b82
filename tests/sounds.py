"""Sound files and spectrograms of samples."""

import wave
from pathlib import Path

import numpy as np

from latentsync_trt.audio.mel import log_power_blocks, scaled
from latentsync_trt.types import Float32Array


def write_samples(path: Path, samples: Float32Array, rate_hz: int) -> Path:
    """Mono samples `(n,)` in [−1, 1] as 16-bit WAV."""
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate_hz)
        sound.writeframes(np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return path


def log_mel(samples: Float32Array) -> Float32Array:
    """Whisper's spectrogram `(80, n)` of mono samples at 16 kHz."""
    log_power = np.concatenate(list(log_power_blocks([samples])), axis=1)
    return scaled(log_power, float(log_power.max()))
