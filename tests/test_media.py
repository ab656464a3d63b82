"""Media in and out: exact times, unchanged bytes, synchronous sound."""

import gc
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from latentsync_trt.errors import MediaError
from latentsync_trt.media.color import planes_of
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import ColorTags
from tests.clips import (
    click_times,
    decoded,
    frame_at,
    number_of,
    numbered,
    open_writer,
    read_audio,
    rewritten,
    write_sound,
    write_video,
)

SOUND_IN_TIME_S = 0.011
"""Allowed shift of a click: AAC smears it over a quarter of its 43 ms blocks; a lost priming would cost 20 to 64 ms."""

RGB_ROUND_TRIP = 3
"""Largest change of an 8-bit RGB level by going to 4:2:0 and back where colors are flat."""


def numbers(path: Path) -> list[int]:
    return [number_of(frame.rgb) for frame in read_frames(path)]


def test_decoded_frames_are_freed_without_garbage_collection(tmp_path: Path) -> None:
    size = 98, 66  # of no other clip, as other threads may still hold frames

    def frames_alive() -> int:
        # Not `isinstance`: it asks each object for its `__class__`, and PyTorch has some that answer with a warning.
        frames = [item for item in gc.get_objects() if type(item) is av.VideoFrame]
        return sum((frame.width, frame.height) == size for frame in frames)

    clip = write_video(tmp_path / "clip.mp4", numbered(20, size[1], size[0]))
    gc.collect()
    assert frames_alive() == 0
    gc.disable()
    try:
        assert len(numbers(clip)) == 20
        assert frames_alive() <= 1  # the first one, whose side data were read
    finally:
        gc.enable()


def test_decoder_planes_are_kept_to_the_byte(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (5, 48, 80, 3), np.uint8)
    clip = write_video(tmp_path / "clip.mp4", noise)
    with av.open(str(clip)) as container:
        planes = [frame.to_ndarray() for frame in container.decode(video=0)]  # (H · 3/2, W), Y then U then V
    for frame, expected in zip(read_frames(clip), planes, strict=True):
        assert frame.planes is not None
        assert np.array_equal(frame.planes.y, expected[:48])
        packed = np.concatenate([frame.planes.u.reshape(-1), frame.planes.v.reshape(-1)])
        assert np.array_equal(packed, expected[48:].reshape(-1))


def test_a_picture_of_odd_size_grows_by_its_edge(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mkv", numbered(3, 65, 97), codec="ffv1", pixel_format="bgr0", options={})
    info = probe(clip)
    assert (info.width_px, info.height_px) == (97, 65)
    with open_writer(tmp_path / "out.mp4", info) as writer:
        for frame in read_frames(clip):
            writer.write(frame)
    assert decoded(tmp_path / "out.mp4")[0].shape == (66, 98, 3)
    assert "97×65 to 98×66" in writer.notices[0]


@pytest.mark.parametrize("full_range", [True, False])
@pytest.mark.parametrize("matrix", [1, 5, 9])
def test_colors_survive_conversion_to_yuv_and_back(tmp_path: Path, matrix: int, full_range: bool) -> None:
    color = ColorTags(1, 1, matrix, full_range=full_range)
    rgb = np.repeat(np.repeat(np.random.default_rng(2).integers(16, 240, (4, 6, 3), np.uint8), 16, 0), 16, 1)
    frame = frame_at(0, rgb, planes_of(rgb, color))
    with open_writer(tmp_path / "out.mkv", replace(picture_info(96, 64, rgb=False), color=color), crf=0) as writer:
        writer.write(frame)
    (back,) = read_frames(tmp_path / "out.mkv")
    inner = np.abs(back.rgb.astype(int) - rgb).reshape(4, 16, 6, 16, 3)[:, 4:12, :, 4:12]
    assert inner.max() <= RGB_ROUND_TRIP


@pytest.mark.parametrize(
    ("name", "codec", "rate_hz", "layout", "container", "kept"),
    [
        ("a.wav", "pcm_s16le", 16000, "mono", "mp4", "aac"),
        ("a.wav", "pcm_s16le", 96000, "5.1", "mp4", "aac"),
        ("a.wav", "pcm_s16le", 44100, "stereo", "mov", "pcm_s16le"),
        ("a.flac", "flac", 48000, "stereo", "mp4", "aac"),
        ("a.ogg", "libopus", 48000, "stereo", "mkv", "opus"),
        ("a.mp3", "libmp3lame", 44100, "stereo", "mov", "mp3"),
    ],
)
def test_sound_keeps_its_time_rate_and_channels(
    tmp_path: Path, name: str, codec: str, rate_hz: int, layout: str, container: str, kept: str
) -> None:
    clicks = (0.2, 1.0, 1.7)
    sound = write_sound(tmp_path / name, 2.2, rate_hz=rate_hz, layout=layout, codec=codec, clicks_s=clicks)
    clip = write_video(tmp_path / "clip.mp4", numbered(50))
    output = tmp_path / f"out.{container}"
    rewritten(clip, output, audio=sound)
    with av.open(str(output)) as opened:
        stream = opened.streams.audio[0]
        assert stream.codec_context.codec.canonical_name == kept
        assert stream.codec_context.sample_rate == rate_hz
        assert len(stream.layout.channels) == {"mono": 1, "stereo": 2, "5.1": 6}[layout]
        assert 1.9 < float(opened.duration / av.time_base) < 2.1  # the video's 2 s
        start_s = float(next(opened.decode(video=0)).time)
    # Synchronous with the picture, as in the network's input: some files delay their sound by their encoder's priming.
    loud = np.flatnonzero(np.abs(read_audio(sound)) > 0.4) / 16000
    clicks_read_s = loud[np.diff(loud, prepend=-1) > 0.1]
    assert len(clicks_read_s) == len(clicks)
    assert np.allclose(np.array(click_times(output)) - start_s, clicks_read_s, atol=SOUND_IN_TIME_S)


def test_a_truncated_video_is_an_error(tmp_path: Path) -> None:
    clip = write_video(
        tmp_path / "clip.mp4",
        np.random.default_rng(4).integers(0, 256, (50, 64, 96, 3), np.uint8),
        options={"crf": "20"},
    )
    data = clip.read_bytes()
    moved = tmp_path / "fast.mp4"
    with av.open(str(clip)) as source, av.open(str(moved), "w", options={"movflags": "+faststart"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    moved.write_bytes(moved.read_bytes()[: len(data) // 2])
    with pytest.raises(MediaError, match=r"fast\.mp4: is cut off"):
        list(read_frames(moved))
