"""Inputs that are no videos: a still picture, one in tiles, an animated GIF; and pictures of which
a part is hidden.
"""

import struct
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps

from latentsync_trt.config import Extend
from latentsync_trt.errors import MediaError
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import Frame, UInt8Array
from tests.clips import copied, number_of, numbered, write_video
from tests.heif import box, write_heif
from tests.pictures import decoded_planes

DELAYS_MS = [40, 100, 40, 90, 50]


def pictures(count: int) -> list[Image.Image]:
    return [Image.fromarray(picture) for picture in numbered(count)]


def read(
    path: Path, duration_s: Fraction | int | None = None, extend: Extend | None = None
) -> list[Frame]:
    return list(
        read_frames(
            path, Playback(None, None if duration_s is None else Fraction(duration_s), extend)
        )
    )


@pytest.mark.parametrize(
    ("name", "extend"), [("still.jpg", "pingpong"), ("still.webp", "loop"), ("100%d.png", "loop")]
)
def test_a_still_picture_is_held_at_the_models_rate(
    tmp_path: Path, name: str, extend: Extend
) -> None:
    pictures(6)[5].save(tmp_path / name)
    frames = read(tmp_path / name, 2, extend)
    assert [number_of(frame.rgb) for frame in frames] == [5] * 50
    assert [frame.time_s for frame in frames] == [Fraction(index, 25) for index in range(50)]
    assert len({id(frame.planes) for frame in frames}) == 1
    info = probe(tmp_path / name)
    assert (info.frames_per_s, info.duration_s) == (25, Fraction(1, 25))


@pytest.mark.parametrize("mode", ["LA", "L", "P"])
def test_a_picture_without_color_or_with_a_palette_is_read(tmp_path: Path, mode: str) -> None:
    pictures(6)[5].convert(mode).save(tmp_path / "1.png")
    (frame,) = read(tmp_path / "1.png")
    assert number_of(frame.rgb) == 5


@pytest.mark.parametrize("orientation", [1, 3, 5, 6])
def test_a_photograph_is_turned_upright(tmp_path: Path, orientation: int) -> None:
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:16, :32] = 255  # in one corner
    exif = Image.Exif()
    photograph = tmp_path / "photograph.jpg"
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(photograph, exif=exif, quality=95)
    with Image.open(photograph) as image:
        upright = ImageOps.exif_transpose(image)
    info = probe(photograph)
    (frame,) = read(photograph)
    assert (info.width_px, info.height_px) == upright.size
    assert np.abs(frame.rgb.astype(int) - np.asarray(upright)).mean() < 3


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"/>'

# Of each file given: how many pictures are read, and their size.
READ_ALL = """
import gc, sys
from pathlib import Path
from latentsync_trt.media.reader import probe, read_frames
for path in map(Path, sys.argv[1:]):
    info = probe(path)
    print(path.suffix, len(list(read_frames(path))), info.width_px, info.height_px)
    gc.collect()
"""


