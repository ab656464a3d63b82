"""Audio input: the first audio stream of a file, each sample at the time of its stamp, mixed to a
layout.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from av import AudioFrame, AudioLayout, AudioResampler, AudioStream, FFmpegError
from av.container import InputContainer

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.files import codec_name, guarded, is_mp4, open_input, reading
from latentsync_trt.media.timing import JITTER_S, Timed, clock_of, nearest, stamp_of, with_next
from latentsync_trt.types import Float32Array

SPEECH_RATE_HZ = 16_000  # of the network's audio encoder

# Of sources, up to DSD512. At 1 GHz, which a damaged header may state, the resampler alone takes 1
# GB.
_LEAST_RATE_HZ = 1_000
_MOST_RATE_HZ = 4_000_000

_STANDARD = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
"""By number of channels. For all but 6.1, AAC has a channel configuration, which every player
knows.
"""

_LARGER = {
    "2.1": "5.1",
    "3.0(back)": "4.0",
    "3.1": "5.1",
    "quad": "5.0",
    "quad(side)": "5.0",
    "4.1": "5.1",
}
_LARGER |= {"6.0": "7.1", "6.1": "7.1", "7.0": "7.1"}
"""Standard layouts with a place for each channel of others, whose places are not in that of as many
channels.
"""

# Places that swresample can mix; with others, it may write beyond its memory.
_MIXED = {
    "FL",
    "FR",
    "FC",
    "LFE",
    "BL",
    "BR",
    "FLC",
    "FRC",
    "BC",
    "SL",
    "SR",
    "TC",
    "TFL",
    "TFC",
    "TFR",
}
_MIXED |= {"TBL", "TBC", "TBR", "NONE"}
_LOW = {"LFE", "LFE2"}
# All other channels together are silent below this share of the power of low frequencies.
_SILENT_SHARE = 1e-6

# Of the power that channels with nothing in common have together; and how much of a power counts
# after a second, as chords and echoes may cancel each other out for moments.
_CANCELED = 10 ** (-12 / 10)
_POWER_KEPT_PER_S = 0.01


def usual_layout(layout: AudioLayout) -> str:
    """The name of `layout`; the standard one where places are not given, or odd, as "front left"
    for a microphone.
    """
    count = layout.nb_channels
    name = layout.name
    if count < 3 or " channels" in name:
        return _STANDARD.get(count, name)
    return name


def standard_layout(layout: str) -> str:
    """The standard layout that holds all channels of `layout`; itself if it has more than eight."""
    return _LARGER.get(layout) or _STANDARD.get(AudioLayout(layout).nb_channels, layout)


@cache
def channel_shares(source: str, target: str) -> Float32Array:
    """The share of each channel of `source` in each of `target`, float32 `(m, n)`, mostly as
    swresample has it. Stereo becomes mono as its mean, surround sound mostly from the center,
    without the low-frequency channel, but with all others, of which swresample leaves some out.
    Where it does not know the places, channels keep their order, or become mono as their mean.
    """
    names = [channel.name for channel in AudioLayout(source).channels]
    given = len(names)
    wanted = AudioLayout(target).nb_channels
    # swresample would make it 3 dB softer than players that play mono on two speakers
    if (given, wanted) == (1, 2):
        return np.ones((1, 2), np.float32)
    shares = _resampled(source, target, given, wanted) if _MIXED.issuperset(names) else None
    if shares is None:
        shares = np.full((given, wanted), 1 / given, np.float32)
    if wanted > 1:
        if given == wanted and shares.max() < 1:
            return np.eye(given, dtype=np.float32)
        return shares
    left_out = (shares[:, 0] == 0) & ~np.isin(names, list(_LOW))
    shares[left_out] = shares[shares > 0].min()
    return shares / shares.sum()


def _resampled(source: str, target: str, given: int, wanted: int) -> Float32Array | None:
    """swresample's shares of `given` channels in `wanted` ones; None where it has none."""
    try:
        # Without the option swresample does not normalize a mix into float: stereo would be 3 dB
        # too loud.
        resampler = AudioResampler("flt", target, 48_000, options={"rematrix_maxval": "1.0"})
        impulses = AudioFrame.from_ndarray(
            np.eye(given, dtype=np.float32).reshape(1, -1), "flt", source
        )
        impulses.sample_rate = 48_000
        mixed = [part.to_ndarray().astype(np.float32) for part in resampler.resample(impulses)]
    except FFmpegError:
        return None
    return np.concatenate(mixed, axis=1).reshape(given, wanted)


