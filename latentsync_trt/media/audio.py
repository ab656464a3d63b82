"""Audio input: the main audio stream of a file, each sample at the time of its stamp, mixed to a
layout.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np
from av import AudioFrame, AudioResampler, AudioStream
from av.container import InputContainer

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.files import codec_name, guarded, is_mp4, main_audio, open_input, reading
from latentsync_trt.media.mixer import Mixer
from latentsync_trt.media.timing import JITTER_S, Timed, clock_of, nearest, stamp_of, with_next
from latentsync_trt.types import Float32Array

SPEECH_RATE_HZ = 16_000
"""The rate of the network's audio encoder."""

_MIN_RATE_HZ = 1_000
_MAX_RATE_HZ = 4_000_000
"""The least and highest rate of sources: no speech is understood below, and DSD512 is the highest
that is recorded. A damaged header may state any: from 1 Hz, each sample would become 16,000; at
1 GHz, the resampler alone takes 1 GB.
"""


def audio_duration_s(path: Path) -> Fraction:
    """Returns the duration of the main audio stream of `path`, as `read_audio_blocks` gives it;
    raises `MediaError` as that.
    """
    end_s = max(timed.end_s for timed in audio_frames(path))
    return Fraction(nearest(end_s, SPEECH_RATE_HZ), SPEECH_RATE_HZ)


def first_sample_s(path: Path) -> Fraction | None:
    """Returns the stamp of the first sample, if it has one; raises `MediaError` as
    `read_audio_blocks`.
    """
    with open_audio(path) as stream:
        return stamp_of(next(_decode(path, stream)))


def read_audio_blocks(
    path: Path,
    rate_hz: int = SPEECH_RATE_HZ,
    *,
    delay_s: Fraction = Fraction(0),
    mixer: Mixer | None = None,
) -> Generator[Float32Array]:
    """Yields mono blocks `(n,)` float32 of the main audio stream of a file, at `rate_hz`.

    Sample n is the one at time n / `rate_hz`: gaps in the time stamps are silent. Integer samples
    map full scale to [−1, 1): 16-bit ones are divided by 32768. Float samples keep their values;
    resampling may overshoot slightly.

    Args:
        delay_s: time of the first sample, with silence before.
        mixer: to mono at this rate, by default a new one.

    Raises:
        MediaError: the file cannot be read, has no audio stream, or the stream has no samples.
        InputError: a sample is not a finite number; the message gives the time.
    """
    block = None
    for block in sound_blocks(path, audio_frames(path, delay_s), mixer or Mixer("mono", rate_hz)):
        yield block.reshape(-1)
    if block is None:
        raise MediaError(
            f"{path}: its audio is shorter than 1/{rate_hz} s; give a longer recording"
        )


def sound_blocks(
    path: Path, frames: Iterable[Timed[AudioFrame]], mixer: Mixer
) -> Generator[Float32Array]:
    """Yields all samples from time 0 to the last, `(n, channels)` float32, each at its frame's
    time, in blocks of a second. Gaps become silence; of samples for the same time, the first count.

    Raises:
        MediaError: a format cannot be converted.
        InputError: a sample is not finite.
    """
    rate_hz = mixer.rate_hz
    position = 0
    for block in regrouped(_placed_blocks(path, frames, mixer), rate_hz):
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            time_s = (position + int(finite.argmin())) / rate_hz
            raise InputError(
                f"{path}: has samples that are NaN or infinite, the first after {time_s:.3f} s"
            )
        position += len(block)
        yield block


def _placed_blocks(
    path: Path, frames: Iterable[Timed[AudioFrame]], mixer: Mixer
) -> Iterator[Float32Array]:
    """Yields the samples of `sound_blocks` in blocks of any lengths."""
    rate_hz = mixer.rate_hz
    position = 0  # of the next sample of the resampler
    count = 0  # of the samples that went out
    resampler: AudioResampler | None = None
    for timed, following in with_next(frames):
        layout = timed.item.layout
        if resampler is None:
            resampler = AudioResampler("flt", layout.name, rate_hz)
            position = nearest(timed.time_s, rate_hz)
            yield from silent_blocks(position - count, mixer.channels, rate_hz)
            count = max(count, position)
        end = nearest(timed.end_s, rate_hz)
        is_last = (
            following is None
            or timed.end_s != following.time_s
            or not is_same_format(timed.item, following.item)
        )
        for samples in _resample(path, resampler, timed.item, is_last=is_last):
            block = mixer.mix(samples.reshape(-1, layout.nb_channels), layout.name)
            first = max(count - position, 0)
            last = max(end - position, 0)
            new = block[first:last]
            position += len(block)
            count += len(new)
            if len(new):
                yield new
        if is_last:
            yield from silent_blocks(end - count, mixer.channels, rate_hz)  # resamplers round
            count = max(count, end)
            resampler = None


def is_same_format(one: AudioFrame, other: AudioFrame) -> bool:
    """Returns whether one resampler takes both frames."""
    return (
        one.format.name == other.format.name
        and one.layout.name == other.layout.name
        and one.sample_rate == other.sample_rate
    )


def _resample(
    path: Path, resampler: AudioResampler, frame: AudioFrame, *, is_last: bool
) -> list[Float32Array]:
    """Returns what the resampler gives after a frame, and with the last one at its end."""
    with reading(path, "its audio cannot be resampled"):
        pieces = resampler.resample(frame)
        if is_last:
            pieces += resampler.resample(None)
    return [np.asarray(piece.to_ndarray(), np.float32) for piece in filter(None, pieces)]


