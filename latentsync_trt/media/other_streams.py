"""What an output keeps of its source besides the picture: other sound, subtitles, attached files,
chapters, and the tags of tracks.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from av import AudioStream, Packet
from av.container import InputContainer, OutputContainer
from av.stream import AttachmentStream, Discard, Disposition, Stream
from av.subtitles.stream import SubtitleStream

from latentsync_trt.media.audio import open_audio
from latentsync_trt.media.contents import Contents
from latentsync_trt.media.decoding import is_tile
from latentsync_trt.media.files import (
    TimedPackets,
    codec_name,
    guarded,
    main_audio,
    open_input,
    reading,
)
from latentsync_trt.media.playback import video_stream
from latentsync_trt.media.soundtrack import COPIED_CODECS, copied_sound
from latentsync_trt.media.timing import nearest, stamp_packet

_MORE_AUDIO = {".mp4": ("opus", "flac", "dts")}
"""Codecs of other sound that a container takes besides `COPIED_CODECS`; fewer players do."""

_TEXT_CODECS = ("ass", "ssa", "subrip", "webvtt", "mov_text", "text")
_SUBTITLE_CODECS = {
    ".mp4": ("mov_text",),
    ".mov": ("mov_text",),
    ".mkv": ("subrip", "ass", "webvtt", "hdmv_pgs_subtitle", "dvd_subtitle", "dvb_subtitle"),
}
"""Subtitles that a container holds. The first kind is what other text becomes."""
_STAMPS_PER_S = 1000
"""Stamps of subtitles and chapters in a second: Matroska rounds to milliseconds anyway."""

_NO_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
_NO_VIDEO |= Disposition.dependent | Disposition.multilayer
"""Uses of a track as a cover, a thumbnail, a photo or a part of one, none of which the output's
picture is.
"""


@dataclass(frozen=True, slots=True)
class TrackTags:
    """The tags of a track."""

    language: str | None
    title: str | None
    uses: Disposition

    def lost_in(self, written: "TrackTags") -> list[str]:
        """Returns the names of those tags that were not written."""
        lost = [str(use.name) for use in Disposition if use & self.uses & ~written.uses]
        if self.language not in (None, "und", written.language):
            lost.append("language")
        if self.title not in (None, written.title):
            lost.append("title")
        return lost


def track_tags(stream: Stream) -> TrackTags:
    """Returns the tags of a track."""
    title = stream.metadata.get("title") or stream.metadata.get("name")  # MP4 has a name
    return TrackTags(stream.language, title, Disposition(stream.disposition))


def other_streams(path: Path, container: InputContainer) -> Iterator[Stream]:
    """Yields all streams but the picture, the main sound, and the chapters' own track in MP4."""
    taken = (video_stream(path, container), main_audio(container))
    for stream in container.streams:
        if stream not in taken and stream.discard != Discard.all and not is_tile(stream):
            yield stream


def fits_container(stream: Stream, suffix: str) -> bool:
    """Returns whether a container can hold a stream, or what its text can become."""
    if isinstance(stream, AudioStream):
        return codec_name(stream) in (*COPIED_CODECS[suffix], *_MORE_AUDIO.get(suffix, ()))
    if isinstance(stream, SubtitleStream):
        return codec_name(stream) in (*_SUBTITLE_CODECS[suffix], *_TEXT_CODECS)
    return isinstance(stream, AttachmentStream) and suffix == ".mkv"


@contextmanager
def open_others(
    contents: Contents, output: OutputContainer, end_s: Fraction
) -> Iterator[list[TimedPackets]]:
    """Adds chapters, and those streams of the source that fit, to an open output of length `end_s`,
    which has its picture and sound, and gives all of them their tags.
    """
    path = cast(Path, contents.extras.source)
    with ExitStack() as opened, open_input(path) as container:
        _set_chapters(container, contents.origin_s, output, end_s)
        _copy_tags(path, container, contents, output)
        added = list[TimedPackets]()
        for listed in other_streams(path, container):
            if not fits_container(listed, contents.suffix):
                continue
            if isinstance(listed, AttachmentStream):
                name = listed.name or "file"
                mime = listed.mimetype or "application/octet-stream"
                output.add_attachment(name, mime, listed.data)
                continue
            # A file each, as they are read at different places.
            stream = opened.enter_context(open_input(path)).streams[listed.index]
            if isinstance(stream, SubtitleStream):
                added.append(_copied_subtitles(contents, stream, output, end_s))
            else:
                track = cast(AudioStream, stream)
                copy = output.add_stream_from_template(track)
                packets = copied_sound(path, track, copy, origin_s=contents.origin_s)
                added.append(packets)
            _copy_track_tags(stream, output.streams[-1])
            if isinstance(stream, AudioStream) and contents.sound.pieces:
                output.streams[-1].disposition &= ~Disposition.default  # players take the new sound
        yield added


