"""HEIF photos in tiles, as phones write them: made of boxes by hand, since FFmpeg writes none."""

import io
import struct
from itertools import product
from pathlib import Path

import av
import numpy as np

from latentsync_trt.types import UInt8Array
from tests.clips import HEVC


def box(name: bytes, *content: bytes) -> bytes:
    joined = b"".join(content)
    return struct.pack(">I4s", 8 + len(joined), name) + joined


def _full(name: bytes, version: int, *content: bytes, flags: int = 0) -> bytes:
    return box(name, struct.pack(">I", version << 24 | flags), *content)


def _ids(form: str, *numbers: int) -> bytes:
    return struct.pack(f">{form}", *numbers)


def _coded(pictures: list[UInt8Array]) -> tuple[bytes, list[bytes]]:
    """The box of the decoder's settings, and each picture as an HEVC key frame."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx265", rate=25, options={**HEVC, "crf": "4", "g": "1"})
        stream.height, stream.width = pictures[0].shape[:2]
        for rgb in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(rgb).reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    content = file.getvalue()
    start = content.index(b"hvcC") - 4
    settings = content[start : start + struct.unpack_from(">I", content, start)[0]]
    with av.open(io.BytesIO(content)) as container:
        return settings, [bytes(packet) for packet in container.demux(video=0) if packet.size]


def write_heif(
    path: Path,
    rgb: UInt8Array,
    tile_px: int,
    properties: tuple[bytes, ...] = (),
    *,
    small_first: bool = False,
) -> Path:
    """Writes a photo `(H, W, 3)` in square tiles, which reach over its right and lower edge.

    Args:
        properties: boxes of the whole photo, such as its rotation. small_first: a dark thumbnail
            comes first.
    """
    height, width = rgb.shape[:2]
    rows = -(-height // tile_px)
    columns = -(-width // tile_px)
    whole = np.pad(
        rgb, ((0, rows * tile_px - height), (0, columns * tile_px - width), (0, 0)), "edge"
    )
    corners = product(range(0, rows * tile_px, tile_px), range(0, columns * tile_px, tile_px))
    tiles = [whole[y : y + tile_px, x : x + tile_px] for y, x in corners][::-1]  # not as they lie
    settings, coded = _coded([np.zeros_like(tiles[0]), *tiles] if small_first else tiles)
    items = range(10, 10 + len(coded))
    whole_id = 5
    parts = items[:0:-1] if small_first else items[::-1]
    described = [
        _full(b"infe", 2, _ids("HH", item, 0), b"hvc1", b"\0", flags=int(item in parts))
        for item in items
    ]
    described.append(_full(b"infe", 2, _ids("HH", whole_id, 0), b"grid", b"\0"))
    refers = [box(b"dimg", _ids("HH", whole_id, len(parts)), *[_ids("H", item) for item in parts])]
    if small_first:
        refers.append(box(b"thmb", _ids("HHH", items[0], 1, whole_id)))
    sizes = [_full(b"ispe", 0, _ids("II", *size)) for size in ((tile_px, tile_px), (width, height))]
    of_tiles = [_ids("H", item) + b"\x02\x81\x02" for item in items]
    of_whole = bytes([1 + len(properties), 3, *range(4, 4 + len(properties))])
    associated = _full(
        b"ipma", 0, _ids("I", 1 + len(items)), *of_tiles, _ids("H", whole_id), of_whole
    )
    grid = bytes([0, 0, rows - 1, columns - 1]) + _ids("HH", width, height)

    def meta(from_byte: int) -> bytes:
        places = list[bytes]()
        at = from_byte
        for item, content in zip(items, coded, strict=True):
            places.append(_ids("HHHHII", item, 0, 0, 1, at, len(content)))
            at += len(content)
        places.append(_ids("HHHHII", whole_id, 1, 0, 1, 0, len(grid)))
        return _full(
            b"meta",
            0,
            _full(b"hdlr", 0, b"\0" * 4, b"pict", b"\0" * 13),
            _full(b"pitm", 0, _ids("H", whole_id)),
            _full(b"iinf", 0, _ids("H", len(described)), *described),
            _full(b"iref", 0, *refers),
            box(b"iprp", box(b"ipco", settings, *sizes, *properties), associated),
            _full(b"iloc", 1, b"\x44\0", _ids("H", len(places)), *places),
            box(b"idat", grid),
        )

    kind = box(b"ftyp", b"heic", b"\0" * 4, b"mif1heic")
    path.write_bytes(kind + meta(len(kind) + len(meta(0)) + 8) + box(b"mdat", *coded))
    return path
