"""The recipe of a result: what it was made of, written into its own file, by which a part of it can
be done again.

| container | place |
|---|---|
| .mp4, .mov | a `uuid` box behind all else |
| .mkv | the tag LATENTSYNC_TRT |

A digest of the video's packets tells whether another program has changed them.
"""

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from av import Packet

from latentsync_trt.media.files import open_input
from latentsync_trt.option_fields import from_json

RECIPE_TAG = "LATENTSYNC_TRT"
_RECIPE_BOX = UUID("5b6f1c0e-8f0d-4c55-9a4e-2d1b7c6a90f3")
_END_BYTES = 2**18
"""The box of a recipe is so near to the end of its file: only XMP, and what other programs add,
comes after it.
"""
_BOX_SIZE = struct.Struct(">I")
"""How a box of MP4 begins; its kind follows."""
_BOX_HEAD_BYTES = _BOX_SIZE.size + len(b"uuid") + len(_RECIPE_BOX.bytes)


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
            content = _box_content(path)
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
        size = _BOX_SIZE.pack(_BOX_HEAD_BYTES + len(content))
        file.write(size + b"uuid" + kind.bytes + content)


def _box_content(path: Path) -> bytes:
    """Returns what the box of a recipe at the end of a file holds; nothing where none is."""
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, _END_BYTES), os.SEEK_END)
        content = file.read()
    begin = content.rfind(b"uuid" + _RECIPE_BOX.bytes) - _BOX_SIZE.size
    if begin < 0:
        return b""
    (size_bytes,) = _BOX_SIZE.unpack_from(content, begin)
    return content[begin + _BOX_HEAD_BYTES : begin + size_bytes]
