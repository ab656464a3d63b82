"""Photos of phones (HEIF: HEIC, AVIF) that are put together from tiles.

FFmpeg has a stream for each tile. How they lie, which PyAV does not pass on, is read from the
file's boxes: size (4 bytes), name (4) and content, which in most begins with a version (1) and
flags (3).

libheif (`pi-heif`) would read them, too, but gives RGB instead of the decoder's own samples, by
which every pixel changes, and decodes no AVIF.
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from av import VideoFrame
from av.container import InputContainer
from av.stream import Discard

from latentsync_trt.errors import MediaError
from latentsync_trt.media.files import check_size
from latentsync_trt.media.filters import Filter, apply_filters

_MAX_HEIF_BYTES = 100_000_000
"""How much of a file is read: several times the largest photo."""

_Box = tuple[bytes, memoryview]
"""Name and content."""


def compose_photo(path: Path, container: InputContainer) -> VideoFrame:
    """Returns the whole photo of a file whose streams are its tiles; raises `MediaError` if they
    cannot be put together.
    """
    with path.open("rb") as file:
        content = memoryview(file.read(_MAX_HEIF_BYTES))
    try:
        ids, properties = _read_layout(content)
        width, height = struct.unpack_from(">II", dict(properties)[b"ispe"], 4)
        check_size(path, width, height)
        tiles = _decode_tiles(container, ids)
        filters = _joining_filters(tiles, width, height)
        for kind, value in properties:
            filters += _filters_of(kind, value)
        photo = apply_filters(tiles, *filters)
    except MediaError:  # a `ValueError`, too
        raise
    except (struct.error, LookupError, ValueError) as error:
        raise MediaError(
            f"{path}: consists of parts that cannot be put together; "
            "export the photo as JPEG or PNG"
        ) from error
    photo.color_primaries = tiles[0].color_primaries
    photo.color_trc = tiles[0].color_trc
    photo.colorspace = tiles[0].colorspace
    photo.color_range = tiles[0].color_range
    return photo


def _joining_filters(tiles: list[VideoFrame], width: int, height: int) -> list[Filter]:
    """Returns what makes tiles, row by row, a photo of this size."""
    rows = -(-height // tiles[0].height)
    columns = -(-width // tiles[0].width)
    if len(tiles) != rows * columns:
        raise ValueError(tiles)
    crop = ("crop", f"{width}:{height}:0:0:exact=1")
    if len(tiles) == 1:
        return [crop]
    return [("xstack", f"inputs={len(tiles)}:grid={columns}x{rows}"), crop]


def _decode_tiles(container: InputContainer, ids: tuple[int, ...]) -> list[VideoFrame]:
    """Returns the pictures of the tiles with these ids; raises `KeyError` where one is missing."""
    streams = tuple(stream for stream in container.streams.video if stream.id in ids)
    for stream in streams:
        stream.discard = Discard.default
        stream.thread_count = 1
    pictures = dict[int, VideoFrame]()
    for packet in container.demux(streams):
        for picture in packet.decode():
            picture.pts = 0
            pictures[packet.stream.id] = picture
    return [pictures[number] for number in ids]


def _filters_of(kind: bytes, content: memoryview) -> list[Filter]:
    """Returns what a property of the photo does to it: nothing for most."""
    if kind == b"irot":
        return [("transpose", "cclock")] * (content[0] & 3)
    if kind == b"imir" and content[0] & 1:
        return [("hflip", "")]
    if kind == b"imir":
        # Flipped vertically, the lines in memory are in reverse order, until they are copied.
        return [("vflip", ""), ("copy", "")]
    if kind == b"clap":
        place = "{}/{}:{}/{}:(iw-ow)/2+{}/{}:(ih-oh)/2+{}/{}:exact=1"
        return [("crop", place.format(*struct.unpack(">IIIIiIiI", content)))]
    return []


def _boxes(content: memoryview) -> Iterator[_Box]:
    while content:
        size, name = struct.unpack_from(">I4s", content)
        end = size or len(content)
        yield name, content[8:end]
        content = content[max(end, 8) :]


def _read_layout(file: memoryview) -> tuple[tuple[int, ...], list[_Box]]:
    """Returns the ids of the photo's tiles, row by row, and its properties in the order in which
    they apply.

    Raises `ValueError` for a file that is no photo in tiles, or so large that ids have more bytes.
    """
    meta = dict(_boxes(dict(_boxes(file))[b"meta"][4:]))
    photo = bytes(meta[b"pitm"][4:])
    references = meta[b"iref"]
    properties = dict(_boxes(meta[b"iprp"]))
    associated = properties[b"ipma"]
    has_long_ids = len(photo) > 2 or references[0] or associated[0] or associated[3]
    is_grid = re.search(re.escape(photo) + b"..grid", meta[b"iinf"], re.DOTALL)
    if has_long_ids or not is_grid:
        raise ValueError(photo)
    kinds = list(_boxes(properties[b"ipco"]))
    numbers = _property_numbers(photo, associated)
    return _tile_ids(photo, references), [kinds[number - 1] for number in numbers if number]


def _tile_ids(photo: bytes, references: memoryview) -> tuple[int, ...]:
    for kind, ids in _boxes(references[4:]):
        if kind == b"dimg" and ids[:2] == photo:
            return struct.unpack(f">{len(ids) // 2 - 2}H", ids[4:])
    raise LookupError(photo)


def _property_numbers(photo: bytes, associated: memoryview) -> list[int]:
    """Returns the numbers of the photo's properties, from 1; 0 for none."""
    at = 8
    while associated[at : at + 2] != photo:
        at += 3 + associated[at + 2]
    first = at + 3
    # The highest bit says that the property is essential.
    end = first + associated[at + 2]
    return [entry & 0x7F for entry in associated[first:end]]
