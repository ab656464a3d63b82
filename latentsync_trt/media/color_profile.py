"""The color profiles (ICC) of photos, whose colors are wider than those of video without tags."""

import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SEARCHED_BYTES = 262_144
"""How much of a file is searched: Exif with a thumbnail may come before a profile."""
_PROFILE_BYTES = 65_536
"""What is read of a profile; those with tables for printers are larger, and begin with the same."""
_SIGNATURE = b"acsp"
_SIGNATURE_AT = 36
_TAGS_AT = 128
_TAG_BYTES = 12
_PNG_PROFILE = re.compile(rb"(?s)iCCP[^\0]{1,79}\0\0")
"""What in PNG comes before the compressed profile: its name, and the method."""

_SRGB = ((0.436, 0.222, 0.014), (0.385, 0.717, 0.097), (0.143, 0.061, 0.714))
_DISPLAY_P3 = ((0.515, 0.241, -0.001), (0.292, 0.692, 0.042), (0.157, 0.067, 0.784))
"""X, Y and Z of red, green and blue, for the white of profiles (D50)."""
_TOLERANCE = 0.01
"""By which these differ between the programs that write them; Adobe RGB differs by 0.18."""


@dataclass(frozen=True, slots=True)
class ColorProfile:
    """What a profile says of the colors of a photo."""

    is_srgb: bool
    """Whether they are those of video without tags."""
    is_display_p3: bool
    """Whether they are those of Apple's phones, for which video has a tag."""
    name: str


def color_profile_of(path: Path) -> ColorProfile | None:
    """Returns the profile of three colors in a JPEG, PNG, HEIF or TIFF; None without one."""
    with path.open("rb") as file:
        head = file.read(_SEARCHED_BYTES)
    packed = _PNG_PROFILE.search(head)
    if packed is not None:
        try:
            head = zlib.decompressobj().decompress(head[packed.end() :], _PROFILE_BYTES)
        except zlib.error:
            return None
    begin = head.find(_SIGNATURE) - _SIGNATURE_AT
    if begin < 0:
        return None
    try:
        return _parsed(head[begin : begin + _PROFILE_BYTES])
    except (struct.error, KeyError):  # another kind of profile, or no profile at all
        return None


def _parsed(profile: bytes) -> ColorProfile:
    """Raises `struct.error` and `KeyError` where something is missing."""
    tags = dict[bytes, int]()
    (count,) = struct.unpack_from(">I", profile, _TAGS_AT)
    for number in range(min(count, 100)):
        at = _TAGS_AT + 4 + number * _TAG_BYTES
        name, offset = struct.unpack_from(">4sI", profile, at)
        tags[name] = offset
    colors = [_color_at(profile, tags[name]) for name in (b"rXYZ", b"gXYZ", b"bXYZ")]
    return ColorProfile(
        bool(np.allclose(colors, _SRGB, atol=_TOLERANCE)),
        bool(np.allclose(colors, _DISPLAY_P3, atol=_TOLERANCE)),
        _text_at(profile, tags[b"desc"]),
    )


def _color_at(profile: bytes, offset: int) -> tuple[float, float, float]:
    x, y, z = struct.unpack_from(">3i", profile, offset + 8)
    return x / 65536, y / 65536, z / 65536


def _text_at(profile: bytes, offset: int) -> str:
    """Returns the text of a tag: ASCII in version 2, the first language in version 4."""
    if profile[offset : offset + 4] == b"mluc":
        length, begin = struct.unpack_from(">2I", profile, offset + 20)
        return profile[offset + begin : offset + begin + length].decode("utf-16-be", "replace")
    (length,) = struct.unpack_from(">I", profile, offset + 8)
    return profile[offset + 12 : offset + 12 + length].rstrip(b"\0").decode("ascii", "replace")
