"""Sound files, their stamps, and spectrograms of samples."""

import wave
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.packet import Packet

from latentsync_trt.audio.mel import filters_of, log_power_blocks, scaled
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.types import Float32Array
from tests.small import small_bundle


def write_samples(path: Path, samples: Float32Array, rate_hz: int) -> Path:
    """Samples `(n,)` or `(n, channels)` in [−1, 1] as 16-bit WAV."""
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(samples.shape[1] if samples.ndim > 1 else 1)
        sound.setsampwidth(2)
        sound.setframerate(rate_hz)
        sound.writeframes(np.rint(samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return path


def spoken(duration_s: float, rate_hz: int, clicks_s: Iterable[float] = ()) -> Float32Array:
    """Quiet noise `(n,)` with a loud click of 1 ms at each of `clicks_s`."""
    samples = (
        np.random.default_rng(5).normal(0, 0.01, round(duration_s * rate_hz)).astype(np.float32)
    )
    for click_s in clicks_s:
        start = round(click_s * rate_hz)
        samples[start : start + rate_hz // 1000] = 0.9
    return samples


def write_parts(
    path: Path,
    parts: Iterable[tuple[float, Float32Array]],
    *,
    codec: str = "pcm_s16le",
    rate_hz: int = 48000,
    layout: str = "stereo",
) -> Path:
    """Parts of mono samples, in all channels, each at its time in seconds; an encoder's delay comes
    before.
    """
    with av.open(str(path), "w") as container:
        for packet in sound_packets(container, parts, codec=codec, rate_hz=rate_hz, layout=layout):
            container.mux(packet)
    return path


def sound_packets(
    container: OutputContainer,
    parts: Iterable[tuple[float, Float32Array]],
    *,
    codec: str,
    rate_hz: int,
    layout: str = "stereo",
) -> list[Packet]:
    """A new sound track of a container, as `write_parts`."""
    experimental = {"strict": "experimental"}  # as FFmpeg's own Vorbis is
    stream = container.add_stream(codec, rate=rate_hz, layout=layout, options=experimental)
    size = stream.codec_context.frame_size or rate_hz // 50
    packets = []
    for start_s, samples in parts:
        for at in range(0, len(samples), size):
            packed = np.repeat(samples[at : at + size], len(stream.layout.channels))[None]
            frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
            frame.sample_rate = rate_hz
            frame.time_base = Fraction(1, rate_hz)
            frame.pts = round(start_s * rate_hz) + at
            packets += stream.encode(frame)
    return packets + stream.encode(None)


@cache
def mel_filters() -> Float32Array:
    """Those of the small bundle, float32 `(80, 201)`."""
    return filters_of(Bundle.load(small_bundle(), verify=False))


def log_mel(samples: Float32Array) -> Float32Array:
    """Whisper's spectrogram `(80, n)` of mono samples at 16 kHz."""
    log_power = np.concatenate(list(log_power_blocks([samples], mel_filters())), axis=1)
    return scaled(log_power, float(log_power.max()))
