"""The original sound in the output: copied packets if the container supports the codec, else AAC."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from av.audio.codeccontext import AudioCodecContext
from av.audio.fifo import AudioFifo
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet

from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import audio_stream, decoded_audio, resampled
from latentsync_trt.media.files import open_input, reading

COPIED_CODECS: dict[str, tuple[str, ...]] = {
    ".mp4": ("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac"),
    ".mov": ("aac", "mp3", "ac3", "eac3", "alac", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_f32le"),
    ".mkv": (
        *("aac", "mp3", "ac3", "eac3", "alac", "opus", "flac", "vorbis", "dts", "truehd"),
        *("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_u8"),
    ),
}
"""Codecs that common players support in each container; FFmpeg would write more."""

AAC_BITS_PER_S = 192_000
"""Bit rate per pair of channels."""

_AAC_RATES_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_FALLBACK_RATE_HZ = 48000
_LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_AAC_CHANNELS = max(_LAYOUTS)


@contextmanager
def open_soundtrack(source: Path, output: OutputContainer, suffix: str) -> Iterator[CopiedSound | EncodedSound]:
    """Adds the first audio stream of `source` to an open output; its first sample plays with the first picture.

    Raises:
        MediaError: the source cannot be read, has no audio stream, or breaks off.
    """
    with open_input(source) as container:
        stream = audio_stream(source, container)
        # The decoder's name can differ from the codec's, as in mp3float.
        copied = stream.codec_context.codec.canonical_name in COPIED_CODECS[suffix]
        yield (CopiedSound if copied else EncodedSound)(source, container, stream, output)


class CopiedSound:
    """The source's own packets, with time stamps from 0."""

    def __init__(self, path: Path, container: InputContainer, stream: AudioStream, output: OutputContainer) -> None:
        self._path = path
        self._stream = output.add_stream_from_template(stream)
        self._packets = container.demux(stream)
        self._time_base = Fraction(stream.time_base or Fraction(1, stream.codec_context.sample_rate))
        # A start above 0 is an encoder's delay, or silence that the audio encoder does not get either.
        self._start = max(stream.start_time or 0, 0)
        self._held: Packet[Any] | None = None

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, up to output time `until_s`."""
        while (packet := self._held or self._next()) is not None:
            self._held = None
            if packet.pts is not None and packet.pts * self._time_base >= until_s:
                self._held = packet
                return
            packet.stream = self._stream
            yield packet

    def _next(self) -> Packet[Any] | None:
        with reading(self._path, "its audio cannot be read"):
            packet = next(self._packets, None)
        if packet is None or packet.size == 0:  # the demuxer ends with an empty packet
            return None
        if packet.pts is not None:
            packet.pts -= self._start
        if packet.dts is not None:
            packet.dts -= self._start
        return packet

    def flush(self) -> Iterator[Packet[Any]]:
        """Nothing, as all packets are written already."""
        return iter(())


class EncodedSound:
    """The source's samples as AAC, with its sample rate and channels if AAC supports them."""

    def __init__(self, path: Path, container: InputContainer, stream: AudioStream, output: OutputContainer) -> None:
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
        self._stream = output.add_stream("aac", rate=self._rate_hz, layout=layout)
        self._stream.bit_rate = AAC_BITS_PER_S * -(-source.channels // 2)
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        self._pieces = resampled(path, decoded_audio(path, container, stream), layout, self._rate_hz)
        self._samples = AudioFifo()
        self._position = 0

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, from samples before output time `until_s`."""
        wanted = int(until_s * self._rate_hz) - self._position
        while self._samples.samples < wanted and (piece := next(self._pieces, None)) is not None:
            piece.pts = None
            self._samples.write(piece)
        if wanted > 0 and (part := self._samples.read(wanted, partial=True)) is not None:
            part.pts, part.time_base = self._position, Fraction(1, self._rate_hz)
            self._position += part.samples
            yield from self._stream.encode(part)

    def flush(self) -> Iterator[Packet[Any]]:
        """The packets still inside the encoder."""
        yield from self._stream.encode(None)
