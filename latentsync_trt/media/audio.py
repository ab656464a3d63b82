"""Audio in: the first audio stream of a file as mono float samples, whole or block by block."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.failures import open_input, reading
from latentsync_trt.types import Float32Array

SPEECH_RATE_HZ = 16_000
"""Samples per second of the network's audio encoder."""

# Without the limit swresample mixes into float without normalizing: stereo would come out 3 dB too loud.
_MIX_OPTIONS = {"rematrix_maxval": "1.0"}


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What an audio stream is. `duration_s` is counted from its decoded samples, not taken from the container."""

    duration_s: Fraction
    sample_rate_hz: int
    channels: int
    codec: str


def probe_audio(path: Path) -> AudioInfo:
    """What the first audio stream of `path` is; decodes all of it, since containers only estimate how long it lasts.

    Raises:
        MediaError: the file cannot be read, has no audio stream, or the stream holds no samples.
    """
    duration_s = Fraction(0)
    with open_input(path) as container:
        stream = audio_stream(path, container)
        for frame in decoded_audio(path, container, stream):
            duration_s += Fraction(frame.samples, frame.sample_rate)
        context = stream.codec_context
        return AudioInfo(duration_s, context.sample_rate, context.channels, context.name)


def read_audio_mono(path: Path, rate_hz: int = SPEECH_RATE_HZ) -> Float32Array:
    """All samples of the first audio stream `(n,)` float32 as `read_audio_blocks` gives them, in one copy.

    Raises:
        MediaError: the file cannot be read, has no audio stream, or the stream holds no samples.
        InputError: a sample is not a finite number.
    """
    samples = BytesIO()
    for block in read_audio_blocks(path, rate_hz):
        samples.write(block.data)
    return np.frombuffer(samples.getbuffer(), np.float32)


def read_audio_blocks(path: Path, rate_hz: int = SPEECH_RATE_HZ) -> Iterator[Float32Array]:
    """Mono blocks `(n,)` float32 of the first audio stream of an audio or video file, resampled to `rate_hz`.

    Integer samples map full scale to [−1, 1): 16-bit ones are divided by 32768. Float samples keep their values, and
    resampling may overshoot slightly. Channels are mixed as swresample does with weights that sum to at most 1: stereo
    is the mean of both, of surround sound the center counts most and the low-frequency channel not.
    A source that already has this rate and one channel is not filtered.

    Raises:
        MediaError: the file cannot be read, has no audio stream, or the stream holds no samples.
        InputError: a sample is not a finite number; the message names the time.
    """
    position = 0
    with open_input(path) as container:
        stream = audio_stream(path, container)
        for frame in _mono(path, decoded_audio(path, container, stream), rate_hz):
            block = frame.to_ndarray().reshape(-1).astype(np.float32, copy=False)
            finite = np.isfinite(block)
            if not finite.all():
                time_s = (position + int(finite.argmin())) / rate_hz
                raise InputError(
                    f"{path}: holds samples that are no numbers (NaN or infinite), first after {time_s:.3f} s"
                )
            position += block.size
            yield block


def audio_stream(path: Path, container: InputContainer) -> AudioStream:
    """The first audio stream of an open file.

    Raises:
        MediaError: there is none, or no decoder for it.
    """
    if not container.streams.audio:
        raise MediaError(f"{path}: has no audio stream")
    stream = container.streams.audio[0]
    if not stream.codec_context.sample_rate:
        raise MediaError(f"{path}: its audio stream has no sample rate; the file is damaged or ends in its header")
    return stream


def decoded_audio(path: Path, container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decoded frames that hold samples, channel layout named.

    Raises:
        MediaError: the decoder breaks, naming the time; or there is no sample at all.
    """
    frames = container.decode(stream)
    decoded_s = Fraction(0)
    while True:
        with reading(path, f"its audio breaks off after {float(decoded_s):.2f} s; repair or re-encode it"):
            frame = next(frames, None)
        if frame is None:
            break
        if frame.samples:
            decoded_s += Fraction(frame.samples, frame.sample_rate)
            yield frame
    if not decoded_s:
        raise MediaError(f"{path}: its audio stream holds no samples")


def _mono(path: Path, frames: Iterator[AudioFrame], rate_hz: int) -> Iterator[AudioFrame]:
    """Mono float frames at `rate_hz`. A change of format inside the stream starts a new resampler."""
    resampler, current = None, None
    for frame in frames:
        signature = (frame.format.name, frame.layout.name, frame.sample_rate)
        with reading(path, "its audio cannot be resampled"):
            if resampler is None or signature != current:
                if resampler is not None:
                    yield from resampler.resample(None)
                resampler = AudioResampler("flt", AudioLayout("mono"), rate_hz, options=_MIX_OPTIONS)
                current = signature
            # Their own times would make the resampler fill gaps; positions are counted in samples.
            frame.pts = None
            yield from resampler.resample(frame)
    if resampler is not None:
        with reading(path, "its audio cannot be resampled"):
            yield from resampler.resample(None)
