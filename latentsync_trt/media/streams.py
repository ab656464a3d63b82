"""Sound and subtitles as packets of an output: the source's own, converted, or encoded samples."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from av import AudioFrame, AudioLayout, AudioStream, Packet
from av.container import InputContainer, OutputContainer
from av.subtitles.stream import SubtitleStream

from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import first_sample_s
from latentsync_trt.media.files import guarded, open_input, reading
from latentsync_trt.media.timing import clock_of, nearest
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
_PER_S = 1000  # stamps of subtitles
_MOST_EMPTY_BYTES = 2  # of a packet of `mov_text` that says that nothing is shown: a length of 0


TimedPackets = Iterator[tuple[Fraction, "Packet[Any]"]]
"""Packets of one stream of an output, each with its time there, in this order."""


def optional(timed: TimedPackets, problems: list[str]) -> TimedPackets:
    """The same packets; where their source breaks off, they end, and `problems` says so."""
    try:
        yield from timed
    except MediaError as error:
        problems.append(f"{error}; the rest of this stream is left out")


def copied_sound(
    path: Path, stream: AudioStream, copy: AudioStream, delay_s: Fraction, *, origin_s: Fraction | None = None
) -> TimedPackets:
    """A stream's packets for its `copy` in an output, at the times of the samples inside.

    Args:
        delay_s: time of the first sample of the file's first audio stream. origin_s: the stamp at time 0, if known.
    """
    if origin_s is None:
        # Before the first sample come an encoder's delay, and silence that is no recording.
        with open_input(path) as opened_again:
            first_s = first_sample_s(path, opened_again)
        origin_s = None if first_s is None else first_s - delay_s
    clock = clock_of(path, cast(InputContainer, stream.container), next_s=delay_s, origin_s=origin_s)
    rate_hz = stream.codec_context.sample_rate
    time_base = stream.time_base or Fraction(1, rate_hz)
    last: int | None = None
    begun = False
    for packet in guarded(path, _packets_of(stream), "audio"):
        begun |= not packet.is_discard
        if not packet.size or (begun and packet.is_discard):  # an edit list leaves it out
            continue
        duration_s = (packet.duration or 0) * time_base
        time_s = clock.advance(None if packet.pts is None else packet.pts * time_base, duration_s)
        # Edit lists hide what was cut off at the start, which not every container and player can.
        if time_s + duration_s <= delay_s - _PRE_ROLL_S:
            continue
        # Stamps with jitter may go back, which muxers refuse; .mp4 and .mov count samples.
        stamp = nearest(time_s, rate_hz)
        last = packet.pts = packet.dts = stamp if last is None else max(stamp, last + 1)
        packet.duration = nearest(duration_s, rate_hz)
        packet.stream, packet.time_base = copy, Fraction(1, rate_hz)
        yield time_s, packet


def add_sound(output: OutputContainer, codec: str, rate_hz: int, layout: str) -> AudioStream:
    """Adds an encoder, by FFmpeg's name, to an open output."""
    # PyAV's types know only some encoders by name.
    stream = cast(AudioStream, output.add_stream(codec, rate=rate_hz, layout=layout))
    if codec == "flac":
        stream.codec_context.format = "s32"  # 24 bits; else 16
    if codec == "aac":
        stream.bit_rate = AAC_BITS_PER_S * -(-AudioLayout(layout).nb_channels // 2)
    return stream


def encoded_sound(blocks: Iterator[Float32Array], stream: AudioStream, end_s: Fraction) -> TimedPackets:
    """Encodes samples from time 0 to `end_s`: float32 `(n, channels)` at the rate of `stream`."""
    rate_hz, position = stream.codec_context.sample_rate, 0
    for block in blocks:
        part = block[: max(int(end_s * rate_hz) - position, 0)]
        if not len(part):
            break
        # Packed: PyAV reads beyond the planes of a planar frame with eight channels.
        frame = AudioFrame.from_ndarray(part.reshape(1, -1), format="flt", layout=stream.codec_context.layout.name)
        frame.sample_rate, frame.pts, frame.time_base = rate_hz, position, Fraction(1, rate_hz)
        for packet in stream.encode(frame):
            yield Fraction(position, rate_hz), packet
        position += len(part)
    for packet in stream.encode(None):
        yield Fraction(max(position - 1, 0), rate_hz), packet  # before `end_s`


def holds_subtitles(suffix: str, codec: str) -> bool:
    """Whether an output with this suffix can hold such subtitles, if need be converted."""
    return codec in _HELD_FORMS[suffix] or codec in _TEXT_FORMS


def add_subtitles(path: Path, stream: SubtitleStream, output: OutputContainer, suffix: str) -> SubtitleStream:
    """Adds a copy of a stream to an open output, converted if that does not hold its form."""
    if stream.codec_context.codec.canonical_name in _HELD_FORMS[suffix]:
        return output.add_stream_from_template(stream)
    with reading(path, "its subtitles cannot be decoded"):
        stream.codec_context.open()
    copy = cast(SubtitleStream, output.add_stream(_FORM_IN[suffix]))
    copy.codec_context.subtitle_header = stream.codec_context.subtitle_header
    return copy


def copied_subtitles(
    path: Path, stream: SubtitleStream, copy: SubtitleStream, suffix: str, origin_s: Fraction, end_s: Fraction
) -> TimedPackets:
    """The packets of a stream of an open file for its `copy` from `add_subtitles`.

    Args:
        origin_s: stamp at time 0 of the output; end_s: when the output ends.
    """
    packets, source, last = _packets_of(stream), stream.codec_context, -1
    target = None if source.codec.canonical_name in _HELD_FORMS[suffix] else copy.codec_context
    most_empty = _MOST_EMPTY_BYTES if source.name == "mov_text" else 0
    for packet in guarded(path, packets, "subtitles"):
        if packet.pts is None or packet.size <= most_empty:
            continue
        converted: Packet[Any] | None = packet
        if target is not None:
            with reading(path, "its subtitles cannot be read"):
                shown = source.decode2(packet)
                converted = target.encode_subtitle(shown) if shown is not None and len(shown) else None
        if converted is None:
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


def _packets_of(stream: AudioStream | SubtitleStream) -> Iterator[Packet[Any]]:
    return cast(InputContainer, stream.container).demux(stream)
