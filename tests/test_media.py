"""Media in and out: exact times, unchanged bytes, synchronous sound, rotated and odd pictures,
unusual file names.
"""

import gc
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

from latentsync_trt.errors import MediaError
from latentsync_trt.media.audio import sound_blocks
from latentsync_trt.media.color import planes_from_rgb
from latentsync_trt.media.mixer import Mixer, channel_shares
from latentsync_trt.media.pictures import LazyRgb, forget_on_disk, keep_on_disk, picture_info
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.timing import Timed
from latentsync_trt.types import Frame, UInt8Array
from tests.clips import (
    click_times,
    copied,
    number_of,
    numbered,
    read_audio,
    rewritten,
    write_sound,
    write_video,
)
from tests.pictures import decoded_planes
from tests.sounds import write_samples

SOUND_IN_TIME_S = 0.011
"""Allowed shift of a click: AAC smears it over a quarter of its 43 ms blocks; a lost priming would
cost 20 to 64 ms.
"""


def test_decoded_frames_are_freed_without_garbage_collection(tmp_path: Path) -> None:
    size = 98, 66  # of no other clip, as other threads may still hold frames

    def frames_alive() -> int:
        # Not `isinstance`: it asks each object for its `__class__`, and PyTorch has some that
        # answer with a warning.
        frames = [item for item in gc.get_objects() if type(item) is av.VideoFrame]
        return sum((frame.width, frame.height) == size for frame in frames)

    clip = write_video(tmp_path / "clip.mp4", numbered(20, size[1], size[0]))
    gc.collect()
    assert frames_alive() == 0
    gc.disable()
    try:
        assert [number_of(frame.rgb) for frame in read_frames(clip)] == [*range(20)]
        assert frames_alive() <= 1  # the first one, whose side data were read
    finally:
        gc.enable()


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le"])
def test_pictures_on_disk_are_the_same(tmp_path: Path, pixel_format: str) -> None:
    clip = write_video(
        tmp_path / "clip.mkv", numbered(3, 98, 66), codec="ffv1", pixel_format=pixel_format
    )
    folder = tmp_path / "out"
    folder.mkdir()
    kept = [*read_frames(clip, store=partial(keep_on_disk, folder=folder))]
    for one, other in zip(kept, read_frames(clip), strict=True):
        assert one.planes is not None
        assert other.planes is not None
        for name in ("y", "u", "v", "color", "bits"):
            assert np.array_equal(getattr(one.planes, name), getattr(other.planes, name))
        for _ in range(2):
            assert np.array_equal(one.rgb, other.rgb)
            forget_on_disk(one)
    assert not [*folder.iterdir()] or os.name == "nt"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is in memory of files")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts pages of files apart")
def test_pictures_on_disk_take_no_memory_while_they_wait(tmp_path: Path) -> None:
    planes = keep_on_disk(
        planes_from_rgb(
            np.zeros((4000, 4000, 3), np.uint8), picture_info(4000, 4000, rgb=True).color
        ),
        tmp_path,
    )
    frame = Frame(0, Fraction(0), Fraction(1), Fraction(0), LazyRgb(planes), planes)
    before_bytes = psutil.Process().memory_info().shared
    assert not frame.rgb.any()
    assert psutil.Process().memory_info().shared > before_bytes + 40e6
    forget_on_disk(frame)
    assert psutil.Process().memory_info().shared < before_bytes + 10e6


