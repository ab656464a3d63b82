"""The finished file: parts as one stream, sound, what is kept of the source, and a mark.

Stamps of the source become those of the output; what comes before its first or after its last
picture is cut off. The mark says that AI changed the picture: machine-readable as IPTC's digital
source type, and in words.

| container | machine-readable | in words |
|---|---|---|
| .mp4 | XMP in a `uuid` box at the end of the file | comment, encoder |
| .mov | XMP in `moov/udta/XMP_`; with keys as in .mp4 | comment |
| .mkv | the tag DIGITAL_SOURCE_TYPE | comment, SOFTWARE |

XMP stands where part 3 of its specification wants it.

FFmpeg writes the tags of .mp4 and .mov in one of two ways: as fields that every player knows, which
have no place for what phones write ("com.apple.quicktime.make", "com.android.version"), or as keys.
Keys are for sources that have such tags; the usual ones are then written under Apple's names, too.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from heapq import merge
from io import BytesIO
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import av
from av import AudioStream, Packet, VideoStream
from av.container import InputContainer, OutputContainer
from av.stream import AttachmentStream, Discard, Disposition, Stream
from av.subtitles.stream import SubtitleStream

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.media.decoding import is_tile
from latentsync_trt.media.encoders import VideoEncoder
from latentsync_trt.media.files import TimedPackets, codec_name, guarded, open_input, reading
from latentsync_trt.media.parts import Finished, abandon, joined
from latentsync_trt.media.playback import video_stream
from latentsync_trt.media.reader import is_same_file
from latentsync_trt.media.soundtrack import (
    COPIED_CODECS,
    ChosenSound,
    copied_sound,
    open_soundtrack,
)
from latentsync_trt.media.timing import nearest
from latentsync_trt.types import VideoInfo
from latentsync_trt.version import __version__

# QuickTime's own. FFmpeg multiplies a smaller number of ticks per second, which keeps stamps exact.
_LEAST_TIMESCALE = 600
# For which FFmpeg holds packets until each stream has one; by default 10 s: gigabytes of 4K.
_MOST_HELD_US = "1000000"  # microseconds

TOOL = f"latentsync-trt {__version__}"
# IPTC's code for a recording of which generative AI changed a part.
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
_XMP_BOX = UUID("be7acfcb-97a9-42e8-9c71-999491e3afac")
_COMMENT = f"lips changed by AI ({TOOL})"
_OUR_COMMENTS = re.compile(r"(; )?lips changed by AI \(latentsync-trt [^)]*\)")

_XMP = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
    xmp:CreatorTool="{TOOL}">
   <Iptc4xmpExt:DigitalSourceType>{SOURCE_TYPE}</Iptc4xmpExt:DigitalSourceType>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>"""

# FFmpeg's names. It writes XMP into .mov only, and any other key as a tag of .mkv.
_KEYS = {
    ".mp4": {"encoding_tool": TOOL},
    ".mov": {"xmp": _XMP},
    ".mkv": {"DIGITAL_SOURCE_TYPE": SOURCE_TYPE, "SOFTWARE": TOOL},
}

# Besides `COPIED_CODECS`, what a container takes, although fewer players do.
_MORE_AUDIO = {".mp4": ("opus", "flac", "dts")}

_TEXT_FORMS = ("ass", "ssa", "subrip", "webvtt", "mov_text", "text")
# The first one is what other text becomes.
_HELD_FORMS = {
    ".mp4": ("mov_text",),
    ".mov": ("mov_text",),
    ".mkv": ("subrip", "ass", "webvtt", "hdmv_pgs_subtitle", "dvd_subtitle", "dvb_subtitle"),
}
_PER_S = 1000  # stamps of subtitles and chapters

# Tags of the source's file itself, and a time code, which FFmpeg refuses for unusual rates.
_OF_THE_FILE = (
    "major_brand",
    "minor_version",
    "compatible_brands",
    "encoder",
    "duration",
    "timecode",
)