def silent_blocks(count: int, channels: int, rate_hz: int) -> Iterator[Float32Array]:
    """Yields `count` samples `(n, channels)` of 0, in blocks of up to a second; none for a count
    below 0.
    """
    for start in range(0, count, rate_hz):
        yield np.zeros((min(rate_hz, count - start), channels), np.float32)


@contextmanager
def open_audio(path: Path) -> Iterator[AudioStream]:
    """Opens the main audio stream of a file; raises `MediaError` if there is none or it is
    damaged.
    """
    with open_input(path) as container:
        stream = main_audio(container)
        if stream is None:
            raise MediaError(f"{path}: has no audio stream")
        if not codec_name(stream):
            raise MediaError(
                f"{path}: its audio is in a codec that FFmpeg does not know; convert it to WAV"
            )
        yield stream


def audio_frames(path: Path, delay_s: Fraction = Fraction(0)) -> Iterator[Timed[AudioFrame]]:
    """Yields decoded frames, at least one, at their times, the first at `delay_s`; the last one
    ends where the track does.
    """
    with open_audio(path) as stream:
        clock = replace(clock_of(path, stream), next_s=delay_s, jitter_s=JITTER_S)
        for frame, following in with_next(_decode(path, stream)):
            stamp_s = stamp_of(frame)
            duration_s = Fraction(frame.samples, frame.sample_rate)
            time_s = clock.advance(stamp_s, duration_s)
            if following is None and stamp_s is not None:
                duration_s -= _padding_s(stream, stamp_s, duration_s)
            yield Timed(time_s, duration_s, frame)


def _padding_s(stream: AudioStream, stamp_s: Fraction, duration_s: Fraction) -> Fraction:
    """Returns how much of the last frame is the encoder's padding: only MP4 states the lengths of
    tracks to the sample.
    """
    container = cast(InputContainer, stream.container)
    if not is_mp4(container) or not stream.duration or not stream.time_base:
        return Fraction(0)
    track_end_s = ((stream.start_time or 0) + stream.duration) * stream.time_base
    beyond_s = stamp_s + duration_s - track_end_s
    if 0 < beyond_s < duration_s:
        return beyond_s
    return Fraction(0)


def _decode(path: Path, stream: AudioStream) -> Iterator[AudioFrame]:
    """Yields decoded frames with samples, at least one; errors as `read_audio_blocks`."""
    container = cast(InputContainer, stream.container)
    is_empty = True
    for frame in guarded(path, stream, container.decode(stream)):
        if not frame.samples:
            continue
        rate_hz = frame.sample_rate
        if not _MIN_RATE_HZ <= rate_hz <= _MAX_RATE_HZ:
            raise MediaError(
                f"{path}: its audio has {rate_hz} samples per second, "
                f"supported are {_MIN_RATE_HZ} to {_MAX_RATE_HZ}; is it damaged?"
            )
        is_empty = False
        yield frame
    if is_empty:
        raise MediaError(f"{path}: its audio stream has no samples")


def sound_frame(samples: Float32Array, rate_hz: int, at: int) -> AudioFrame:
    """Returns mono `samples (n,)` in [−1, 1] as 16-bit sound that begins at sample `at`."""
    levels = np.rint(samples * 32768)
    clipped = levels.clip(-32768, 32767).astype(np.int16)
    frame = AudioFrame.from_ndarray(clipped[None], "s16", "mono")
    frame.sample_rate = rate_hz
    frame.pts = at
    frame.time_base = Fraction(1, rate_hz)
    return frame


class RateConverter:
    """Converts mono samples that come piece by piece, float32 `(n,)`, to another rate; how they are
    divided makes no difference. The last few milliseconds of what came so far follow with the next
    piece, or at the end.
    """

    def __init__(self, rate_hz: int, to_hz: int) -> None:
        self._rate_hz = rate_hz
        self._resampler = AudioResampler("flt", "mono", to_hz)

    def convert(self, samples: Float32Array | None) -> Float32Array:
        """Returns what can be computed now; None ends the sound."""
        frame = None
        if samples is not None:
            frame = AudioFrame.from_ndarray(samples[None].astype(np.float32), "flt", "mono")
            frame.sample_rate = self._rate_hz
        pieces = filter(None, self._resampler.resample(frame))
        blocks = [piece.to_ndarray().reshape(-1) for piece in pieces]
        return np.concatenate([np.zeros(0, np.float32), *blocks], dtype=np.float32)


class SampleQueue:
    """Mono samples, float32 `(n,)`: added at the end, taken from the start."""

    def __init__(self) -> None:
        self._bytes = bytearray()  # which is cheap to shorten at its start

    @property
    def size(self) -> int:
        return len(self._bytes) // 4

    def add(self, samples: Float32Array) -> None:
        self._bytes += samples.tobytes()

    def take(self, count: int) -> Float32Array:
        """Returns and removes the first `count` samples, filled with silence at the end."""
        samples = self.peek(count)
        del self._bytes[: 4 * count]
        return samples

    def peek(self, count: int) -> Float32Array:
        """Returns the first `count` samples, filled with silence at the end."""
        samples = np.frombuffer(bytes(self._bytes[: 4 * count]), np.float32)
        return np.pad(samples, (0, count - samples.size))


def regrouped(blocks: Iterable[Float32Array], count: int) -> Iterator[Float32Array]:
    """Yields a sound in blocks `(count, channels)`, the last one shorter, from blocks of any
    lengths.
    """
    waiting = list[Float32Array]()
    length = 0
    for block in blocks:
        waiting.append(block)
        length += len(block)
        if length >= count:
            ends = range(count, length + 1, count)
            *whole, rest = np.split(np.concatenate(waiting), ends)
            yield from whole
            waiting = [rest]
            length = len(rest)
    if length:
        yield np.concatenate(waiting)
