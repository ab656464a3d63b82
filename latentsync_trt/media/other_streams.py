"""What an output keeps besides picture and sound: tracks, subtitles, chapters, covers, fonts, tags.

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

from av import AudioStream, Packet, VideoStream
from av.container import InputContainer, OutputContainer
from av.stream import AttachmentStream, Discard, Disposition, Stream
from av.subtitles.stream import SubtitleStream

from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.playback import video_stream
from latentsync_trt.media.soundtrack import COPIED_CODECS
from latentsync_trt.media.streams import TimedPackets, add_subtitles, copied_sound, copied_subtitles, holds_subtitles
from latentsync_trt.media.timing import nearest

_MKV = ".mkv"
# Besides `COPIED_CODECS`, what a container takes, although fewer players do.
_MORE_AUDIO = {".mp4": ("opus", "flac", "dts")}

_COVERS = {"mjpeg": "jpeg", "png": "png"}
_WITH_COVER = (".mp4", _MKV)

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
            if isinstance(listed, VideoStream) and suffix == _MKV:
                form = _COVERS[_codec(listed)]
                output.add_attachment(f"cover.{form}", f"image/{form}", bytes(_cover(source.path, listed)))
                continue
            # A file each, as they are read at different places.
            stream = opened.enter_context(open_input(source.path)).streams[listed.index]
            if isinstance(stream, SubtitleStream):
                subtitles = add_subtitles(source.path, stream, output, suffix)
                timed = copied_subtitles(source.path, stream, subtitles, suffix, source.origin_s, end_s)
            elif isinstance(stream, AudioStream):
                sound = output.add_stream_from_template(stream)
                timed = copied_sound(source.path, stream, sound, Fraction(0), origin_s=source.origin_s)
            else:
                packet = _cover(source.path, stream)
                packet.stream, packet.pts, packet.dts = output.add_stream_from_template(stream, opaque=True), 0, 0
                timed = iter([(Fraction(0), packet)])
            added.append(timed)
            _copy_stream_tags(stream, output.streams[-1])
        yield added


def _cover(path: Path, stream: Stream) -> Packet[Any]:
    with reading(path, "its cover picture cannot be read"):
        return next(packet for packet in cast(InputContainer, stream.container).demux(stream) if packet.size)


def _others(path: Path, container: InputContainer) -> Iterator[Stream]:
    """All but the picture, the first sound, and the chapters' own track in MP4."""
    taken = [video_stream(path, container), *container.streams.audio[:1]]
    for stream in container.streams:
        if stream not in taken and stream.discard != Discard.all:
            yield stream


def _fits(stream: Stream, suffix: str) -> bool:
    if isinstance(stream, AudioStream):
        return _codec(stream) in (*COPIED_CODECS[suffix], *_MORE_AUDIO.get(suffix, ()))
    if isinstance(stream, SubtitleStream):
        return holds_subtitles(suffix, _codec(stream))
    if isinstance(stream, VideoStream):
        is_cover = stream.disposition & Disposition.attached_pic and _codec(stream) in _COVERS
        return bool(is_cover) and suffix in _WITH_COVER
    return isinstance(stream, AttachmentStream) and suffix == _MKV


def _codec(stream: Stream) -> str:
    # None for codecs that FFmpeg cannot decode, which PyAV's types leave out.
    return "" if stream.codec_context is None else stream.codec_context.codec.canonical_name


def _name(stream: Stream) -> str:
    if isinstance(stream, AttachmentStream):
        return f"the attached file {stream.name}"
    kind = "cover picture" if stream.disposition & Disposition.attached_pic else f"{stream.type} track"
    # Time codes, positions and motion have no codec.
    what = _codec(stream) or stream.metadata.get("handler_name") or "unknown"
    language = "" if stream.language in (None, "und") else f", {stream.language}"
    return f"the {kind} {stream.index} ({what}{language})"
