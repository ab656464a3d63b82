"""The finished file: parts as one stream, sound, what is kept of the source, and a mark.

The mark says that AI changed the picture: machine-readable as IPTC's digital source type, and in words.

| container | machine-readable | in words |
|---|---|---|
| .mp4 | XMP in a `uuid` box at the end of the file | comment, encoder |
| .mov | XMP in `moov/udta/XMP_` | comment |
| .mkv | the tag DIGITAL_SOURCE_TYPE | comment, SOFTWARE |

XMP stands where part 3 of its specification wants it.
"""

import re
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from uuid import UUID

import av
from av import VideoStream
from av.container import OutputContainer

from latentsync_trt.media.codecs import VideoEncoder
from latentsync_trt.media.files import open_input
from latentsync_trt.media.other_streams import Source, copy_tags, open_others, optional
from latentsync_trt.media.parts import Finished, abandon, joined
from latentsync_trt.media.reader import are_one
from latentsync_trt.media.soundtrack import ChosenSound, TimedPackets, open_soundtrack
from latentsync_trt.types import VideoInfo
from latentsync_trt.version import __version__

# QuickTime's own. FFmpeg multiplies a smaller number of ticks per second, which keeps stamps exact.
_LEAST_TIMESCALE = 600
_MOST_PER_S = 100_000
# For which FFmpeg holds packets until each stream has one; by default 10 s: gigabytes of 4K.
_MOST_HELD_US = "1000000"  # microseconds

TOOL = f"latentsync-trt {__version__}"
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
"""IPTC's code for a recording of which generative AI changed a part."""

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


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file consists of besides its parts.

    `info`: of the source, for what not every part stores. `source`: the file to take tags and other streams from.
    `mark`: say that AI changed the picture.
    """

    encoder: VideoEncoder
    info: VideoInfo
    sound: ChosenSound | None = None
    source: Source | None = None
    mark: bool = False


def assemble(path: Path, folder: Path, finished: Finished, contents: Contents) -> tuple[str, ...]:
    """Writes the parts in `folder` to `path`; returns what could not be kept of the source. Raises `MediaError`, and
    `FFmpegError` and `OSError` if `path` cannot be written."""
    suffix, options = path.suffix.lower(), {"max_interleave_delta": _MOST_HELD_US}
    if suffix != ".mkv":
        options["movflags"] = "+faststart"
        if finished.per_s >= _LEAST_TIMESCALE:
            options["video_track_timescale"] = str(finished.per_s)
    container = av.open(f"file:{path}", "w", options=options)
    try:
        with ExitStack() as opened:
            video = _add_video(container, suffix, folder, finished, contents)
            problems: list[str] = []
            others: list[TimedPackets] = []
            if contents.sound is not None:
                others.append(opened.enter_context(open_soundtrack(contents.sound, container, finished.end_s)))
            if contents.source is not None:
                pieces = contents.sound.pieces if contents.sound else ()
                own_sound = bool(pieces) and all(are_one(piece.path, contents.source.path) for piece in pieces)
                copy_tags(contents.source, container, finished.end_s, own_sound=own_sound)
                kept = opened.enter_context(open_others(contents.source, container, suffix, finished.end_s))
                others += [optional(timed, problems) for timed in kept]  # no whole film is lost for one of them
            if contents.mark:
                tags = marked(container.metadata, suffix)
                container.metadata.clear()
                container.metadata.update(tags)
            container.start_encoding()  # opens the encoders
            pictures = joined(folder, finished, video)
            heard = [takewhile(lambda timed: timed[0] < finished.end_s, timed) for timed in others]
            for _, packet in merge(pictures, *heard, key=itemgetter(0)):
                container.mux(packet)
            container.close()
            if contents.mark:
                mark(path)
            return tuple(problems)
    except BaseException:
        abandon(container, path)
        raise


def _add_video(
    container: OutputContainer, suffix: str, folder: Path, finished: Finished, contents: Contents
) -> VideoStream:
    with open_input(folder / finished.parts[0].file) as part:
        template = part.streams.video[0]
        stream = container.add_stream_from_template(template, opaque=True)
        context = stream.codec_context
        if suffix != ".mkv" and contents.encoder.codec == "hevc":
            context.codec_tag = "hvc1"  # FFmpeg's choice does not play on Apple's systems
        if suffix != ".mkv" and contents.encoder.codec == "prores":
            context.codec_tag = template.codec_context.codec_tag  # says its profile
    stream.time_base = finished.time_base
    context.sample_aspect_ratio = contents.info.sample_aspect_ratio
    nominal, mean = contents.info.frames_per_s, (finished.frames / finished.end_s).limit_denominator(_MOST_PER_S)
    # The last picture may end early or late.
    context.framerate = nominal if nominal and abs(nominal * finished.end_s - finished.frames) < 1 else mean
    return stream


def marked(metadata: Mapping[str, str], suffix: str) -> dict[str, str]:
    """The metadata of a container, .mp4, .mov or .mkv, with the mark, instead of an earlier one."""
    names = {name.lower() for keys in _KEYS.values() for name in keys}
    kept = {name: value for name, value in metadata.items() if name.lower() not in names}
    name = next((name for name in kept if name.lower() == "comment"), "comment")
    own_words = _OUR_COMMENTS.sub("", kept.get(name, ""))
    return {**kept, **_KEYS[suffix], name: f"{own_words}; {_COMMENT}" if own_words else _COMMENT}


def mark(path: Path) -> None:
    """Adds the XMP of an .mp4, behind all else, so that nothing in the finished file moves."""
    if path.suffix.lower() != ".mp4":
        return
    content = _XMP_BOX.bytes + _XMP.encode()
    with path.open("ab") as file:
        file.write(struct.pack(">I4s", 8 + len(content), b"uuid") + content)
