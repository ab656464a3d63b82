"""Inputs that are no videos: a still picture, an animated GIF."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from latentsync_trt.config import Extend
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import Frame
from tests.clips import number_of, numbered

DELAYS_MS = [40, 100, 40, 90, 50]


def pictures(count: int) -> list[Image.Image]:
    return [Image.fromarray(picture) for picture in numbered(count)]


def read(path: Path, duration_s: Fraction | int | None = None, extend: Extend | None = None) -> list[Frame]:
    return list(read_frames(path, Playback(None, None if duration_s is None else Fraction(duration_s), extend)))


def numbers(frames: list[Frame]) -> list[int]:
    return [number_of(frame.rgb) for frame in frames]


@pytest.mark.parametrize("extend", ["pingpong", "loop", "hold"])
@pytest.mark.parametrize("name", ["still.jpg", "still.webp", "100%d.png"])
def test_a_still_picture_is_held_at_the_models_rate(tmp_path: Path, name: str, extend: Extend) -> None:
    pictures(6)[5].save(tmp_path / name)
    frames = read(tmp_path / name, 2, extend)
    assert numbers(frames) == [5] * 50
    assert [frame.time_s for frame in frames] == [Fraction(index, 25) for index in range(50)]
    assert len({id(frame.planes) for frame in frames}) == 1
    info = probe(tmp_path / name)
    assert (info.frames_per_s, info.duration_s) == (25, Fraction(1, 25))


@pytest.mark.parametrize("mode", ["LA", "I;16", "P"])
def test_a_picture_without_color_or_with_a_palette_is_read(tmp_path: Path, mode: str) -> None:
    picture = pictures(6)[5]
    if mode == "I;16":
        gray = Image.fromarray(257 * np.asarray(picture.convert("L"), np.uint16))
    else:
        gray = picture.convert(mode)
    gray.save(tmp_path / "1.png")
    assert numbers(read(tmp_path / "1.png")) == [5]


@pytest.mark.parametrize("orientation", [1, 3, 5, 6])
def test_a_photograph_is_turned_upright(tmp_path: Path, orientation: int) -> None:
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:16, :32] = 255  # in one corner
    exif, photograph = Image.Exif(), tmp_path / "photograph.jpg"
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(photograph, exif=exif, quality=95)
    with Image.open(photograph) as image:
        upright = ImageOps.exif_transpose(image)
    info, (frame,) = probe(photograph), read(photograph)
    assert (info.width_px, info.height_px) == upright.size
    assert np.abs(frame.rgb.astype(int) - np.asarray(upright)).mean() < 3


@pytest.mark.parametrize("extend", ["pingpong", "loop"])
def test_a_gif_keeps_its_delays(tmp_path: Path, extend: Extend) -> None:
    first, *others = pictures(5)
    first.save(tmp_path / "clip.gif", save_all=True, append_images=others, duration=DELAYS_MS)
    order = [0, 1, 2, 3, 4, 3, 2, 1, 0, 1, 2, 3, 4] if extend == "pingpong" else [*range(5)] * 3
    frames = read(tmp_path / "clip.gif", 2, extend)[: len(order)]
    assert numbers(frames) == order
    assert [frame.duration_s * 1000 for frame in frames] == [DELAYS_MS[number] for number in order]
