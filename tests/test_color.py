"""Color tags reach the output; pictures that would come out wrong are refused with the command that
converts them.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from latentsync_trt.errors import MediaError
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import ColorTags
from tests.clips import HEVC, numbered, rewritten, write_video
from tests.pictures import decoded_planes

TAGGED = ColorTags(9, 14, 9, full_range=False)
"""BT.2020 of limited range."""

YUV_ROUND_TRIP = 4
"""Largest change of an 8-bit RGB level by 4:2:0 in x264's quality below, where colors are flat."""


def tags(path: Path) -> ColorTags:
    """What players read: the tags of the stream, which must be those of its pictures."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frame = next(container.decode(stream))
        context = stream.codec_context
        of_stream = (
            context.color_primaries,
            context.color_trc,
            context.colorspace,
            context.color_range,
        )
        of_frame = frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range
        assert tuple(map(int, of_stream)) == tuple(map(int, of_frame))
        primaries, transfer, matrix, color_range = map(int, of_stream)
    return ColorTags(primaries, transfer, matrix, {0: None, 1: False, 2: True}[color_range])


@pytest.mark.parametrize(
    ("suffix", "size", "options"),
    [
        (".mov", (64, 96), {"rotation": (90, False, False)}),
        (".mkv", (64, 96), {"codec": "libx265", "pixel_format": "yuv420p10le", "options": HEVC}),
        (".mov", (480, 720), {"codec": "dvvideo", "pixel_format": "yuv411p"}),
    ],
)
def test_tags_survive_every_conversion(
    tmp_path: Path, suffix: str, size: tuple[int, int], options: dict[str, Any]
) -> None:
    source = write_video(tmp_path / f"in{suffix}", numbered(2, *size), color=TAGGED, **options)
    color = probe(source).color
    assert replace(color, full_range=False) == TAGGED  # DV states no range, which means limited
    assert tags(rewritten(source, tmp_path / "out.mp4").output) == TAGGED


@pytest.mark.parametrize("pixel_format", ["gray", "gray10le"])
@pytest.mark.parametrize("full_range", [False, True])
def test_gray_is_read_in_the_range_of_its_tag(
    tmp_path: Path, pixel_format: str, full_range: bool
) -> None:
    black, white = (0, 255) if full_range else (16, 235)
    codes = np.full((64, 96, 3), black, np.uint8)  # equal R, G and B become the codes of gray
    codes[:, 48:] = white
    source = write_video(
        tmp_path / "in.mkv",
        [codes],
        codec="ffv1",
        pixel_format=pixel_format,
        color=ColorTags(1, 1, 1, full_range),
    )
    (frame,) = read_frames(source)
    assert frame.rgb[10, 10].tolist() == [0] * 3
    assert frame.rgb[10, 90].tolist() == [255] * 3


@pytest.mark.parametrize("name", ["1.jpg", "1.tif", "1.jp2", "1.pgm", "1.tga", "1.pbm", "1.avi"])
def test_gray_without_a_tag_has_full_range(tmp_path: Path, name: str) -> None:
    """Pictures of common forms, and raw video."""
    levels = np.full((64, 96), 128, np.uint8)
    source = tmp_path / name
    levels[:16] = 0
    levels[48:] = 255
    if name == "1.avi":
        gray = av.VideoFrame.from_ndarray(levels, format="gray")
        write_video(source, [gray] * 2, codec="rawvideo", pixel_format="gray")
    else:
        Image.fromarray(levels).convert("1" if name == "1.pbm" else "L", dither=None).save(source)
    frame = next(read_frames(source))
    assert frame.rgb[[4, 60], 50, 1].tolist() == [0, 255]
    assert name == "1.pbm" or frame.rgb[32, 50, 1] == 128
    assert probe(source).color.full_range


@pytest.mark.parametrize("name", ["1.jp2", "1.tif"])
def test_pictures_in_ycbcr_are_those_of_jpeg(tmp_path: Path, name: str) -> None:
    """Whose matrix does not depend on their size."""
    levels = np.full((720, 720, 3), (200, 20, 60), np.uint8)
    Image.fromarray(levels).convert("YCbCr").save(tmp_path / name)
    (frame,) = read_frames(tmp_path / name)
    assert np.abs(frame.rgb[10, 10].astype(int) - levels[0, 0]).max() <= 2


LEFT = (0, 1)
CENTER = (1, 1)
TOP_LEFT = (0, 0)
TOP = (1, 0)
"""How far a chroma sample lies to the right of and below the first pixel that it covers, in half
pixels.
"""

DEEP = {"codec": "libx265", "pixel_format": "yuv420p10le"}


@pytest.mark.parametrize(
    ("form", "place", "output", "codec", "kept"),
    [
        (DEEP, "topleft", "out.mp4", "hevc", TOP_LEFT),  # as HDR10 has it
        (DEEP, "topleft", "out.mp4", "av1", TOP_LEFT),
        ({}, "center", "out.mov", "h264", CENTER),
        ({}, "center", "out.mkv", "av1", CENTER),
        ({}, "center", "out.mp4", "av1", None),
        ({}, "center", "out.mkv", "ffv1", CENTER),
        ({"rotation": (270, False, False)}, "left", "out.mkv", "ffv1", TOP),
        ({"rotation": (0, True, False)}, "left", "out.mkv", "ffv1", None),
    ],
)
def test_the_place_of_chroma_samples_is_kept_or_its_loss_told(
    tmp_path: Path,
    form: dict[str, Any],
    place: str,
    output: str,
    codec: str,
    kept: tuple[int, int] | None,
) -> None:
    options = {**(HEVC if form == DEEP else {}), "chroma_sample_location": place}
    source = write_video(tmp_path / "in.mov", numbered(2), options=options, **form)
    writer = rewritten(source, tmp_path / output, codec=codec)
    assert probe(tmp_path / output).chroma_place == kept
    assert any("place of chroma" in notice for notice in writer.notices) == (kept is None)


def test_chroma_moves_with_its_place(tmp_path: Path) -> None:
    """From 4:2:0 whose samples lie at the top left to 4:2:2; from RGB to 4:2:0 with them at the
    left.
    """
    ramp = np.linspace(60, 188, 64, dtype=np.uint8)
    frame = av.VideoFrame(64, 64, "yuv420p")
    for plane, levels in zip(frame.planes, (ramp, ramp[::2], ramp[::2]), strict=True):
        plane.update(np.repeat(levels, plane.line_size).tobytes())
    source = write_video(
        tmp_path / "in.mkv", [frame], codec="ffv1", options={"chroma_sample_location": "topleft"}
    )
    rewritten(source, tmp_path / "out.mov", codec="prores")
    ((_, (_, blue, _)),) = decoded_planes(tmp_path / "out.mov")
    assert abs((blue[4:60, 16] / 4 - ramp[4:60]).mean()) < 0.3  # elsewhere: 1

    colors = np.full((64, 64, 3), 100, np.uint8)
    colors[..., 2] = ramp
    Image.fromarray(colors).save(tmp_path / "in.png")
    rewritten(tmp_path / "in.png", tmp_path / "out.mkv", crf=0)
    ((_, (_, blue, _)),) = decoded_planes(tmp_path / "out.mkv")
    expected = 128 + (ramp[::2].astype(float) - 100) * 112 / 255
    assert abs((blue[16] - expected)[4:28].mean()) < 0.15  # elsewhere: 0.45
    assert probe(tmp_path / "out.mkv").chroma_place == LEFT


def test_frames_of_other_tags_are_converted_to_the_first_ones(tmp_path: Path) -> None:
    """Joined recordings, as TV stations send them."""
    levels = np.full((64, 96, 3), (200, 100, 50), np.uint8)
    joined = tmp_path / "joined.ts"
    with joined.open("wb") as target:
        for index, (matrix, full_range) in enumerate([(9, False), (1, False), (5, True)]):
            planes = av.VideoFrame.from_ndarray(levels, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=matrix, dst_color_range=1 + full_range
            )
            times = [*range(400 * index, 400 * index + 400, 40)]
            color = ColorTags(matrix=matrix, full_range=full_range)
            part = write_video(
                tmp_path / "part.ts", [planes] * 10, times=times, color=color, options={"crf": "4"}
            )
            target.write(part.read_bytes())
    found = list(read_frames(joined))
    assert len(found) > 25  # some pictures are lost where the parts meet
    for frame in found:
        assert frame.planes is not None
        assert frame.planes.color == ColorTags(2, 2, 9, full_range=False)
        assert np.abs(frame.rgb[20:40, 20:60].astype(int) - levels[0, 0]).max() <= YUV_ROUND_TRIP


@pytest.mark.parametrize("color", [ColorTags(1, 1, 8), ColorTags(9, 16, 14)])
def test_an_unknown_matrix_is_found_before_the_work(tmp_path: Path, color: ColorTags) -> None:
    source = write_video(tmp_path / "in.mp4", numbered(2), color=color)
    with pytest.raises(MediaError, match=rf"in\.mp4: .*color matrix {color.matrix} "):
        probe(source)


HALF_TRANSPARENT = np.full((64, 96, 4), (200, 100, 50, 255), np.uint8)
HALF_TRANSPARENT[:, 48:, 3] = 0

WITH_ALPHA = [("clip.mov", "qtrle", "argb"), ("clip.mkv", "ffv1", "yuva420p")]
HIDDEN_ALPHA = ("clip.webm", "libvpx-vp9", "yuva420p")  # which FFmpeg's decoder leaves out


@pytest.mark.parametrize(("name", "codec", "pixel_format"), [*WITH_ALPHA, HIDDEN_ALPHA])
def test_transparency_is_refused(tmp_path: Path, name: str, codec: str, pixel_format: str) -> None:
    source = write_video(
        tmp_path / name, [HALF_TRANSPARENT] * 2, codec=codec, pixel_format=pixel_format
    )
    with pytest.raises(MediaError, match=rf"{name}: is transparent"):
        probe(source)


def test_a_recording_that_is_only_marked_as_transparent_is_read(tmp_path: Path) -> None:
    """As Chromium marks all."""
    marks = {"alpha_mode": "1"}
    clip = write_video(
        tmp_path / "clip.webm", numbered(2), codec="libvpx", options={}, metadata=marks
    )
    with av.open(str(clip)) as opened:
        assert opened.streams.video[0].metadata["alpha_mode"] == "1"
    assert probe(clip).width_px == 96


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"), [*WITH_ALPHA, ("clip.mkv", "ffv1", "bgr0")]
)
@pytest.mark.parametrize("alpha", [255, 0])
def test_alpha_channels_of_one_value_are_no_transparency(
    tmp_path: Path, name: str, codec: str, pixel_format: str, alpha: int
) -> None:
    """Many programs write an alpha channel although the picture is opaque, or leave the fourth byte
    empty.
    """
    picture = HALF_TRANSPARENT.copy()
    picture[..., 3] = alpha
    source = write_video(tmp_path / name, [picture] * 2, codec=codec, pixel_format=pixel_format)
    assert len(list(read_frames(source))) == 2