@pytest.mark.parametrize(
    ("name", "codec", "rate_hz", "layout", "container", "kept"),
    [
        ("a.wav", "pcm_s16le", 96000, "5.1", "mp4", "aac"),
        ("a.ogg", "libopus", 48000, "stereo", "mkv", "opus"),
        ("a.mp3", "libmp3lame", 44100, "stereo", "mov", "mp3"),
    ],
)
def test_sound_keeps_its_time_rate_and_channels(
    tmp_path: Path, name: str, codec: str, rate_hz: int, layout: str, container: str, kept: str
) -> None:
    clicks = (0.2, 1.0, 1.7)
    sound = write_sound(
        tmp_path / name, 2.2, rate_hz=rate_hz, layout=layout, codec=codec, clicks_s=clicks
    )
    clip = write_video(tmp_path / "clip.mp4", numbered(50))
    output = tmp_path / f"out.{container}"
    rewritten(clip, output, audio=sound)
    with av.open(str(output)) as opened:
        stream = opened.streams.audio[0]
        assert stream.codec_context.codec.canonical_name == kept
        assert stream.codec_context.sample_rate == rate_hz
        assert stream.layout.name == layout
        assert 1.9 < float(opened.duration / av.time_base) < 2.1  # the video's 2 s
        start_s = float(next(opened.decode(video=0)).time)
    # Synchronous with the picture, as in the network's input: some files delay their sound by their
    # encoder's priming.
    loud = np.flatnonzero(np.abs(read_audio(sound)) > 0.4) / 16000
    clicks_read_s = loud[np.diff(loud, prepend=-1) > 0.1]
    assert len(clicks_read_s) == len(clicks)
    assert np.allclose(np.array(click_times(output)) - start_s, clicks_read_s, atol=SOUND_IN_TIME_S)


def test_a_truncated_video_is_an_error(tmp_path: Path) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (50, 64, 96, 3), np.uint8)
    clip = copied(
        tmp_path / "fast.mp4",
        write_video(tmp_path / "clip.mp4", noise),
        options={"movflags": "+faststart"},
    )
    data = clip.read_bytes()
    clip.write_bytes(data[: len(data) // 2])
    with pytest.raises(MediaError, match=r"fast\.mp4: is cut off"):
        list(read_frames(clip))


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
    tmp_path: Path,
    pixel_format: str,
    rotation: tuple[int, bool, bool],
    expected: Callable[[UInt8Array], UInt8Array],
) -> None:
    """4:2:2 becomes 4:4:0 when it is turned."""
    pictures = np.random.default_rng(1).integers(0, 256, (1, 32, 48, 3), np.uint8)
    clip = write_video(
        tmp_path / "clip.mov", pictures, pixel_format=pixel_format, rotation=rotation
    )
    ((_, coded),) = decoded_planes(clip)
    (upright,) = read_frames(clip)
    assert upright.planes is not None
    for plane, stored in zip(
        (upright.planes.y, upright.planes.u, upright.planes.v), coded, strict=True
    ):
        assert np.array_equal(plane, expected(stored))
    info = probe(clip)
    assert info.pixel_format == (
        pixel_format if rotation[0] % 180 == 0 else pixel_format.replace("422", "440")
    )
    assert (
        (info.width_px, info.height_px) == upright.planes.y.shape[::-1] == upright.rgb.shape[1::-1]
    )


@pytest.mark.parametrize("right_only", [False, True])
def test_stereo_is_mixed_to_its_mean(tmp_path: Path, right_only: bool) -> None:
    samples = np.random.default_rng(5).uniform(-0.9, 0.9, (4000, 2)).astype(np.float32)
    samples[:, 0] *= not right_only
    mixed = read_audio(write_samples(tmp_path / "a.wav", samples, 16_000))
    assert np.allclose(mixed, samples.mean(axis=1), atol=2 / 32768)


@pytest.mark.parametrize("right", [-1, -0.75, -1.3])
def test_of_channels_that_cancel_each_other_out_the_louder_one_is_heard(
    tmp_path: Path, right: float
) -> None:
    """Left and right of opposite phase, also where they are not from the start."""
    left = np.random.default_rng(6).normal(0, 0.1, 64_000).astype(np.float32)
    louder = right * left if right < -1 else left
    path = tmp_path / "a.wav"
    same = np.arange(64_000) < 32_000
    mixed = read_audio(write_samples(path, np.stack([left, right * left], axis=1), 16_000))
    assert np.allclose(mixed, louder, atol=1e-4)
    mixed = read_audio(
        write_samples(path, np.stack([left, np.where(same, left, right * left)], axis=1), 16_000)
    )
    assert np.allclose(mixed[same], left[same], atol=1e-4)
    assert np.allclose(mixed[56_000:], louder[56_000:], atol=1e-4)


@pytest.mark.parametrize("layout", ["3 channels", "6 channels", "5.1", "7.1", "FC+LFE", "FL+LFE"])
def test_speech_in_any_channel_is_heard(tmp_path: Path, layout: str) -> None:
    """Also in one that players leave out, as long as no other has sound."""
    speech = np.random.default_rng(6).normal(0, 0.1, 16_000).astype(np.float32)
    count = av.AudioLayout(layout).nb_channels
    for channel in range(count):
        samples = np.zeros((16_000, count), np.float32)
        samples[:, channel] = speech
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), "flt", layout)
        frame.sample_rate = 16_000
        (mixed,) = sound_blocks(
            tmp_path, [Timed(Fraction(0), Fraction(1), frame)], Mixer("mono", 16_000)
        )
        assert np.corrcoef(mixed[:, 0], speech)[0, 1] > 0.999
        assert mixed.std() > 0.1 * speech.std()


