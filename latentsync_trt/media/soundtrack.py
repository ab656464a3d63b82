"""The original sound in the output: copied packets where player and container permit it, else AAC."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet

from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import audio_stream, decoded_audio, first_sample_s, format_of, sound_blocks
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.joints import origins_of
from latentsync_trt.media.timing import clock_of, nearest
from latentsync_trt.types import Float32Array

COPIED_CODECS: dict[str, tuple[str, ...]] = {
    ".mp4": ("aac", "mp3", "ac3", "eac3", "alac"),
    ".mov": ("aac", "mp3", "ac3", "eac3", "alac", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_f32le"),
    ".mkv": (
        *("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac", "vorbis", "dts", "truehd"),
        *("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_u8"),
    ),
}
"""Codecs that common players support in each container. FFmpeg would write more, such as Opus and FLAC into .mp4, which
QuickTime and many televisions play without sound."""

_GAPS_IN = ".mkv"
"""The container that gives each packet a time. Others give it a duration, which players take for what it decodes to."""

_PRE_ROLL_S = Fraction(1, 10)
"""What decoders need before the first sample that is heard: 80 ms for Opus, 93 ms for HE-AAC."""

AAC_BITS_PER_S = 192_000
"""Bit rate per pair of channels."""

_AAC_RATES_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_FALLBACK_RATE_HZ = 48000
_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_AAC_CHANNELS = max(_LAYOUTS)


@contextmanager
def open_soundtrack(
    source: Path, output: OutputContainer, delay_s: Fraction, *, encoded: bool
) -> Iterator[CopiedSound | EncodedSound]:
    """Adds the first audio stream of `source` to an open output, at the times of `audio.read_audio_blocks`.

    Args:
        delay_s: time of the first sample. encoded: as AAC, which `why_encoded` decides; else, its packets are copied.

    Raises:
        MediaError: the source cannot be read, has no audio stream, or breaks off.
    """
    with open_input(source) as container:
        stream = audio_stream(source, container)
        yield (EncodedSound if encoded else CopiedSound)(source, container, stream, output, delay_s)


def why_encoded(source: Path, suffix: str) -> str | None:
    """A notice of why the sound of an output with this suffix is encoded; None if the packets of `source` fit.

    Decodes the whole sound, unless its codec does not fit: 4 s per hour of AAC, a third of what its spectrogram takes.
    The packets alone show no change of format, and in Matroska their durations are rounded.

    Raises:
        MediaError: as `open_soundtrack`.
    """
    problem = _why_not_copied(source, suffix)
    return None if problem is None else f"the sound is encoded as AAC: {problem}"


def _why_not_copied(source: Path, suffix: str) -> str | None:
    with open_input(source) as container:
        stream = audio_stream(source, container)
        # The decoder's name can differ from the codec's, as in mp3float.
        codec = stream.codec_context.codec.canonical_name
        if codec not in COPIED_CODECS[suffix]:
            others = " or ".join(other for other, codecs in COPIED_CODECS.items() if codec in codecs)
            cure = f"; an output in {others} keeps it" if others else ""
            return f"{suffix} does not support its codec ({codec}){cure}"
        before = None
        for timed in decoded_audio(source, container, stream):
            if before is not None:
                if format_of(before.item) != format_of(timed.item):
                    return f"it changes its format after {float(timed.time_s):.2f} s"
                if timed.time_s < before.end_s:
                    return f"it overlaps itself after {float(timed.time_s):.2f} s"
                if timed.time_s > before.end_s and suffix != _GAPS_IN:
                    return f"it has a gap after {float(before.end_s):.2f} s, which {suffix} cannot hold"
            before = timed
    return None


class CopiedSound:
    """The source's own packets, at the times of the samples inside."""

    def __init__(
        self, path: Path, container: InputContainer, stream: AudioStream, output: OutputContainer, delay_s: Fraction
    ) -> None:
        self._path = path
        self._stream = output.add_stream_from_template(stream)
        self._packets = container.demux(stream)
        self._rate_hz = stream.codec_context.sample_rate
        self._time_base = stream.time_base or Fraction(1, self._rate_hz)
        # Before the first sample come an encoder's delay, and silence that is not part of the recording.
        with open_input(path) as opened_again:
            first_s = first_sample_s(path, opened_again)
        origin_s = None if first_s is None else first_s - delay_s
        origins = partial(origins_of, path, stream.index)
        self._clock = clock_of(container, delay_s, origin_s=origin_s, origins=origins)
        self._earliest_s = delay_s - _PRE_ROLL_S
        self._held: tuple[Fraction, Packet[Any]] | None = None
        self._last: int | None = None
        self._begun = False

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, up to output time `until_s`."""
        while (timed := self._held or self._next()) is not None:
            self._held = None
            time_s, packet = timed
            if time_s >= until_s:
                self._held = timed
                return
            # Stamps that are off by some jitter may go back, which muxers refuse; .mp4 and .mov count samples.
            stamp = nearest(time_s, self._rate_hz)
            self._last = stamp if self._last is None else max(stamp, self._last + 1)
            packet.pts = packet.dts = self._last
            packet.duration = nearest((packet.duration or 0) * self._time_base, self._rate_hz)
            packet.stream, packet.time_base = self._stream, Fraction(1, self._rate_hz)
            yield packet

    def _next(self) -> tuple[Fraction, Packet[Any]] | None:
        while True:
            with reading(self._path, "its audio cannot be read"):
                packet = next(self._packets, None)
            if packet is None:
                return None
            self._begun |= not packet.is_discard
            if not packet.size or (self._begun and packet.is_discard):  # an edit list leaves it out
                continue
            stamp_s = None if packet.pts is None else packet.pts * self._time_base
            duration_s = (packet.duration or 0) * self._time_base
            time_s = self._clock.advance(stamp_s, duration_s)
            # Edit lists hide what was cut off at the start, which not every container and player can.
            if time_s + duration_s > self._earliest_s:
                return time_s, packet

    def flush(self) -> Iterator[Packet[Any]]:
        """Nothing, as all packets are written already."""
        return iter(())


class EncodedSound:
    """The source's samples as AAC, with its sample rate and channels if AAC supports them."""

    def __init__(
        self, path: Path, container: InputContainer, stream: AudioStream, output: OutputContainer, delay_s: Fraction
    ) -> None:
        source: AudioCodecContext = stream.codec_context
        if source.channels > _AAC_CHANNELS:
            raise MediaError(
                f"{path}: its sound has {source.channels} channels, AAC supports {_AAC_CHANNELS}; "
                "mix it down, or choose an output that can hold its codec (.mkv, .mov)"
            )
        self._rate_hz = source.sample_rate if source.sample_rate in _AAC_RATES_HZ else _FALLBACK_RATE_HZ
        layout = source.layout.name
        if layout.endswith(" channels"):  # the file gives only their number
            layout = _LAYOUTS.get(source.channels, layout)
        self._layout = layout
        self._stream = output.add_stream("aac", rate=self._rate_hz, layout=layout)
        self._stream.bit_rate = AAC_BITS_PER_S * -(-source.channels // 2)
        frames = decoded_audio(path, container, stream, delay_s)
        self._blocks = sound_blocks(path, frames, layout, self._rate_hz)
        self._waiting = np.zeros((0, source.channels), np.float32)
        self._position = 0

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, from samples before output time `until_s`."""
        wanted = int(until_s * self._rate_hz) - self._position
        held = [self._waiting]
        missing = wanted - len(self._waiting)
        while missing > 0 and (block := next(self._blocks, None)) is not None:
            held.append(block)
            missing -= len(block)
        samples = np.concatenate(held)
        part, self._waiting = samples[: max(wanted, 0)], samples[max(wanted, 0) :]
        if len(part):
            yield from self._stream.encode(self._frame(part))

    def _frame(self, samples: Float32Array) -> AudioFrame:
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout=self._layout)
        frame.sample_rate = self._rate_hz
        frame.pts, frame.time_base = self._position, Fraction(1, self._rate_hz)
        self._position += len(samples)
        return frame

    def flush(self) -> Iterator[Packet[Any]]:
        """The packets still inside the encoder."""
        yield from self._stream.encode(None)
