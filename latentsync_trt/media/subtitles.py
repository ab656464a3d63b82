"""Subtitles of a source in an output: copied, or converted if they are text in another form."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.subtitles.codeccontext import SubtitleCodecContext
from av.subtitles.stream import SubtitleStream

from latentsync_trt.media.files import reading
from latentsync_trt.media.sound_streams import CopiedPackets
from latentsync_trt.media.timing import nearest

_TEXT_FORMS = ("ass", "ssa", "subrip", "webvtt", "mov_text", "text")
_FORM_IN = {".mp4": "mov_text", ".mov": "mov_text", ".mkv": "subrip"}
"""What text becomes in a container that does not hold its form."""

_HELD = {
    ".mp4": ("mov_text",),
    ".mov": ("mov_text",),
    ".mkv": ("ass", "subrip", "webvtt", "hdmv_pgs_subtitle", "dvd_subtitle", "dvb_subtitle"),
}
_PER_S = 1000
_MOST_EMPTY_BYTES = 2
"""Of a packet of `mov_text` that says that nothing is shown: a length of 0."""


def fits(codec: str, suffix: str) -> bool:
    """Whether an output with this suffix can hold subtitles of FFmpeg's codec of that name."""
    return codec in _HELD[suffix] or codec in _TEXT_FORMS


def copied_subtitles(
    path: Path,
    container: InputContainer,
    stream: SubtitleStream,
    output: OutputContainer,
    suffix: str,
    origin_s: Fraction,
    end_s: Fraction,
) -> CopiedPackets:
    """Adds the subtitles of a stream to an open output.

    Args:
        origin_s: stamp at time 0 of the output; end_s: when the output ends.
    """
    packets, source = container.demux(stream), stream.codec_context
    converts = source.codec.canonical_name not in _HELD[suffix]
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
            time_base = packet.time_base
            starts_s = packet.pts * time_base - origin_s
            ends_s = min(starts_s + (packet.duration or 0) * time_base, end_s)
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
