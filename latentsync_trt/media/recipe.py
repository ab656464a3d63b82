"""The recipe of a result: what it was made of, written into its own file, by which a part of it can
be done again.

| container | place |
|---|---|
| .mp4, .mov | a `uuid` box behind all else |
| .mkv | the tag LATENTSYNC_TRT |

A digest of the video's packets tells whether another program has changed them.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from av import Packet

from latentsync_trt.media.files import open_input
from latentsync_trt.option_fields import from_json

RECIPE_TAG = "LATENTSYNC_TRT"
_RECIPE_BOX = UUID("5b6f1c0e-8f0d-4c55-9a4e-2d1b7c6a90f3")
_MOST_RECIPE_BYTES = 2**20
"""A box of this kind that is longer was written by something else."""
_HEADER = struct.Struct(">I4s")
"""How a box of MP4 begins: its size in bytes and its kind."""
_LONG_SIZE = struct.Struct(">Q")
"""Follows a header whose size is 1, and is the size then."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a result is made of, by name, as text."""

    fixed: Mapping[str, str]
    """What must be the same where a part is done again."""
    free: Mapping[str, str]
    """Options in which such a part may differ."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a file says of how it was made."""

    ingredients: Ingredients
    frames: int
    digest: str
    """Of the video's packets, in their order."""
    end: int
    """When the last picture ends, in units of which `per_s` are a second."""
    per_s: int

    @property
    def end_s(self) -> Fraction:
        return Fraction(self.end, self.per_s)

    @classmethod
    def read(cls, path: Path) -> "Recipe | None":
        """Returns the recipe of a file that FFmpeg can open; None where it has none."""
        with open_input(path) as container:
            tags = {name.upper(): value for name, value in container.metadata.items()}
        content = tags.get(RECIPE_TAG, "").encode()
        if not content:
            with path.open("rb") as file:
                content = _box_content(file)
        try:
            return from_json(cls, content, path)
        except ValueError:
            return None

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    def append_to(self, path: Path) -> None:
        """Adds the recipe to an .mp4 or .mov."""
        append_box(path, _RECIPE_BOX, self.to_json())


def digest_of(packets: Iterable["Packet[Any]"]) -> str:
    """Returns a digest of the bytes of packets, in their order."""
    digest = sha256()
    for packet in packets:
        digest.update(packet)
    return digest.hexdigest()


def append_box(path: Path, kind: UUID, content: bytes) -> None:
    """Adds a `uuid` box to an .mp4 or .mov, behind all else, so that nothing in the finished file
    moves.
    """
    with path.open("ab") as file:
        header = _HEADER.pack(_HEADER.size + len(kind.bytes) + len(content), b"uuid")
        file.write(header + kind.bytes + content)


def _box_content(file: BufferedReader) -> bytes:
    """Returns what the box of a recipe in an .mp4 or .mov holds; nothing where none is there."""
    for kind, size_bytes in _boxes_of_file(file):
        if kind == b"uuid" and len(_RECIPE_BOX.bytes) <= size_bytes <= _MOST_RECIPE_BYTES:
            content = file.read(size_bytes)
            if content.startswith(_RECIPE_BOX.bytes):
                return content.removeprefix(_RECIPE_BOX.bytes)
    return b""


def _boxes_of_file(file: BufferedReader) -> Iterator[tuple[bytes, int]]:
    """Yields kind and size of what each box holds, where that begins, until the file ends or has
    something that is no box.
    """
    begin = 0
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        size_bytes, kind = _HEADER.unpack(header)
        header_bytes = _HEADER.size
        if size_bytes == 1:
            long_size = file.read(_LONG_SIZE.size)
            if len(long_size) < _LONG_SIZE.size:
                return
            (size_bytes,) = _LONG_SIZE.unpack(long_size)
            header_bytes += _LONG_SIZE.size
        if size_bytes < header_bytes:  # 0: the box goes on to the end of the file
            return
        yield kind, size_bytes - header_bytes
        begin += size_bytes
        file.seek(begin)