def test_low_frequencies_are_no_speech_where_other_channels_have_sound() -> None:
    mixer = Mixer("mono", 16_000)
    rng = np.random.default_rng(6)
    blocks = rng.normal(0, 0.1, (2, 16_000, 6)).astype(np.float32)
    # at first only the low-frequency channel
    blocks[0, :, :3] = 0
    blocks[1, :, :2] = 0
    blocks[:, :, 4:] = 0
    first, second = (mixer.mix(block, "5.1")[:, 0] for block in blocks)
    assert np.allclose(first, blocks[0, :, 3])
    assert np.abs(np.corrcoef(second[8_000:], blocks[1, 8_000:, 3])[0, 1]) < 0.7
    assert mixer.low_s == 1


@pytest.mark.parametrize("layout", ["BFC+FC", "WL+WR+FC", "22.2", "5.1.4"])
def test_places_that_swresample_does_not_mix_are_heard(layout: str) -> None:
    shares = channel_shares(layout, "mono")[:, 0]
    names = [channel.name for channel in av.AudioLayout(layout).channels]
    assert all(share > 0 for share, name in zip(shares, names, strict=True) if name != "LFE")
    assert np.isclose(shares.sum(), 1)


@pytest.mark.parametrize("default", [0, 1, None])
def test_the_picture_is_the_stream_that_is_marked_as_default(
    tmp_path: Path, default: int | None
) -> None:
    """As players show it; some cameras put a small preview first."""
    preview = write_video(
        tmp_path / "preview.mkv", numbered(5, 32, 48), 5, codec="mjpeg", pixel_format="yuvj420p"
    )
    clip = write_video(tmp_path / "clip.mkv", numbered(10))
    both = copied(tmp_path / "both.mkv", preview, clip, default=default)
    assert (probe(both).width_px, len(list(read_frames(both)))) == (
        (96, 10) if default == 1 else (48, 25)
    )


def test_file_names_are_never_read_as_protocols_or_playlists(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", numbered(2))
    odd = clip.rename(tmp_path / "concat:a|b %d.mp4")
    assert probe(odd).width_px == 96
    other = write_video(tmp_path / "other.ts", numbered(2))
    for name, text in (
        (
            "list.m3u8",
            f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{other.name}\n#EXT-X-ENDLIST\n",
        ),
        ("list.mp4", f"ffconcat version 1.0\nfile {other.name}\n"),
    ):
        playlist = tmp_path / name
        playlist.write_text(text)
        with pytest.raises(MediaError, match=f"{name}: .*playlist"):
            probe(playlist)


def test_pixels_that_change_their_shape_are_told(tmp_path: Path) -> None:
    """In a file of raw H.264, in which each stream states the shape of its own pixels."""
    square = write_video(tmp_path / "square.h264", numbered(4)).read_bytes()
    wide = write_video(
        tmp_path / "wide.h264", numbered(4), pixel_aspect=Fraction(4, 3)
    ).read_bytes()
    clip = tmp_path / "both.h264"
    clip.write_bytes(square + wide)
    assert {frame.new_aspect for frame in read_frames(clip)} == {None, Fraction(4, 3)}
    clip.write_bytes(square + square)
    assert {frame.new_aspect for frame in read_frames(clip)} == {None}
