"""Rarer media: rotated, mirrored, odd-sized, anamorphic and 10-bit video, surround sound, unusual file names."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media import demo_clip
from latentsync_trt.media.color import coding_of
from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.patching import apply_patch
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import ColorTags, Float64Array, Patch, UInt8Array, YuvPlanes
from tests.clips import HEVC, numbered, open_writer, read_audio, write_sound, write_video

ONE_CODE = 1
"""8-bit arithmetic rounds once; a second rounding may fall on the other side."""


def random_planes(width: int, height: int, color: ColorTags) -> YuvPlanes:
    """Noise in the range of codes whose RGB does not clip in any matrix."""
    rng = np.random.default_rng(3)
    half = (-(-height // 2), -(-width // 2))
    luma = rng.integers(90, 160, (height, width), np.uint8)
    return YuvPlanes(luma, rng.integers(110, 146, half, np.uint8), rng.integers(110, 146, half, np.uint8), color)


def rgb_by_formula(planes: YuvPlanes) -> Float64Array:
    """R'G'B' of BT.601/709/2020's defining equations in float64, chroma repeated over its 2×2 pixels."""
    height, width = planes.y.shape
    coding = coding_of(planes.color, width, height)
    luma = (planes.y - coding.luma_offset) / coding.luma_scale
    blue, red = (
        ((plane.astype(np.float64) - 128) / coding.chroma_scale).repeat(2, 0).repeat(2, 1)[:height, :width]
        for plane in (planes.u, planes.v)
    )
    r = luma + 2 * (1 - coding.kr) * red
    b = luma + 2 * (1 - coding.kb) * blue
    g = (luma - coding.kr * r - coding.kb * b) / (1 - coding.kr - coding.kb)
    return 255 * np.stack([r, g, b], -1)


@pytest.mark.parametrize("size", [(64, 48), (63, 47)])
@pytest.mark.parametrize(
    ("matrix", "full_range"), [(1, False), (5, True), (6, None), (7, False), (9, False), (2, None)]
)
def test_lazy_rgb_matches_the_formula(size: tuple[int, int], matrix: int, full_range: bool | None) -> None:
    planes = random_planes(*size, ColorTags(1, 1, matrix, full_range))
    rgb = np.asarray(LazyRgb(planes))
    assert np.abs(rgb - rgb_by_formula(planes)).max() <= ONE_CODE
    back = apply_patch(planes, Patch(0, 0, rgb, np.ones(planes.y.shape, np.bool_)))
    for name in ("y", "u", "v"):
        assert np.abs(getattr(back, name).astype(int) - getattr(planes, name)).max() <= ONE_CODE


@pytest.mark.parametrize(
    ("rotation", "expected"),
    [
        ((0, False, False), lambda image: image),
        ((90, False, False), np.rot90),
        ((180, False, False), lambda image: np.rot90(image, 2)),
        ((270, False, False), lambda image: np.rot90(image, 3)),
        ((0, True, False), np.fliplr),
        ((0, False, True), np.flipud),
        ((90, True, False), lambda image: np.fliplr(np.rot90(image))),
        ((270, True, False), lambda image: np.fliplr(np.rot90(image, 3))),
    ],
)
def test_display_matrices_rotate_and_mirror(
    tmp_path: Path, rotation: tuple[int, bool, bool], expected: Callable[[UInt8Array], UInt8Array]
) -> None:
    clip = tmp_path / "clip.mov"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "0", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.set_display_rotation(*rotation)
        noise = np.random.default_rng(1).integers(0, 256, (32, 48, 3), np.uint8)
        frame = av.VideoFrame.from_ndarray(noise, format="rgb24").reformat(format="yuv420p")
        coded = frame.to_ndarray()[:32].copy()
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    (upright,) = read_frames(clip)
    assert upright.planes is not None
    assert np.array_equal(upright.planes.y, expected(coded))
    info = probe(clip)
    assert (info.width_px, info.height_px) == upright.planes.y.shape[::-1] == upright.rgb.shape[1::-1]


def test_a_slanted_display_matrix_is_refused(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mov"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.set_display_rotation(30)
        container.mux(stream.encode(av.VideoFrame(48, 32, "yuv420p")))
        container.mux(stream.encode(None))
    for read in (probe, lambda path: next(read_frames(path))):
        with pytest.raises(MediaError, match=r"clip\.mov: .* multiple of 90"):
            read(clip)


@pytest.mark.parametrize(("codec", "size"), [("ffv1", (65, 97)), ("libvpx-vp9", (65, 97)), ("libx264", (34, 102))])
def test_planes_with_padding_are_kept_to_the_byte(tmp_path: Path, codec: str, size: tuple[int, int]) -> None:
    """Lines of decoded pictures are longer than the picture, and chroma has half of an odd side, rounded up."""
    noise = np.random.default_rng(9).integers(0, 256, (*size, 3), np.uint8)
    clip = write_video(tmp_path / "clip.mkv", [noise], codec=codec, options={"threads": "1"})
    with av.open(str(clip)) as container:
        (decoded_frame,) = container.decode(video=0)
    (frame,) = read_frames(clip)
    assert frame.planes is not None
    assert frame.planes.y.shape == size
    for plane, found in zip(decoded_frame.planes, (frame.planes.y, frame.planes.u, frame.planes.v), strict=True):
        assert found.shape == (plane.height, plane.width)
        assert plane.line_size > plane.width
        for row, line in enumerate(found):
            assert line.tobytes() == bytes(plane)[row * plane.line_size :][: plane.width]


def test_lossless_output_is_exact_at_odd_sizes(tmp_path: Path) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (3, 33, 47, 3), np.uint8)
    clip = write_video(tmp_path / "clip.mkv", noise, codec="ffv1", pixel_format="bgr0", options={})
    with open_writer(tmp_path / "out.mkv", probe(clip), lossless=True) as writer:
        for frame in read_frames(clip):
            assert frame.planes is None
            assert np.array_equal(frame.rgb, noise[frame.index])
            writer.write(frame)
    found = [frame.rgb for frame in read_frames(tmp_path / "out.mkv")]
    assert np.array_equal(found, noise)


def test_pixel_aspect_is_kept_and_losses_are_reported(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mkv", numbered(3), codec="libx265", pixel_format="yuv420p10le", options=HEVC)
    info = replace(probe(clip), sample_aspect_ratio=Fraction(4, 3))
    with open_writer(tmp_path / "out.mp4", info, audio=write_sound(tmp_path / "a.wav", 0.2)) as writer:
        for frame in read_frames(clip):
            writer.write(frame)
    assert probe(tmp_path / "out.mp4").sample_aspect_ratio == Fraction(4, 3)
    depth, sound = writer.notices
    assert "10 bits" in depth
    assert "AAC" in sound


def surround(path: Path, channels: int) -> Path:
    """A second of silence in plain PCM, which names no speaker positions, with a click at 0.5 s in all channels."""
    samples = np.zeros((48000, channels), np.int16)
    samples[24000:24048] = 29000
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=48000, layout=f"{channels}c")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout=f"{channels}c")
        frame.sample_rate = 48000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("channels", [3, 4, 7, 8])
def test_surround_sound_is_encoded_with_all_channels(tmp_path: Path, channels: int) -> None:
    clip, output = write_video(tmp_path / "clip.mp4", numbered(20)), tmp_path / "out.mp4"
    with open_writer(output, probe(clip), audio=surround(tmp_path / "a.wav", channels)) as writer:
        for frame in read_frames(clip):
            writer.write(frame)
    with av.open(str(output)) as container:
        assert container.streams.audio[0].channels == channels
    # All channels carry the click; AAC smears it by less than half of one of its short blocks of 128 samples.
    assert abs(np.abs(read_audio(output)).argmax() / 16000 - 0.5) < 64 / 48000


def test_more_channels_than_aac_has_are_refused(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", numbered(2))
    sound = surround(tmp_path / "a.wav", 10)
    with (
        pytest.raises(MediaError, match="10 channels"),
        open_writer(tmp_path / "o.mp4", probe(clip), audio=sound) as out,
    ):
        for frame in read_frames(clip):
            out.write(frame)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.wav", "clip.mp4"]


def test_stereo_is_mixed_to_its_mean(tmp_path: Path) -> None:
    samples = np.random.default_rng(5).integers(-30000, 30000, (4000, 2), np.int16)
    with av.open(str(tmp_path / "a.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=16000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="stereo")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    mixed = read_audio(tmp_path / "a.wav")
    assert np.allclose(mixed, samples.mean(axis=1) / 32768, atol=np.finfo(np.float32).eps)


def test_file_names_are_never_read_as_protocols_or_playlists(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", numbered(2))
    odd = clip.rename(tmp_path / "concat:a|b %d.mp4")
    assert probe(odd).width_px == 96
    playlist = tmp_path / "list.mp4"
    playlist.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(MediaError, match=r"list\.mp4"):
        probe(playlist)


def test_the_demo_clip_is_found_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV's `imread` takes names in ASCII only, on Windows: like this stand-in."""

    def imread_of_windows(name: str, *_: int) -> UInt8Array | None:
        return cv2.imdecode(np.fromfile(name, np.uint8), cv2.IMREAD_COLOR) if name.isascii() else None

    moved = shutil.copy(demo_clip._PORTRAIT, tmp_path / "Jürgen.jpg")
    monkeypatch.setattr(demo_clip, "_PORTRAIT", moved)
    monkeypatch.setattr(cv2, "imread", imread_of_windows)
    assert demo_clip.portrait().shape[2] == 3
    for spoil in (lambda: moved.write_bytes(b"no picture"), moved.unlink):
        spoil()
        with pytest.raises(InputError, match=r"Jürgen\.jpg: missing or damaged; install"):
            demo_clip.portrait()