class Mixer:
    """Turns blocks of a sound at `rate_hz` into those of the layout `target`. Where a mono mix
    would be silent, as that of left and right with opposite phase, the louder channel takes its
    place, and where only the low-frequency channel has had sound, that one. `canceled_s`, `low_s`:
    for how long they did.
    """

    def __init__(self, target: str, rate_hz: int) -> None:
        self._target = target
        self._source = ""
        self._power = 0.0
        self._shares = self._used = np.zeros(0, np.float32)
        self._powers = self._total = np.zeros(0)
        self.channels = AudioLayout(target).nb_channels
        self.rate_hz = rate_hz
        self.canceled_s = self.low_s = 0.0

    @np.errstate(invalid="ignore")  # what is not finite is refused later, with its time
    def mix(self, block: Float32Array, source: str) -> Float32Array:
        """`block (n, m)` of the layout `source` as `(n, channels)`."""
        if source == self._target:
            return block
        if self.channels > 1 or block.shape[1] == 1:
            return block @ channel_shares(source, self._target)
        if source != self._source:
            self._source, self._shares = source, channel_shares(source, self._target)[:, 0]
            self._used = self._shares
            self._power = 0.0
            self._powers = self._total = np.zeros(len(self._shares))
        begins = not self._powers.any()
        length_s = len(block) / self.rate_hz
        before = self._used
        self._used = self._shares
        powers = np.square(block, dtype=np.float64).sum(axis=0)
        self._powers = _POWER_KEPT_PER_S**length_s * self._powers + powers
        self._total = self._total + powers
        self._power = _POWER_KEPT_PER_S**length_s * self._power + float(
            np.square(block @ self._shares, dtype=np.float64).sum()
        )
        low = np.where(self._shares == 0, self._total, 0)
        if (self._total - low).sum() < _SILENT_SHARE * low.sum():
            self._used = np.eye(len(low), dtype=np.float32)[low.argmax()]
            self.low_s += length_s
        elif self._power < _CANCELED * (np.square(self._shares) @ self._powers):
            louder = (self._shares * (1 + before) * self._powers).argmax()
            self._used = np.eye(len(self._shares), dtype=np.float32)[louder]
            self.canceled_s += length_s
        before = self._used if begins else before
        fading = np.linspace(0, 1, len(block), dtype=np.float32)[:, None]
        return (block * (before + fading * (self._used - before))).sum(axis=1, keepdims=True)


def audio_duration_s(path: Path) -> Fraction:
    """Duration of the first audio stream of `path`, as `read_audio_blocks` gives it; raises
    `MediaError` as that.
    """
    end_s = max(timed.end_s for timed in audio_frames(path))
    return Fraction(nearest(end_s, SPEECH_RATE_HZ), SPEECH_RATE_HZ)


def first_sample_s(path: Path) -> Fraction | None:
    """The stamp of the first sample, if it has one; errors as below."""
    with open_audio(path) as stream:
        return stamp_of(next(_frames(path, stream)))