# Apple's names of tags that are keys, by FFmpeg's names.
_USUAL_TAGS = (
    "title",
    "artist",
    "album",
    "comment",
    "copyright",
    "description",
    "genre",
    "keywords",
    "make",
    "model",
)
_APPLE_KEYS = {name: f"com.apple.quicktime.{name}" for name in _USUAL_TAGS}
_APPLE_KEYS["location"] = "com.apple.quicktime.location.ISO6709"
_COMMENTS = ("comment", _APPLE_KEYS["comment"])

# Of a track: that it is a cover, a thumbnail, a photo or a part of one. The output's picture is
# none of these.
_STILL = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
_STILL |= Disposition.dependent | Disposition.multilayer

_FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
_LONG_S = Fraction(10**6)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file consists of besides its parts. `info`: of the source, for what not every part
    stores. `source`: the file to take tags and other streams from, whose stamp `origin_s` is time 0
    of the output. `mark`: say that AI changed the picture.
    """

    suffix: str
    encoder: VideoEncoder
    info: VideoInfo
    sound: ChosenSound = ChosenSound(())
    source: Path | None = None
    origin_s: Fraction = Fraction(0)
    mark: bool = False


def assemble(path: Path, folder: Path, finished: Finished, contents: Contents) -> tuple[str, ...]:
    """Writes the parts in `folder` to `path`; returns what could not be kept of the source. Raises
    `MediaError`, and `FFmpegError` and `OSError` if `path` cannot be written.
    """
    tags = _tags(contents)
    options = {"max_interleave_delta": _MOST_HELD_US}
    if contents.suffix != ".mkv" and finished.per_s >= _LEAST_TIMESCALE:
        options["video_track_timescale"] = str(finished.per_s)
    container = _open_output(f"file:{path}", contents.suffix, tags, "+faststart", options)
    try:
        with ExitStack() as opened:
            video = _add_video(container, folder, finished, contents)
            problems = list[str]()
            streams = [joined(folder, finished, video)]
            if contents.sound.pieces:
                streams.append(
                    opened.enter_context(open_soundtrack(contents.sound, container, finished.end_s))
                )
            if contents.source is not None:
                others = _open_others(contents, container, finished.end_s)
                # No whole film is lost for one of them.
                streams += [_optional(timed, problems) for timed in opened.enter_context(others)]
            container.start_encoding()  # opens the encoders
            kept = [takewhile(lambda timed: timed[0] < finished.end_s, timed) for timed in streams]
            for _, packet in merge(*kept, key=itemgetter(0)):
                container.mux(packet)
            container.close()
            if contents.mark and contents.suffix != ".mkv" and "xmp" not in tags:
                mark(path)
            return tuple(problems)
    except BaseException:
        abandon(container, path)
        raise


def _add_video(
    container: OutputContainer, folder: Path, finished: Finished, contents: Contents
) -> VideoStream:
    with open_input(folder / finished.parts[0].file) as part:
        template = part.streams.video[0]
        stream = container.add_stream_from_template(template, opaque=True)
        context = stream.codec_context
        if contents.suffix != ".mkv" and contents.encoder.codec == "hevc":
            context.codec_tag = "hvc1"  # FFmpeg's choice does not play on Apple's systems
        if contents.suffix != ".mkv" and contents.encoder.codec == "prores":
            context.codec_tag = template.codec_context.codec_tag  # says its profile
    stream.time_base = finished.time_base
    context.sample_aspect_ratio = contents.info.sample_aspect_ratio
    nominal = contents.info.frames_per_s
    mean = (finished.frames / finished.end_s).limit_denominator(100_000)
    # The last picture may end early or late.
    if nominal and abs(nominal * finished.end_s - finished.frames) < 1:
        context.framerate = nominal
    else:
        context.framerate = mean
    return stream


def _open_output(
    file: str | BytesIO,
    suffix: str,
    tags: Mapping[str, str],
    movflags: str,
    options: Mapping[str, str],
) -> OutputContainer:
    """Opens a file for output with the tags of `_tags`; `movflags` are for .mp4 and .mov."""
    options = dict(options)
    if suffix != ".mkv":
        options["movflags"] = f"{movflags}+use_metadata_tags" if _has_keys(tags) else movflags
    container = av.open(file, "w", format=_FORMATS[suffix], options=options)
    container.metadata.update(tags)
    return container


def _tags(contents: Contents) -> dict[str, str]:
    """The tags of the output's file: those of the source, the mark, and for keys Apple's names."""
    tags = {} if contents.source is None else _source_tags(contents.source)
    if contents.mark:
        tags = marked(tags, contents.suffix)
    if contents.suffix == ".mkv" or not _has_keys(tags):
        return tags
    tags.pop("xmp", None)  # FFmpeg would write it as a key
    apple = {key: tags[name] for name, key in _APPLE_KEYS.items() if name in tags}
    return {**apple, **tags}


def _has_keys(tags: Mapping[str, str]) -> bool:
    return any("." in name for name in tags)


def _source_tags(source: Path) -> dict[str, str]:
    with open_input(source) as container:
        tags = {
            name: value
            for name, value in container.metadata.items()
            if name.lower() not in _OF_THE_FILE
        }
    # Matroska has capital letters only.
    return {
        _key(name) if "." in name and name.isupper() else name: value
        for name, value in tags.items()
    }


def _key(name: str) -> str:
    return name.lower().replace("iso6709", "ISO6709")


def marked(metadata: Mapping[str, str], suffix: str) -> dict[str, str]:
    """The metadata of a container, .mp4, .mov or .mkv, with the mark, instead of an earlier one."""
    kept = {name: value for name, value in metadata.items() if not _is_mark(name)}
    for name in [name for name in kept if name.lower() in _COMMENTS] or ["comment"]:
        own_words = _OUR_COMMENTS.sub("", kept.get(name, ""))
        kept[name] = f"{own_words}; {_COMMENT}" if own_words else _COMMENT
    return {**kept, **_KEYS[suffix]}


def _is_mark(name: str) -> bool:
    return any(name.lower() == each.lower() for keys in _KEYS.values() for each in keys)


def mark(path: Path) -> None:
    """Adds the XMP to an .mp4 or .mov, behind all else, so that nothing in the finished file
    moves.
    """
    content = _XMP_BOX.bytes + _XMP.encode()
    with path.open("ab") as file:
        file.write(struct.pack(">I4s", 8 + len(content), b"uuid") + content)


def losses(contents: Contents) -> Iterator[str]:
    """What an output does not keep of the source, and why its sound is encoded."""
    yield from contents.encoder.notices
    suffix = contents.suffix
    codec = contents.encoder.codec
    aspect = contents.info.sample_aspect_ratio
    # H.264 and HEVC have it in their own stream; for others PyAV writes it to .mp4 and .mov only.
    if aspect != 1 and suffix == ".mkv" and codec not in ("h264", "hevc"):
        yield f"{codec} in .mkv does not store its pixel aspect {aspect}"
    if not contents.encoder.keeps_chroma_place(suffix):
        what = "the place of chroma samples among the pixels is not stored"
        yield f"{what}: players of {codec} in {suffix} expect them at the left, half a pixel away"
    for view in contents.info.views:
        yield f"that the picture is {view} is left out: players show it flat"
    yield from contents.sound.notices
    if contents.source is not None:
        with open_input(contents.source) as container:
            for stream in _others(contents.source, container):
                if not _fits(stream, suffix):
                    if _fits(stream, ".mkv"):
                        cure = f": {suffix} cannot hold it, .mkv can"
                    else:
                        cure = ""
                    yield f"{_name(stream)} is left out{cure}"
            for name, value in container.metadata.items():
                if name.lower() == "timecode":
                    yield f"the timecode {value} is left out"
        yield from _not_written(contents)


@dataclass(frozen=True, slots=True)
class _TrackTags:
    language: str | None
    title: str | None
    uses: Disposition

    def lost_in(self, written: "_TrackTags") -> list[str]:
        """What of these tags is not in those that were written."""
        lost = [str(use.name) for use in Disposition if use & self.uses & ~written.uses]
        if self.language not in (None, "und", written.language):
            lost.append("language")
        if self.title not in (None, written.title):
            lost.append("title")
        return lost


def _track_tags(stream: Stream) -> _TrackTags:
    title = stream.metadata.get("title") or stream.metadata.get("name")  # as MP4 has it
    return _TrackTags(stream.language, title, Disposition(stream.disposition))


def _not_written(contents: Contents) -> Iterator[str]:
    """Names the tags that FFmpeg does not write into such a container, as tried in memory, without
    packets.
    """
    suffix = contents.suffix
    file = BytesIO()
    tags = _tags(contents)
    output = _open_output(file, suffix, tags, "+empty_moov", {})
    picture = output.add_stream("mpeg4", rate=MODEL_FPS)
    if contents.sound.pieces:
        output.add_stream("aac", rate=48000)
    with output, _open_others(contents, output, _LONG_S):
        tracks = [
            (f"{stream.type} track {stream.index}", _track_tags(stream))
            for stream in output.streams
        ]
        packet = Packet(b"\0")  # Matroska is no file without one
        packet.stream = picture
        packet.pts = 0
        packet.dts = 0
        packet.time_base = Fraction(1, MODEL_FPS)
        output.mux(packet)
    file.seek(0)
    with av.open(file) as written:
        names = {name.lower() for name in written.metadata}
        lost = [name for name in tags if name.lower() not in names and not _is_mark(name)]
        if lost:
            cure = "" if suffix == ".mkv" else "; .mkv can"
            yield f"{suffix} cannot hold these tags: {', '.join(lost)}{cure}"
        # chapters have a track behind them
        for (name, track), stream in zip(tracks, written.streams, strict=False):
            kept = _track_tags(stream)
            lost = track.lost_in(kept)
            if lost:
                yield f"{suffix} cannot hold of {name} of the output: {', '.join(lost)}"
            if kept.uses & ~track.uses & Disposition.default:  # FFmpeg wants one of each kind
                yield f"{suffix} marks {name} of the output as default: players may show it"


@contextmanager
def _open_others(
    contents: Contents, output: OutputContainer, end_s: Fraction
) -> Iterator[list[TimedPackets]]:
    """Adds chapters, and the streams that fit of the source to an open output of length `end_s`,
    which has its picture and sound, and gives all of them their tags.
    """
    path = cast(Path, contents.source)
    with ExitStack() as opened, open_input(path) as container:
        _copy_tags(path, container, contents, output, end_s)
        suffix = contents.suffix
        added = list[TimedPackets]()
        for listed in _others(path, container):
            if not _fits(listed, suffix):
                continue
            if isinstance(listed, AttachmentStream):
                output.add_attachment(
                    listed.name or "file",
                    listed.mimetype or "application/octet-stream",
                    listed.data,
                )
                continue
            # A file each, as they are read at different places.
            stream = opened.enter_context(open_input(path)).streams[listed.index]
            if isinstance(stream, SubtitleStream):
                subtitles = _add_subtitles(path, stream, output, suffix)
                added.append(
                    _copied_subtitles(path, stream, subtitles, suffix, contents.origin_s, end_s)
                )
            else:
                track = cast(AudioStream, stream)
                sound = output.add_stream_from_template(track)
                added.append(
                    copied_sound(path, track, sound, Fraction(0), origin_s=contents.origin_s)
                )
            _copy_stream_tags(stream, output.streams[-1])
            if isinstance(stream, AudioStream) and contents.sound.pieces:
                output.streams[-1].disposition &= ~Disposition.default  # players take the new sound
        yield added


def _copy_tags(
    path: Path,
    container: InputContainer,
    contents: Contents,
    output: OutputContainer,
    end_s: Fraction,
) -> None:
    """Tags of its picture and, if that is heard, its sound, and its chapters up to `end_s`."""
    chapters = []
    for chapter in container.chapters():
        edges_s = (
            chapter[edge] * (chapter["time_base"] or 0) - contents.origin_s
            for edge in ("start", "end")
        )
        start, end = (nearest(min(max(edge_s, Fraction(0)), end_s), _PER_S) for edge_s in edges_s)
        if start < end:
            chapters.append(
                {**chapter, "start": start, "end": end, "time_base": Fraction(1, _PER_S)}
            )
    output.set_chapters(cast(Any, chapters))
    _copy_stream_tags(video_stream(path, container), output.streams.video[0])
    if contents.sound.pieces and all(
        is_same_file(piece.path, path) for piece in contents.sound.pieces
    ):
        _copy_stream_tags(container.streams.audio[0], output.streams.audio[0])
    for stream in (*output.streams.video, *output.streams.audio):
        stream.disposition |= Disposition.default


def _copy_stream_tags(source: Stream, output: Stream) -> None:
    tags = _track_tags(source)
    handler = source.metadata.get("handler_name") or source.metadata.get("HANDLER_NAME")
    named = {"language": tags.language, "title": tags.title, "handler_name": handler}
    output.metadata.update({name: value for name, value in named.items() if value})
    output.disposition = tags.uses & ~_STILL


def _optional(timed: TimedPackets, problems: list[str]) -> TimedPackets:
    """The same packets; where their source breaks off, they end, and `problems` says so."""
    try:
        yield from timed
    except MediaError as error:
        problems.append(f"{error}; the rest of this stream is left out")


def _add_subtitles(
    path: Path, stream: SubtitleStream, output: OutputContainer, suffix: str
) -> SubtitleStream:
    """Adds a copy of a stream to an open output, converted if that does not hold its form."""
    if codec_name(stream) in _HELD_FORMS[suffix]:
        return output.add_stream_from_template(stream)
    with reading(path, "its subtitles cannot be decoded"):
        stream.codec_context.open()
    copy = cast(SubtitleStream, output.add_stream(_HELD_FORMS[suffix][0]))
    copy.codec_context.subtitle_header = stream.codec_context.subtitle_header
    return copy


def _copied_subtitles(
    path: Path,
    stream: SubtitleStream,
    copy: SubtitleStream,
    suffix: str,
    origin_s: Fraction,
    end_s: Fraction,
) -> TimedPackets:
    """The packets of a stream for its `copy`; `origin_s`: stamp at time 0 of the output; `end_s`:
    when that ends.
    """
    packets = cast(InputContainer, stream.container).demux(stream)
    source = stream.codec_context
    last = -1
    target = None if codec_name(stream) in _HELD_FORMS[suffix] else copy.codec_context
    most_empty = 2 if source.name == "mov_text" else 0  # a length of 0: nothing is shown
    for packet in guarded(path, stream, packets):
        if packet.pts is None or packet.size <= most_empty:
            continue
        converted: Packet[Any] | None = packet
        if target is not None:
            with reading(path, "its subtitles cannot be read"):
                shown = source.decode2(packet)
                converted = (
                    target.encode_subtitle(shown) if shown is not None and len(shown) else None
                )
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
        converted.stream = copy
        converted.time_base = Fraction(1, _PER_S)
        yield Fraction(start, _PER_S), converted


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
    return isinstance(stream, AttachmentStream) and suffix == ".mkv"


def _name(stream: Stream) -> str:
    if isinstance(stream, AttachmentStream):
        return f"the attached file {stream.name}"
    # Time codes, positions and motion have no codec.
    what = codec_name(stream) or stream.metadata.get("handler_name") or "unknown"
    if stream.language in (None, "und"):
        language = ""
    else:
        language = f", {stream.language}"
    return f"the {stream.type} track {stream.index} ({what}{language})"
