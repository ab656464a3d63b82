"""Photos with a color profile look as they do elsewhere, or a note says that they do not."""

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.media.color_profile import color_profile_of
from latentsync_trt.media.contents import FileExtras
from latentsync_trt.media.encoder_choice import choose_encoder
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter

XYZ = {
    "sRGB": ((0.436, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141)),
    "Display P3": ((0.5151, 0.2412, -0.0011), (0.2919, 0.6922, 0.0419), (0.1572, 0.0666, 0.7841)),
    "Adobe RGB": ((0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446)),
}
"""The colors of profiles as their programs write them."""


def profile_of(name: str) -> bytes:
    """A profile of version 2 with its name and three colors."""
    texts = [b"desc" + struct.pack(">2I", 0, len(name) + 1) + name.encode() + bytes(81)]
    values = np.rint(65536 * np.array(XYZ[name])).astype(">i4")
    texts += [b"XYZ \0\0\0\0" + color.tobytes() for color in values]
    at = 132 + 12 * len(texts)
    table = struct.pack(">I", len(texts))
    for tag, text in zip((b"desc", b"rXYZ", b"gXYZ", b"bXYZ"), texts, strict=True):
        table += tag + struct.pack(">2I", at, len(text))
        at += len(text)
    return bytes(36) + b"acsp" + bytes(88) + table + b"".join(texts)


def write_photo(path: Path, name: str) -> Path:
    """A gray photo with this profile."""
    encoded = cv2.imencode(path.suffix, np.full((64, 96, 3), 120, np.uint8))[1].tobytes()
    profile = profile_of(name)
    if path.suffix == ".jpg":
        content = b"ICC_PROFILE\0\1\1" + profile
        at = 2
        part = b"\xff\xe2" + struct.pack(">H", len(content) + 2) + content
    else:
        content = b"iCCP" + name.encode() + b"\0\0" + zlib.compress(profile)
        at = 33
        part = struct.pack(">I", len(content) - 4) + content
        part += struct.pack(">I", zlib.crc32(content))
    path.write_bytes(encoded[:at] + part + encoded[at:])
    return path


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("name", XYZ)
def test_colors_of_a_profile_are_tagged_or_told(tmp_path: Path, name: str, suffix: str) -> None:
    """As in photos of phones, which are paler where their profile is not known."""
    photo = write_photo(tmp_path / f"photo{suffix}", name)
    info = probe(photo)
    extras = FileExtras((), photo)
    encoder = choose_encoder(SyncOptions(), info)
    with VideoWriter(tmp_path / "out.mp4", info, encoder, extras) as writer:
        for frame in read_frames(photo):
            writer.write(frame)
    assert any(f"profile {name}" in notice for notice in writer.notices) == (name == "Adobe RGB")
    written = probe(tmp_path / "out.mp4").color
    assert (written.primaries == 12) == (name == "Display P3")


@pytest.mark.parametrize("length", [40, 130, 170, 250])
def test_a_profile_that_breaks_off_is_none(tmp_path: Path, length: int) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(profile_of("Display P3")[:length])
    assert color_profile_of(path) is None
