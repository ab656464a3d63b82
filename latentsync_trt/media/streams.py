"""Sound and subtitles as packets of an output: the source's own, converted, or encoded samples."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from av import AudioFrame, AudioLayout, AudioStream, Packet
from av.container import InputContainer, OutputContainer
from av.subtitles.codeccontext import SubtitleCodecContext
from av.subtitles.stream import SubtitleStream

from latentsync_trt.media.audio import Samples, first_sample_s
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.timing import joint_clock, nearest
from latentsync_trt.types import Float32Array

# What decoders need before the first sample that is heard: 80 ms for Opus, 93 ms for HE-AAC.
_PRE_ROLL_S = Fraction(1, 10)

AAC_BITS_PER_S = 192_000
"""Bit rate per pair of channels."""

_TEXT_FORMS = ("ass", "ssa", "subrip", "webvtt", "mov_text", "text")
# What text becomes in a container that does not hold its form.
_FORM_IN = {".mp4": "mov_text", ".mov": "mov_text", ".mkv": "subrip"}
_HELD_FORMS = {
    ".mp4": ("mov_text",),
    ".mov": ("mov_text",),
    ".mkv": ("ass", "subrip", "webvtt", "hdmv_pgs_subtitle", "dvd_subtitle", "dvb_subtitle"),
}
_PER_S = 1000
_MOST_EMPTY_BYTES = 2  # of a packet of `mov_text` that says that nothing is shown: a length of 0


class CopiedPackets:
    """Packets that are not encoded anew, each with its time in the output, in this order."""

    def __init__(self, timed: Iterator[tuple[Fraction, Packet[Any]]]) -> None:
        self._timed = timed
        self._held: tuple[Fraction, Packet[Any]] | None = None

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, up to output time `until_s`."""
        while (timed := self._held or next(self._timed, None)) is not None:
            self._held = timed if timed[0] >= until_s else None
            if self._held:
                return
            yield timed[1]

    def flush(self) -> Iterator[Packet[Any]]:
        """Nothing, as all packets are written already."""
        return iter(())


def copied_sound(
    path: Path, stream: AudioStream, output: OutputContainer, delay_s: Fraction, *, origin_s: Fraction | None = None
) -> CopiedPackets:
    """Adds a copy of a stream of an open file to an open output: its packets, at the times of the samples inside.

    Args:
        delay_s: time of the first sample of the file's first audio stream. origin_s: the stamp at time 0, if known.
    """
    copy = output.add_stream_from_template(stream)
    if origin_s is None:
        # Before the first sample come an encoder's delay, and silence that is not part of the recording.
        with open_input(path) as opened_again:
            first_s = first_sample_s(path, opened_again)
        origin_s = None if first_s is None else first_s - delay_s
    clock = replace(joint_clock(path, stream, delay_s), origin_s=origin_s)
    packets, rate_hz = _packets_of(stream), stream.codec_context.sample_rate
    time_base = stream.time_base or Fraction(1, rate_hz)

    def timed() -> Iterator[tuple[Fraction, Packet[Any]]]:
        last: int | None = None
        begun = False
        while True:
            with reading(path, "its audio cannot be read"):
                packet = next(packets, None)
            if packet is None:
                return
            begun |= not packet.is_discard
            if not packet.size or (begun and packet.is_discard):  # an edit list leaves it out
                continue
            duration_s = (packet.duration or 0) * time_base
            time_s = clock.advance(None if packet.pts is None else packet.pts * time_base, duration_s)
            # Edit lists hide what was cut off at the start, which not every container and player can.
            if time_s + duration_s <= delay_s - _PRE_ROLL_S:
                continue
            # Stamps that are off by some jitter may go back, which muxers refuse; .mp4 and .mov count samples.
            stamp = nearest(time_s, rate_hz)
            last = packet.pts = packet.dts = stamp if last is None else max(stamp, last + 1)
            packet.duration = nearest(duration_s, rate_hz)
            packet.stream, packet.time_base = copy, Fraction(1, rate_hz)
            yield time_s, packet

    return CopiedPackets(timed())


