"""Decoded pictures as players show them: cropped, and photos of phones (HEIF: HEIC, AVIF) put
together from tiles.

FFmpeg has a stream for each tile. How they lie, which PyAV does not pass on, is read from the
file's boxes: size (4 bytes), name (4) and content, which in most begins with a version (1) and
flags (3).
"""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
from av import FFmpegError, VideoFrame, VideoStream
from av.container import InputContainer
from av.filter import Graph
from av.stream import Discard, Disposition, Stream
from av.video.reformatter import ColorRange, Colorspace

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.files import check_size, decode

_MOST_BYTES = 100_000_000

# In Matroska a value begins with its length. After width and height of a video follow, among
# others, pixels to hide.
_NUMBERS = re.compile(
    rb"(?s)\xb0[\x81-\x84].{1,4}?\xba[\x81-\x84].{1,4}?((?:[\x9a\x9d]\x81.|[ST].(?:\x81.|\x82..))+)"
)
_EDGE = re.compile(rb"(?s)T([\xaa\xbb\xcc\xdd])(\x81.|\x82..)")
# Along x and y: 1 at the first pixel that a chroma sample covers, 2 between both.
_CHROMA_PLACE = re.compile(rb"\x55\xb7\x81([\1\2])\x55\xb8\x81([\1\2])")

# By FFmpeg's number of the order in which fields are stored and shown.
_TOP_FIELD_FIRST = {2: True, 3: False, 4: True, 5: False}

# JPEG 2000 and TIFF: their Y'CbCr is that of JPEG, which FFmpeg does not say.
_UNTAGGED_PICTURES = "j2k_pipe", "tiff_pipe"

_Box = tuple[bytes, memoryview]  # name and content


def is_photo(stream: Stream) -> bool:
    """Whether it is a picture of HEIF: without a duration."""
    return stream.type == "video" and stream.frames == 1 and stream.duration is None


def is_tile(stream: Stream) -> bool:
    return is_photo(stream) and bool(stream.disposition & Disposition.dependent)


def decode_pictures(
    path: Path, container: InputContainer, stream: VideoStream
) -> Iterator[VideoFrame]:
    """The pictures of the main stream; where that is no more than a part of a photo, the whole."""
    crop = _crop(stream)
    size = None
    frames = decode(container, stream)
    if not stream.disposition & Disposition.default and any(map(is_tile, container.streams)):
        try:
            frames = iter([_composed(path, container)])
        except (struct.error, LookupError, ValueError) as error:
            what = "consists of parts that cannot be put together"
            raise MediaError(f"{path}: {what}; export the photo as JPEG or PNG") from error
    for frame in frames:
        size = size or (frame.width, frame.height)
        if size != (frame.width, frame.height):
            raise InputError(
                f"its pictures change from {size[0]}×{size[1]} to {frame.width}×{frame.height}"
            )
        if is_photo(stream):
            frame.duration = 0  # FFmpeg's is a second
        if (
            container.format.name in _UNTAGGED_PICTURES
            and frame.color_range == ColorRange.UNSPECIFIED
        ):
            frame.color_range = ColorRange.JPEG
            frame.colorspace = Colorspace.ITU601
        yield apply_filters([frame], ("crop", crop)) if crop else frame


def chroma_place_of(stream: VideoStream) -> tuple[int, int] | None:
    """Where the chroma samples of coded pictures lie, as in `VideoInfo`."""
    place = _CHROMA_PLACE.search(_matroska_header(stream))
    if place:
        return (place[1][0] - 1, place[2][0] - 1)
    return None


def top_field_first(stream: VideoStream, frame: VideoFrame) -> bool | None:
    """Of an interlaced frame, whether its top field is the earlier one; None where neither the
    frame nor the container says that it is interlaced.
    """
    if not frame.interlaced_frame:
        return _TOP_FIELD_FIRST.get(stream.codec_context.field_order)
    try:
        apply_filters([frame], ("select", "eq(interlace_type,TOPFIRST)"))
    except BlockingIOError:  # it was not selected
        return False
    return True


def _crop(stream: VideoStream) -> str:
    """What the container says is hidden of the pictures (`clap`, PixelCrop), for FFmpeg's filter;
    empty for nothing.
    """
    numbers = _NUMBERS.search(_matroska_header(stream))
    edges = {
        name: int.from_bytes(number[1:])
        for name, number in _EDGE.findall(numbers[1] if numbers else b"")
    }
    bottom, top, left, right = (edges.get(name, 0) for name in (b"\xaa", b"\xbb", b"\xcc", b"\xdd"))
    if edges:
        return f"iw-{left + right}:ih-{top + bottom}:{left}:{top}:exact=1"
    return ""