def _set_chapters(
    container: InputContainer, origin_s: Fraction, output: OutputContainer, end_s: Fraction
) -> None:
    """Gives an output the chapters up to its end."""
    chapters = []
    for chapter in container.chapters():
        time_base = chapter["time_base"] or Fraction(0)
        first_s = max(chapter["start"] * time_base - origin_s, Fraction(0))
        last_s = min(chapter["end"] * time_base - origin_s, end_s)
        start = nearest(first_s, _STAMPS_PER_S)
        end = nearest(last_s, _STAMPS_PER_S)
        if start < end:
            stamps = {"start": start, "end": end, "time_base": Fraction(1, _STAMPS_PER_S)}
            chapters.append({**chapter, **stamps})
    output.set_chapters(cast(Any, chapters))


def _copy_tags(
    path: Path, container: InputContainer, contents: Contents, output: OutputContainer
) -> None:
    """Copies the tags of the picture and, if all that is heard is of one file, of that sound."""
    _copy_track_tags(video_stream(path, container), output.streams.video[0])
    heard = {piece.path for piece in contents.sound.pieces}
    if len(heard) == 1:
        with open_audio(heard.pop()) as sound:
            _copy_track_tags(sound, output.streams.audio[0])
    for stream in (*output.streams.video, *output.streams.audio):
        stream.disposition |= Disposition.default


def _copy_track_tags(source: Stream, output: Stream) -> None:
    """Gives a track of the output the language, title, handler and uses of one of the source."""
    tags = track_tags(source)
    handler = source.metadata.get("handler_name") or source.metadata.get("HANDLER_NAME")
    texts = {"language": tags.language, "title": tags.title, "handler_name": handler}
    for name, text in texts.items():
        if text:
            output.metadata[name] = text
    output.disposition = tags.uses & ~_NO_VIDEO


def _copied_subtitles(
    contents: Contents, stream: SubtitleStream, output: OutputContainer, end_s: Fraction
) -> TimedPackets:
    """Adds a copy of a stream to an open output, and returns its packets, converted if the output
    does not hold their form.
    """
    suffix = contents.suffix
    path = cast(Path, contents.extras.source)
    if codec_name(stream) in _SUBTITLE_CODECS[suffix]:
        copy = output.add_stream_from_template(stream)
        packets = _subtitles(path, stream)
    else:
        with reading(path, "its subtitles cannot be decoded"):
            stream.codec_context.open()
        copy = cast(SubtitleStream, output.add_stream(_SUBTITLE_CODECS[suffix][0]))
        copy.codec_context.subtitle_header = stream.codec_context.subtitle_header
        packets = _converted_subtitles(path, stream, copy)
    return _placed_subtitles(packets, copy, contents, end_s)


def _subtitles(path: Path, stream: SubtitleStream) -> Iterator["Packet[Any]"]:
    """Yields the packets of a stream that show something."""
    packets = cast(InputContainer, stream.container).demux(stream)
    empty_bytes = 2 if stream.codec_context.name == "mov_text" else 0  # its length, which is 0
    for packet in guarded(path, stream, packets):
        if packet.pts is not None and packet.size > empty_bytes:
            yield packet


def _converted_subtitles(
    path: Path, stream: SubtitleStream, copy: SubtitleStream
) -> Iterator["Packet[Any]"]:
    """Yields the packets that show something in the form of `copy`."""
    for packet in _subtitles(path, stream):
        with reading(path, "its subtitles cannot be read"):
            subtitle = stream.codec_context.decode2(packet)
            if subtitle is None or not len(subtitle):
                continue
            converted = copy.codec_context.encode_subtitle(subtitle)
        if converted is not None:
            converted.pts = packet.pts
            converted.duration = packet.duration
            converted.time_base = packet.time_base
            yield converted


def _placed_subtitles(
    packets: Iterator["Packet[Any]"], copy: SubtitleStream, contents: Contents, end_s: Fraction
) -> TimedPackets:
    """Yields the packets for a `copy` at their times in the output, which ends at `end_s`."""
    last = -1
    for packet in packets:
        start_s = cast(int, packet.pts) * packet.time_base - contents.origin_s
        stop_s = min(start_s + (packet.duration or 0) * packet.time_base, end_s)
        if start_s >= end_s or (start_s < 0 and stop_s <= 0):
            continue
        start = nearest(max(start_s, Fraction(0)), _STAMPS_PER_S)
        if contents.suffix != ".mkv":  # MP4 times each one by the lengths of those before
            start = max(start, last + 1)
        last = start
        packet.duration = max(nearest(stop_s, _STAMPS_PER_S) - start, 0)
        stamp_packet(packet, copy, start, _STAMPS_PER_S)
        yield Fraction(start, _STAMPS_PER_S), packet
