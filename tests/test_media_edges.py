"""Rarer media: rotated, mirrored, odd-sized, anamorphic and 10-bit video, surround sound, unusual file names."""

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from latentsync_trt.errors import MediaError
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import UInt8Array
from tests.clips import numbered, read_audio, rewritten, write_video
from tests.pictures import decoded_planes
from tests.sounds import spoken, write_parts


@pytest.mark.parametrize(
    ("rotation", "expected"),
    [
        ((0, False, False), lambda image: image),
        ((90, False, False), np.rot90),
        ((270, False, False), lambda image: np.rot90(image, 3)),
        ((0, True, False), np.fliplr),
        ((90, True, False), lambda image: np.fliplr(np.rot90(image))),
    ],
)
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p", "yuv444p"])
def test_display_matrices_rotate_and_mirror(
    tmp_path: Path, pixel_format: str, rotation: tuple[int, bool, bool], expected: Callable[[UInt8Array], UInt8Array]
) -> None:
    """4:2:2 becomes 4:4:0 when it is turned."""
    pictures = np.random.default_rng(1).integers(0, 256, (1, 32, 48, 3), np.uint8)
    clip = write_video(tmp_path / "clip.mov", pictures, pixel_format=pixel_format, rotation=rotation)
    ((_, coded),) = decoded_planes(clip)
    (upright,) = read_frames(clip)
    assert upright.planes is not None
    for plane, stored in zip((upright.planes.y, upright.planes.u, upright.planes.v), coded, strict=True):
        assert np.array_equal(plane, expected(stored))
    info = probe(clip)
    assert info.pixel_format == (pixel_format if rotation[0] % 180 == 0 else pixel_format.replace("422", "440"))
    assert (info.width_px, info.height_px) == upright.planes.y.shape[::-1] == upright.rgb.shape[1::-1]


def test_a_slanted_display_matrix_is_refused(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mov", numbered(1), rotation=(30, False, False))
    for read in (probe, lambda path: next(read_frames(path))):
        with pytest.raises(MediaError, match=r"clip\.mov: .* multiple of 90"):
            read(clip)


def surround(path: Path, channels: int) -> Path:
    """A second in plain PCM, which names no speaker positions, with a click at 0.5 s in all channels."""
    return write_parts(path, [(0, spoken(1, 48000, [0.5]))], layout=f"{channels}c")


@pytest.mark.parametrize("channels", [3, 8])
def test_surround_sound_is_encoded_with_all_channels(tmp_path: Path, channels: int) -> None:
    clip, output = write_video(tmp_path / "clip.mp4", numbered(20)), tmp_path / "out.mp4"
    rewritten(clip, output, audio=surround(tmp_path / "a.wav", channels))
    with av.open(str(output)) as container:
        assert container.streams.audio[0].channels == channels
    # All channels carry the click; AAC smears it by less than half of one of its short blocks of 128 samples.
    assert abs(np.abs(read_audio(output)).argmax() / 16000 - 0.5) < 64 / 48000


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
    other = write_video(tmp_path / "other.ts", numbered(2))
    for name, text in (
        ("list.m3u8", f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{other.name}\n#EXT-X-ENDLIST\n"),
        ("list.mp4", f"ffconcat version 1.0\nfile {other.name}\n"),
    ):
        playlist = tmp_path / name
        playlist.write_text(text)
        with pytest.raises(MediaError, match=f"{name}: .*playlist, which names other files"):
            probe(playlist)
