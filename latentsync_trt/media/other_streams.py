"""What an output keeps besides picture and sound: tracks, subtitles, chapters, fonts, tags.

Stamps of the source become those of the output, and what comes before its first or after its last picture is cut off.
"""

# PyAV's Packet is generic for type checkers only.
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from av import AudioStream, Packet
from av.container import InputContainer, OutputContainer
from av.stream import AttachmentStream, Discard, Stream
from av.subtitles.stream import SubtitleStream

from latentsync_trt.errors import MediaError
from latentsync_trt.media.decoding import is_tile
from latentsync_trt.media.files import codec_name, guarded, open_input, reading
from latentsync_trt.media.playback import video_stream
from latentsync_trt.media.soundtrack import COPIED_CODECS, TimedPackets, copied_sound
from latentsync_trt.media.timing import nearest

_MKV = ".mkv"
# Besides `COPIED_CODECS`, what a container takes, although fewer players do.
_MORE_AUDIO = {".mp4": ("opus", "flac", "dts")}

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


# Tags of the source's file itself, and a time code, which FFmpeg refuses for unusual rates.
_OF_THE_FILE = ("major_brand", "minor_version", "compatible_brands", "encoder", "duration", "timecode")


@dataclass(frozen=True, slots=True)
class Source:
    """The file to take streams and tags from; its stamp `origin_s` is time 0 of the output."""

    path: Path
    origin_s: Fraction


def losses(source: Source, suffix: str) -> tuple[str, ...]:
    """A sentence about each stream of `source` that an output with this suffix cannot hold."""
    with open_input(source.path) as container:
        return tuple(
            f"{_name(stream)} is left out" + (f": {suffix} cannot hold it, {_MKV} can" if _fits(stream, _MKV) else "")
            for stream in _others(source.path, container)
            if not _fits(stream, suffix)
        )


def copy_tags(source: Source, output: OutputContainer, end_s: Fraction, *, own_sound: bool) -> None:
    """Tags of the file, its picture and `own_sound`, and its chapters up to `end_s`."""
    with open_input(source.path) as container:
        output.metadata.update({k: v for k, v in container.metadata.items() if k.lower() not in _OF_THE_FILE})
        chapters = []
        for chapter in container.chapters():
            edges_s = (chapter[edge] * (chapter["time_base"] or 0) - source.origin_s for edge in ("start", "end"))
            start, end = (nearest(min(max(edge_s, Fraction(0)), end_s), 1000) for edge_s in edges_s)
            if start < end:
                chapters.append({**chapter, "start": start, "end": end, "time_base": Fraction(1, 1000)})
        if chapters:
            output.set_chapters(cast(Any, chapters))
        _copy_stream_tags(video_stream(source.path, container), output.streams.video[0])
        if own_sound:
            _copy_stream_tags(container.streams.audio[0], output.streams.audio[0])


def _copy_stream_tags(source: Stream, output: Stream) -> None:
    title = source.metadata.get("title") or source.metadata.get("name")  # as MP4 has it
    tags = {"language": source.language, "title": title}
    output.metadata.update({name: value for name, value in tags.items() if value})
    output.disposition = source.disposition


def optional(timed: TimedPackets, problems: list[str]) -> TimedPackets:
    """The same packets; where their source breaks off, they end, and `problems` says so."""
    try:
        yield from timed
    except MediaError as error:
        problems.append(f"{error}; the rest of this stream is left out")


def _add_subtitles(path: Path, stream: SubtitleStream, output: OutputContainer, suffix: str) -> SubtitleStream:
    """Adds a copy of a stream to an open output, converted if that does not hold its form."""
    if codec_name(stream) in _HELD_FORMS[suffix]:
        return output.add_stream_from_template(stream)
    with reading(path, "its subtitles cannot be decoded"):
        stream.codec_context.open()
    copy = cast(SubtitleStream, output.add_stream(_FORM_IN[suffix]))
    copy.codec_context.subtitle_header = stream.codec_context.subtitle_header
    return copy


def _copied_subtitles(
    path: Path, stream: SubtitleStream, copy: SubtitleStream, suffix: str, origin_s: Fraction, end_s: Fraction
) -> TimedPackets:
    """The packets of a stream for its `copy`; `origin_s`: stamp at time 0 of the output; `end_s`: when that ends."""
    packets = cast(InputContainer, stream.container).demux(stream)
    source, last = stream.codec_context, -1
    target = None if codec_name(stream) in _HELD_FORMS[suffix] else copy.codec_context
    most_empty = _MOST_EMPTY_BYTES if source.name == "mov_text" else 0
    for packet in guarded(path, stream, packets):
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


@contextmanager
def open_others(source: Source, output: OutputContainer, suffix: str, end_s: Fraction) -> Iterator[list[TimedPackets]]:
    """Adds the streams of `source` that fit to an open output of length `end_s`, with their tags."""
    with ExitStack() as opened, open_input(source.path) as container:
        added: list[TimedPackets] = []
        for listed in _others(source.path, container):
            if not _fits(listed, suffix):
                continue
            if isinstance(listed, AttachmentStream):
                output.add_attachment(listed.name or "file", listed.mimetype or "application/octet-stream", listed.data)
                continue
            # A file each, as they are read at different places.
            stream = opened.enter_context(open_input(source.path)).streams[listed.index]
            if isinstance(stream, SubtitleStream):
                subtitles = _add_subtitles(source.path, stream, output, suffix)
                timed = _copied_subtitles(source.path, stream, subtitles, suffix, source.origin_s, end_s)
            else:
                track = cast(AudioStream, stream)
                sound = output.add_stream_from_template(track)
                timed = copied_sound(source.path, track, sound, Fraction(0), origin_s=source.origin_s)
            added.append(timed)
            _copy_stream_tags(stream, output.streams[-1])
        yield added


def _others(path: Path, container: InputContainer) -> Iterator[Stream]:
    """All but the picture, the first sound, and the chapters' own track in MP4."""
    taken = [video_stream(path, container), *container.streams.audio[:1]]
    for stream in container.streams:
        if stream not in taken and stream.discard != Discard.all and not is_tile(stream):
            yield stream


def _fits(stream: Stream, suffix: str) -> bool:
    if isinstance(stream, AudioStream):
        return codec_name(stream) in (*COPIED_CODECS[suffix], *_MORE_AUDIO.get(suffix, ()))
    if isinstance(stream, SubtitleStream):
        return codec_name(stream) in (*_HELD_FORMS[suffix], *_TEXT_FORMS)
    return isinstance(stream, AttachmentStream) and suffix == _MKV


def _name(stream: Stream) -> str:
    if isinstance(stream, AttachmentStream):
        return f"the attached file {stream.name}"
    # Time codes, positions and motion have no codec.
    what = codec_name(stream) or stream.metadata.get("handler_name") or "unknown"
    language = "" if stream.language in (None, "und") else f", {stream.language}"
    return f"the {stream.type} track {stream.index} ({what}{language})"