def read_audio_blocks(
    path: Path,
    rate_hz: int = SPEECH_RATE_HZ,
    *,
    delay_s: Fraction = Fraction(0),
    mixer: Mixer | None = None,
) -> Generator[Float32Array, None, None]:
    """Mono blocks `(n,)` float32 of the first audio stream of a file, resampled to `rate_hz`.

    Sample n is the one at time n / `rate_hz`: gaps in the time stamps are silent. Integer samples
    map full scale to [−1, 1): 16-bit ones are divided by 32768. Float samples keep their values;
    resampling may overshoot slightly. `delay_s`: time of the first sample, with silence before.
    `mixer`: to mono at this rate, by default a new one.

    Raises `MediaError`: the file cannot be read, has no audio stream, or the stream has no samples;
    `InputError`: a sample is not a finite number; the message gives the time.
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
) -> Generator[Float32Array, None, None]:
    """All samples from time 0 to the last, `(n, channels)` float32, each at its frame's time, in
    blocks of a second. Gaps become silence; samples of a time that was given already are dropped.
    Raises `MediaError`: a format cannot be converted; `InputError`: a sample is not finite.
    """
    rate_hz = mixer.rate_hz
    position = 0
    for block in regrouped(_placed(path, frames, mixer), rate_hz):
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            time_s = (position + int(finite.argmin())) / rate_hz
            raise InputError(
                f"{path}: has samples that are NaN or infinite, the first after {time_s:.3f} s"
            )
        position += len(block)
        yield block


def _placed(
    path: Path, frames: Iterable[Timed[AudioFrame]], mixer: Mixer
) -> Iterator[Float32Array]:
    """The samples of `sound_blocks` in blocks of any lengths."""
    channels = mixer.channels
    rate_hz = mixer.rate_hz
    at = 0
    given = 0
    resampler: AudioResampler | None = None
    for timed, following in with_next(frames):
        source = timed.item.layout
        if resampler is None:
            resampler = AudioResampler("flt", source.name, rate_hz)
            at = nearest(timed.time_s, rate_hz)
            yield from silent_blocks(at - given, channels, rate_hz)
            given = max(given, at)
        end = nearest(timed.end_s, rate_hz)
        direct = timed.end_s, audio_format(timed.item)
        last = following is None or direct != (following.time_s, audio_format(following.item))
        with reading(path, "its audio cannot be resampled"):
            pieces = [*resampler.resample(timed.item), *(resampler.resample(None) if last else ())]
        for piece in filter(None, pieces):
            block = mixer.mix(piece.to_ndarray().reshape(-1, source.nb_channels), source.name)
            fresh = block[max(given - at, 0) : max(end - at, 0)]
            at = at + len(block)
            given = given + len(fresh)
            if len(fresh):
                yield fresh
        if last:
            yield from silent_blocks(end - given, channels, rate_hz)  # resamplers round
            given = max(given, end)
            resampler = None


def audio_format(frame: AudioFrame) -> tuple[str, str, int]:
    return frame.format.name, frame.layout.name, frame.sample_rate


def silent_blocks(count: int, channels: int, rate_hz: int) -> Iterator[Float32Array]:
    """So many samples `(n, channels)` of 0, in blocks of up to a second; none below 0."""
    for start in range(0, count, rate_hz):
        yield np.zeros((min(rate_hz, count - start), channels), np.float32)


@contextmanager
def open_audio(path: Path) -> Iterator[AudioStream]:
    """The first audio stream of a file, open; raises `MediaError` if there is none or it is
    damaged.
    """
    with open_input(path) as container:
        if not container.streams.audio:
            raise MediaError(f"{path}: has no audio stream")
        stream = container.streams.audio[0]
        if not codec_name(stream):
            raise MediaError(
                f"{path}: its audio is in a codec that FFmpeg does not know; convert it to WAV"
            )
        yield stream


def audio_frames(path: Path, delay_s: Fraction = Fraction(0)) -> Iterator[Timed[AudioFrame]]:
    """Decoded frames, at least one, at their times, the first at `delay_s`; the last one ends where
    the track does.
    """
    with open_audio(path) as stream:
        clock = clock_of(path, stream, next_s=delay_s, jitter_s=JITTER_S)
        container = cast(InputContainer, stream.container)
        for frame, following in with_next(_frames(path, stream)):
            stamp_s = stamp_of(frame)
            duration_s = Fraction(frame.samples, frame.sample_rate)
            time_s = clock.advance(stamp_s, duration_s)
            # The encoder's padding: only MP4 states lengths of tracks to the sample.
            if (
                following is None
                and is_mp4(container)
                and stamp_s is not None
                and stream.duration
                and stream.time_base
            ):
                beyond_s = (
                    stamp_s
                    + duration_s
                    - ((stream.start_time or 0) + stream.duration) * stream.time_base
                )
                duration_s -= beyond_s if 0 < beyond_s < duration_s else 0
            yield Timed(time_s, duration_s, frame)


def _frames(path: Path, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decoded frames with samples, at least one; errors as `read_audio_blocks`."""
    frame = None
    container = cast(InputContainer, stream.container)
    for frame in filter(
        lambda decoded: decoded.samples, guarded(path, stream, container.decode(stream))
    ):
        rate_hz = frame.sample_rate
        if not _LEAST_RATE_HZ <= rate_hz <= _MOST_RATE_HZ:
            allowed = f"supported are {_LEAST_RATE_HZ} to {_MOST_RATE_HZ}"
            raise MediaError(
                f"{path}: its audio has {rate_hz} samples per second, {allowed}; is it damaged?"
            )
        yield frame
    if frame is None:
        raise MediaError(f"{path}: its audio stream has no samples")


def sound_frame(samples: Float32Array, rate_hz: int, at: int) -> AudioFrame:
    """Mono `samples (n,)` in [−1, 1] as 16-bit sound, at sample `at`."""
    clipped = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)
    frame = AudioFrame.from_ndarray(clipped[None], "s16", "mono")
    frame.sample_rate = rate_hz
    frame.pts = at
    frame.time_base = Fraction(1, rate_hz)
    return frame


class RateConverter:
    """Mono samples that come piece by piece, float32 `(n,)`, at another rate; how they are divided
    makes no difference. The last few milliseconds of what came so far follow with the next piece,
    or at the end.
    """

    def __init__(self, rate_hz: int, to_hz: int) -> None:
        self._rate_hz = rate_hz
        self._resampler = AudioResampler("flt", "mono", to_hz)

    def convert(self, samples: Float32Array | None) -> Float32Array:
        """What can be computed now; None ends the sound."""
        frame = None
        if samples is not None:
            frame = AudioFrame.from_ndarray(samples[None].astype(np.float32), "flt", "mono")
            frame.sample_rate = self._rate_hz
        parts = [
            part.to_ndarray().reshape(-1) for part in filter(None, self._resampler.resample(frame))
        ]
        return np.concatenate([np.zeros(0, np.float32), *parts], dtype=np.float32)


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
        """The first `count` samples, filled with silence at the end."""
        found = self.peek(count)
        del self._bytes[: 4 * count]
        return found

    def peek(self, count: int) -> Float32Array:
        """As `take`, without taking them."""
        held = np.frombuffer(bytes(self._bytes[: 4 * count]), np.float32)
        return np.pad(held, (0, count - held.size))


def regrouped(blocks: Iterable[Float32Array], count: int) -> Iterator[Float32Array]:
    """A sound in blocks `(count, channels)`, the last one shorter, from such of any lengths."""
    held = list[Float32Array]()
    length = 0
    for block in blocks:
        held.append(block)
        length += len(block)
        if length >= count:
            *whole, rest = np.split(np.concatenate(held), range(count, length + 1, count))
            yield from whole
            held = [rest]
            length = len(rest)
    if length:
        yield np.concatenate(held)
