"""Audio input: the first audio stream of a file as blocks of mono float samples."""

from collections.abc import Generator, Iterator
from fractions import Fraction
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.types import Float32Array

SPEECH_RATE_HZ = 16_000
"""Samples per second of the network's audio encoder."""

LEAST_RATE_HZ, MOST_RATE_HZ = 1_000, 4_000_000
"""Sample rates of sources: from telephone quality and less to DSD512. At 1 GHz, which a damaged header may state, the
resampler alone takes 1 GB."""

# Without the limit swresample does not normalize when it mixes into float: stereo would come out 3 dB too loud.
_MIX_OPTIONS = {"rematrix_maxval": "1.0"}


def audio_duration_s(path: Path) -> Fraction:
    """Duration of the first audio stream of `path`, counted in decoded samples, as containers only estimate it.

    Raises:
        MediaError: the file cannot be read, has no audio stream, or the stream has no samples.
    """
    with open_input(path) as container:
        frames = decoded_audio(path, container, audio_stream(path, container))
        return sum((Fraction(frame.samples, frame.sample_rate) for frame in frames), Fraction(0))


def read_audio_blocks(path: Path, rate_hz: int = SPEECH_RATE_HZ) -> Generator[Float32Array, None, None]:
    """Mono blocks `(n,)` float32 of the first audio stream of an audio or video file, resampled to `rate_hz`.

    Integer samples map full scale to [−1, 1): 16-bit ones are divided by 32768. Float samples keep their values, and
    resampling may overshoot slightly. Channels are mixed by swresample with weights that sum to at most 1: stereo to
    its mean; surround sound mostly from the center, without the low-frequency channel. A mono source at this rate is
    not filtered.

    Raises:
        MediaError: the file cannot be read, has no audio stream, or the stream has no samples.
        InputError: a sample is not a finite number; the message gives the time.
    """
    position = 0
    with open_input(path) as container:
        stream = audio_stream(path, container)
        for frame in resampled(path, decoded_audio(path, container, stream), "mono", rate_hz, _MIX_OPTIONS):
            block = frame.to_ndarray().reshape(-1).astype(np.float32, copy=False)
            finite = np.isfinite(block)
            if not finite.all():
                time_s = (position + int(finite.argmin())) / rate_hz
                raise InputError(f"{path}: has samples that are NaN or infinite, the first after {time_s:.3f} s")
            position += block.size
            yield block


def audio_stream(path: Path, container: InputContainer) -> AudioStream:
    """The first audio stream of an open file; raises `MediaError` if there is none or its header is damaged."""
    if not container.streams.audio:
        raise MediaError(f"{path}: has no audio stream")
    stream = container.streams.audio[0]
    context: AudioCodecContext | None = stream.codec_context  # PyAV's types leave the None out
    if context is None:
        raise MediaError(f"{path}: its audio stream is in a codec that FFmpeg does not know; convert the file to WAV")
    if not context.sample_rate:
        raise MediaError(f"{path}: its audio stream has no sample rate; the file is damaged or ends in its header")
    _check_rate(path, context.sample_rate)
    return stream


def _check_rate(path: Path, rate_hz: int) -> None:
    if not LEAST_RATE_HZ <= rate_hz <= MOST_RATE_HZ:
        allowed = f"{LEAST_RATE_HZ} to {MOST_RATE_HZ}"
        raise MediaError(f"{path}: its audio has {rate_hz} samples per second, supported are {allowed}; is it damaged?")


def decoded_audio(path: Path, container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decoded frames with samples; raises `MediaError` if decoding fails (with the time) or there are no samples."""
    frames = container.decode(stream)
    decoded_s = Fraction(0)
    while True:
        with reading(path, f"its audio breaks off after {float(decoded_s):.2f} s; repair or re-encode it"):
            frame = next(frames, None)
        if frame is None:
            break
        if frame.samples:
            _check_rate(path, frame.sample_rate)  # codecs may state another one in each frame
            decoded_s += Fraction(frame.samples, frame.sample_rate)
            yield frame
    if not decoded_s:
        raise MediaError(f"{path}: its audio stream has no samples")


def resampled(
    path: Path, frames: Iterator[AudioFrame], layout: str, rate_hz: int, options: dict[str, str] | None = None
) -> Iterator[AudioFrame]:
    """Packed float frames without time stamps. A new format within the stream starts a new resampler."""
    for _, run in groupby(frames, lambda frame: (frame.format.name, frame.layout.name, frame.sample_rate)):
        resampler = AudioResampler("flt", layout, rate_hz, options=options)
        for frame in chain(run, (None,)):
            if frame is not None:
                # With time stamps the resampler would fill gaps; this package counts positions in samples.
                frame.pts = None
            with reading(path, "its audio cannot be resampled"):
                pieces = resampler.resample(frame)
            yield from pieces
