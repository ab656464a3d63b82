"""Photos that are stored in tiles, as phones do (HEIF: HEIC, AVIF).

FFmpeg has a stream for each tile. How they lie, which PyAV does not pass on, is read from the file's boxes: size
(4 bytes), name (4) and content, which in most begins with a version (1) and flags (3).
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from av import VideoFrame, VideoStream
from av.container import InputContainer
from av.stream import Discard, Disposition, Stream

from latentsync_trt.errors import MediaError
from latentsync_trt.media.color import pixels_per_sample
from latentsync_trt.media.conversion import FrameConverter, frame_of, set_tags
from latentsync_trt.media.files import check_size
from latentsync_trt.types import SampleArray, YuvPlanes

_MOST_BYTES = 100_000_000

_Box = tuple[bytes, memoryview]  # name and content


def is_photo(stream: Stream) -> bool:
    return stream.type == "video" and stream.frames == 1 and stream.duration is None


def is_tile(stream: Stream) -> bool:
    return is_photo(stream) and bool(stream.disposition & Disposition.dependent)


def decoded(path: Path, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """The pictures of the main stream; where that is no more than a part of a photo, the whole."""
    if stream.disposition & Disposition.default or not any(map(is_tile, container.streams)):
        yield from container.decode(stream)
        return
    try:
        with path.open("rb") as file:
            photo = _composed(path, container, *_layout(memoryview(file.read(_MOST_BYTES))))
    except (struct.error, LookupError, ValueError) as error:
        cure = "export the photo as JPEG or PNG"
        raise MediaError(f"{path}: consists of parts that cannot be put together; {cure}") from error
    yield photo


def _boxes(content: memoryview) -> Iterator[_Box]:
    while content:
        size, name = struct.unpack_from(">I4s", content)
        yield name, content[8 : size or None]
        content = content[max(size, 8) if size else len(content) :]


def _layout(file: memoryview) -> tuple[tuple[int, ...], list[_Box]]:
    """The ids of the photo's tiles, row by row, and its properties in the order in which they apply."""
    meta = dict(_boxes(dict(_boxes(file))[b"meta"][4:]))
    properties, photo = dict(_boxes(meta[b"iprp"])), bytes(meta[b"pitm"][4:])
    kinds, links = list(_boxes(properties[b"ipco"])), properties[b"ipma"]
    long = len(photo) > 2 or meta[b"iref"][0] or links[0] or links[3]  # numbers of more bytes, for very large files
    if long or not re.search(re.escape(photo) + b"..grid", meta[b"iinf"], re.DOTALL):
        raise ValueError(photo)
    tiles = {bytes(ids[:2]): ids[4:] for kind, ids in _boxes(meta[b"iref"][4:]) if kind == b"dimg"}[photo]
    at = 8
    while links[at : at + 2] != photo:
        at += 3 + links[at + 2]
    # The highest bit says that the property is essential.
    numbers = [number & 0x7F for number in links[at + 3 : at + 3 + links[at + 2]]]
    return struct.unpack(f">{len(tiles) // 2}H", tiles), [kinds[number - 1] for number in numbers if number]


def _composed(path: Path, container: InputContainer, tiles: tuple[int, ...], properties: list[_Box]) -> VideoFrame:
    width, height = struct.unpack_from(">II", dict(properties)[b"ispe"], 4)
    check_size(path, width, height)
    streams = tuple(stream for stream in container.streams.video if stream.id in tiles)
    for stream in streams:
        stream.discard, stream.thread_count = Discard.default, 1
    converter, packets = FrameConverter(), container.demux(streams)
    parts = {packet.stream.id: converter.planes(frame) for packet in packets for frame in packet.stream.decode(packet)}
    first = parts[tiles[0]]
    rows, columns = -(-height // first.y.shape[0]), -(-width // first.y.shape[1])
    if len(tiles) != rows * columns or b"clap" in dict(properties):
        raise ValueError(tiles)

    def plane(name: str, down: int, across: int) -> SampleArray:
        cells = [getattr(parts[tile], name) for tile in tiles]
        whole = np.block([cells[start : start + columns] for start in range(0, len(cells), columns)])
        whole = whole[: -(-height // down), : -(-width // across)]
        for kind, content in properties:
            if kind == b"irot":
                whole = np.rot90(whole, content[0] & 3)
            elif kind == b"imir":
                whole = np.flip(whole, content[0] & 1)
        return whole

    y, u, v = plane("y", 1, 1), *(plane(name, *pixels_per_sample(first)) for name in "uv")
    photo = frame_of(YuvPlanes(y, u, v, first.color, first.bits), y.shape[1], y.shape[0])
    set_tags(photo, first.color)
    return photo