def _matroska_header(stream: VideoStream) -> bytes:
    """What Matroska's muxer writes of a stream, with properties that PyAV passes on to outputs
    only; empty for codecs that Matroska does not hold.
    """
    header = BytesIO()
    with suppress(FFmpegError, ValueError), av.open(header, "w", format="matroska") as output:
        output.add_stream_from_template(stream, opaque=True)
        output.start_encoding()
    return header.getvalue()


def apply_filters(frames: Sequence[VideoFrame], *filters: tuple[str, str]) -> VideoFrame:
    """What FFmpeg's filters, each with its options, make of frames, all of which the first one
    takes.
    """
    graph = Graph()
    graph.threads = 1
    nodes = [*(graph.add(*each) for each in filters), graph.add("buffersink")]
    time_base = frames[0].time_base or Fraction(1)
    for place, frame in enumerate(frames):
        source = graph.add_buffer(
            None, frame.width, frame.height, frame.format, time_base=time_base
        )
        source.link_to(nodes[0], 0, place)
    graph.link_nodes(*nodes).configure()
    for place, frame in enumerate(frames):
        graph.vpush(frame, place)
    return graph.vpull()


def _boxes(content: memoryview) -> Iterator[_Box]:
    while content:
        size, name = struct.unpack_from(">I4s", content)
        yield name, content[8 : size or None]
        content = content[max(size, 8) if size else len(content) :]


def _layout(file: memoryview) -> tuple[tuple[int, ...], list[_Box]]:
    """The ids of the photo's tiles, row by row, and its properties in the order in which they
    apply.
    """
    meta = dict(_boxes(dict(_boxes(file))[b"meta"][4:]))
    properties = dict(_boxes(meta[b"iprp"]))
    photo = bytes(meta[b"pitm"][4:])
    kinds = list(_boxes(properties[b"ipco"]))
    links = properties[b"ipma"]
    # numbers of more bytes, for very large files
    long = len(photo) > 2 or meta[b"iref"][0] or links[0] or links[3]
    if long or not re.search(re.escape(photo) + b"..grid", meta[b"iinf"], re.DOTALL):
        raise ValueError(photo)
    tiles = {bytes(ids[:2]): ids[4:] for kind, ids in _boxes(meta[b"iref"][4:]) if kind == b"dimg"}[
        photo
    ]
    at = 8
    while links[at : at + 2] != photo:
        at += 3 + links[at + 2]
    # The highest bit says that the property is essential.
    numbers = [number & 0x7F for number in links[at + 3 : at + 3 + links[at + 2]]]
    return struct.unpack(f">{len(tiles) // 2}H", tiles), [
        kinds[number - 1] for number in numbers if number
    ]


def _composed(path: Path, container: InputContainer) -> VideoFrame:
    with path.open("rb") as file:
        tiles, properties = _layout(memoryview(file.read(_MOST_BYTES)))
    width, height = struct.unpack_from(">II", dict(properties)[b"ispe"], 4)
    check_size(path, width, height)
    parts = dict[int, VideoFrame]()
    streams = tuple(stream for stream in container.streams.video if stream.id in tiles)
    for stream in streams:
        stream.discard = Discard.default
        stream.thread_count = 1
    for packet in container.demux(streams):
        for part in packet.stream.decode(packet):
            part.pts = 0
            parts[packet.stream.id] = part
    first = parts[tiles[0]]
    rows = -(-height // first.height)
    columns = -(-width // first.width)
    if len(tiles) != rows * columns:
        raise ValueError(tiles)
    if len(tiles) > 1:
        filters = [("xstack", f"inputs={len(tiles)}:grid={columns}x{rows}")]
    else:
        filters = []
    filters.append(("crop", f"{width}:{height}:0:0:exact=1"))
    for kind, content in properties:
        if kind == b"irot":
            filters += [("transpose", "cclock")] * (content[0] & 3)
        elif kind == b"imir":
            # Flipped vertically, the lines in memory are in reverse order, until they are copied.
            filters += [("hflip", "")] if content[0] & 1 else [("vflip", ""), ("copy", "")]
        elif kind == b"clap":
            place = "{}/{}:{}/{}:(iw-ow)/2+{}/{}:(ih-oh)/2+{}/{}:exact=1"
            filters.append(("crop", place.format(*struct.unpack(">IIIIiIiI", content))))
    photo = apply_filters([parts[tile] for tile in tiles], *filters)
    photo.color_primaries = first.color_primaries
    photo.color_trc = first.color_trc
    photo.colorspace = first.colorspace
    photo.color_range = first.color_range
    return photo