class EncodedSound:
    """Samples from output time 0 on, encoded.

    Args:
        blocks: float32 `(n, channels)` at `rate_hz`, in the order of `layout`. codec: FFmpeg's name of the encoder.
    """

    def __init__(
        self, blocks: Iterator[Float32Array], output: OutputContainer, codec: str, rate_hz: int, layout: str
    ) -> None:
        self._samples, self._rate_hz, self._layout = Samples(blocks), rate_hz, layout
        # PyAV's types know only some encoders by name.
        self._stream = cast(AudioStream, output.add_stream(codec, rate=rate_hz, layout=layout))
        if codec == "flac":
            self._stream.codec_context.format = "s32"  # 24 bits; else 16
        if codec == "aac":
            self._stream.bit_rate = AAC_BITS_PER_S * -(-AudioLayout(layout).nb_channels // 2)
        self._position = 0

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, from samples before output time `until_s`."""
        part = self._samples.take(max(int(until_s * self._rate_hz) - self._position, 0))
        if not len(part):
            return
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        frame = AudioFrame.from_ndarray(part.reshape(1, -1), format="flt", layout=self._layout)
        frame.sample_rate = self._rate_hz
        frame.pts, frame.time_base = self._position, Fraction(1, self._rate_hz)
        self._position += len(part)
        yield from self._stream.encode(frame)

    def flush(self) -> Iterator[Packet[Any]]:
        """The packets still inside the encoder."""
        yield from self._stream.encode(None)


def holds_subtitles(suffix: str, codec: str) -> bool:
    """Whether an output with this suffix can hold subtitles of FFmpeg's codec of that name, if need be converted."""
    return codec in _HELD_FORMS[suffix] or codec in _TEXT_FORMS


def copied_subtitles(
    path: Path, stream: SubtitleStream, output: OutputContainer, suffix: str, origin_s: Fraction, end_s: Fraction
) -> CopiedPackets:
    """Adds the subtitles of a stream of an open file to an open output, converted if it does not hold their form.

    Args:
        origin_s: stamp at time 0 of the output; end_s: when the output ends.
    """
    packets, source = _packets_of(stream), stream.codec_context
    converts = source.codec.canonical_name not in _HELD_FORMS[suffix]
    if converts:
        with reading(path, "its subtitles cannot be decoded"):
            source.open()
        copy = cast(SubtitleStream, output.add_stream(_FORM_IN[suffix]))
        copy.codec_context.subtitle_header = source.subtitle_header
    else:
        copy = output.add_stream_from_template(stream)
    copy.time_base = Fraction(1, _PER_S)

    def timed() -> Iterator[tuple[Fraction, Packet[Any]]]:
        last = -1
        while True:
            with reading(path, "its subtitles cannot be read"):
                packet = next(packets, None)
                if packet is None:
                    return
                converted = _converted(packet, source, copy.codec_context if converts else None)
            if converted is None or packet.pts is None:
                continue
            starts_s = packet.pts * packet.time_base - origin_s
            ends_s = min(starts_s + (packet.duration or 0) * packet.time_base, end_s)
            starts_s = max(starts_s, Fraction(0)) if ends_s > 0 else starts_s
            if not 0 <= starts_s < end_s:
                continue
            start = nearest(starts_s, _PER_S)
            if suffix != ".mkv":  # MP4 has a time for each only by the length of the one before
                start = max(start, last + 1)
            last = converted.pts = converted.dts = start
            converted.duration = max(nearest(ends_s, _PER_S) - start, 0)
            converted.stream, converted.time_base = copy, Fraction(1, _PER_S)
            yield Fraction(start, _PER_S), converted

    return CopiedPackets(timed())


def _converted(
    packet: Packet[Any], source: SubtitleCodecContext, target: SubtitleCodecContext | None
) -> Packet[Any] | None:
    """The same in the output's form, `target` if that is another one; None for one that shows nothing."""
    if packet.size <= (_MOST_EMPTY_BYTES if source.name == "mov_text" else 0):
        return None
    if target is None:
        return packet
    shown = source.decode2(packet)
    return target.encode_subtitle(shown) if shown is not None and len(shown) else None


def _packets_of(stream: AudioStream | SubtitleStream) -> Iterator[Packet[Any]]:
    return cast(InputContainer, stream.container).demux(stream)