def test_what_pictures_say_of_themselves_is_no_obstacle(tmp_path: Path) -> None:
    """Color profile, Exif, XMP, and a second picture behind the first, as gain maps of HDR are. In
    a child, as memory that is freed twice ends the process.
    """
    picture, gain_map = pictures(2)
    exif = Image.Exif()
    exif[0x010F] = "maker"
    files = [
        tmp_path / f"photograph{suffix}" for suffix in (".png", ".jpg", ".webp", ".tif", ".avif")
    ]
    for file in files:
        picture.save(file, icc_profile=PROFILE, exif=exif, xmp=XMP)
    files.append(tmp_path / "photograph.mpo")
    picture.save(files[-1], save_all=True, append_images=[gain_map], icc_profile=PROFILE, exif=exif)
    colors = box(b"colr", b"prof", PROFILE)
    files.append(write_heif(tmp_path / "photograph.heic", np.asarray(picture), 64, (colors,)))
    command = [sys.executable, "-c", READ_ALL, *map(str, files)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == [f"{file.suffix} 1 96 64" for file in files]


def gradient(height: int, width: int) -> UInt8Array:
    """A smooth picture without symmetry."""
    y, x = np.mgrid[:height, :width] / [[[height]], [[width]]]
    return (255 * np.stack([x, y, x * y], -1)).astype(np.uint8)


# What is done to the whole photo, as boxes, and the same in NumPy.
TURNS: dict[str, tuple[tuple[bytes, ...], Callable[[UInt8Array], UInt8Array]]] = {
    "as it is": ((), lambda rgb: rgb),
    "turned to the left": ((box(b"irot", b"\1"),), np.rot90),
    "turned and mirrored": (
        (box(b"irot", b"\3"), box(b"imir", b"\1")),
        lambda rgb: np.fliplr(np.rot90(rgb, 3)),
    ),
    "upside down": ((box(b"imir", b"\0"),), np.flipud),
    "cropped": (
        (box(b"clap", struct.pack(">8i", 100, 1, 60, 1, -3, 1, 5, 1)),),
        lambda rgb: rgb[50:110, 62:162],
    ),
}


@pytest.mark.parametrize(("tile_px", "small_first"), [(64, False), (64, True), (256, False)])
@pytest.mark.parametrize("turn", TURNS)
def test_a_photo_in_tiles_is_put_together(
    tmp_path: Path, turn: str, tile_px: int, small_first: bool
) -> None:
    """Tiles lie in another order in the file; the last row and column reach beyond the photo."""
    rgb = gradient(150, 230)
    (properties, expected) = TURNS[turn]
    photo = write_heif(tmp_path / "photo.heic", rgb, tile_px, properties, small_first=small_first)
    info = probe(photo)
    (frame,) = read(photo)
    upright = expected(rgb)
    assert (info.height_px, info.width_px, 3) == upright.shape == frame.rgb.shape
    assert np.abs(frame.rgb.astype(int) - upright).mean() < 3
    assert info.duration_s == Fraction(1, 25)


def test_a_photo_that_is_too_large_is_refused_for_its_size(tmp_path: Path) -> None:
    photo = write_heif(tmp_path / "photo.heic", np.zeros((128, 128, 3), np.uint8), 64)
    size = struct.pack(">II", 128, 128)
    content = photo.read_bytes()
    assert content.count(size) == 1
    photo.write_bytes(content.replace(size, struct.pack(">II", 20_000, 20_000)))
    with pytest.raises(MediaError, match="36 million"):
        probe(photo)


def test_a_large_photo_without_color_tags_has_heifs_matrix(tmp_path: Path) -> None:
    """A video of this size would have that of BT.709."""
    rgb = gradient(720, 720)
    (frame,) = read(write_heif(tmp_path / "photo.heic", rgb, 720))
    assert np.abs(frame.rgb.astype(int) - rgb).mean() < 3


def with_clap(clip: Path, *numbers: int) -> Path:
    """Adds the box to the picture's description at the end of the file, and its size to all boxes
    around.
    """
    content = bytearray(clip.read_bytes())
    at = 0
    clap = box(b"clap", struct.pack(">8i", *numbers))
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1"):
        at = content.index(name, at)
        (size,) = struct.unpack_from(">I", content, at - 4)
        struct.pack_into(">I", content, at - 4, size + len(clap))
        end = at - 4 + size
    content[end:end] = clap
    clip.write_bytes(content)
    return clip


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_what_a_container_hides_stays_hidden(tmp_path: Path, suffix: str) -> None:
    """16 columns at the left, 8 rows at the top and 2 at the bottom; in .mkv, FFmpeg writes it as
    PixelCrop.
    """
    clip = write_video(tmp_path / "clip.mp4", [gradient(64, 96)] * 3)
    whole = decoded_planes(clip)
    with_clap(clip, 80, 1, 54, 1, 8, 1, 3, 1)
    shown = copied(tmp_path / f"shown{suffix}", clip)
    info = probe(shown)
    frames = read(shown, 1, "pingpong")
    assert (info.width_px, info.height_px) == (80, 54)
    assert len(frames) == 25
    for frame in frames[:3]:
        y, u, v = whole[frame.index][1]
        assert frame.planes is not None
        assert np.array_equal(frame.planes.y, y[8:62, 16:])
        assert np.array_equal(frame.planes.u, u[4:31, 8:])
        assert np.array_equal(frame.planes.v, v[4:31, 8:])


@pytest.mark.parametrize("extend", ["pingpong", "loop"])
def test_a_gif_keeps_its_delays(tmp_path: Path, extend: Extend) -> None:
    first, *others = pictures(5)
    first.save(tmp_path / "clip.gif", save_all=True, append_images=others, duration=DELAYS_MS)
    if extend == "pingpong":
        order = [0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4]
    else:
        order = [*range(5)] * 3
    frames = read(tmp_path / "clip.gif", 2, extend)[: len(order)]
    assert [number_of(frame.rgb) for frame in frames] == order
    assert [frame.duration_s * 1000 for frame in frames] == [DELAYS_MS[number] for number in order]
