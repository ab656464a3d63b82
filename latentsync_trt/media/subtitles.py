"""Subtitles of a source in an output: copied, or converted if they are text in another form."""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.subtitles.stream import SubtitleStream

from latentsync_trt.media.files import reading
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


class SubtitleTrack:
    """Subtitles of a stream, added to an open output.

    Args:
        origin_s: stamp at time 0 of the output; end_s: when the output ends.
    """

    def __init__(
        self,
        path: Path,
        container: InputContainer,
        stream: SubtitleStream,
        output: OutputContainer,
        suffix: str,
        origin_s: Fraction,
        end_s: Fraction,
    ) -> None:
        self._path, self._source, self._origin_s, self._end_s = path, stream, origin_s, end_s
        self._packets = container.demux(stream)
        self._converts = stream.codec_context.codec.canonical_name not in _HELD[suffix]
        if self._converts:
            with reading(path, "its subtitles cannot be decoded"):
                stream.codec_context.open()
            self._stream = cast(SubtitleStream, output.add_stream(_FORM_IN[suffix]))
            self._stream.codec_context.subtitle_header = stream.codec_context.subtitle_header
        else:
            self._stream = output.add_stream_from_template(stream)
        self._stream.time_base = Fraction(1, _PER_S)
        self._ascend = suffix != ".mkv"
        self._held: tuple[int, Packet[Any]] | None = None
        self._last = -1

    def packets(self, until_s: Fraction) -> Iterator[Packet[Any]]:
        """The next packets, up to output time `until_s`."""
        while (timed := self._held or self._next()) is not None:
            self._held = None
            if timed[0] >= until_s * _PER_S:
                self._held = timed
                return
            yield timed[1]

    def _next(self) -> tuple[int, Packet[Any]] | None:
        """The next subtitle within the output, and its stamp there."""
        while True:
            with reading(self._path, "its subtitles cannot be read"):
                packet = next(self._packets, None)
                if packet is None:
                    return None
                converted = self._converted(packet)
            if converted is None or packet.pts is None:
                continue
            time_base = packet.time_base
            start_s = packet.pts * time_base - self._origin_s
            end_s = min(start_s + (packet.duration or 0) * time_base, self._end_s)
            start_s = max(start_s, Fraction(0)) if end_s > 0 else start_s
            if not 0 <= start_s < self._end_s:
                continue
            start = nearest(start_s, _PER_S)
            if self._ascend:  # MP4 has a time for each only by the length of the one before
                start = max(start, self._last + 1)
            self._last = start
            converted.pts = converted.dts = start
            converted.duration = max(nearest(end_s, _PER_S) - start, 0)
            converted.stream, converted.time_base = self._stream, Fraction(1, _PER_S)
            return start, converted

    def _converted(self, packet: Packet[Any]) -> Packet[Any] | None:
        """The same in the output's form; None for one that shows nothing."""
        if packet.size <= (_MOST_EMPTY_BYTES if self._source.codec_context.name == "mov_text" else 0):
            return None
        if not self._converts:
            return packet
        shown = self._source.codec_context.decode2(packet)
        return self._stream.codec_context.encode_subtitle(shown) if shown is not None and len(shown) else None
