"""Media in and out: exact times, unchanged bytes, synchronous sound."""

import gc
from pathlib import Path

import av
import numpy as np
import pytest

from latentsync_trt.errors import MediaError
from latentsync_trt.media.reader import read_frames
from tests.clips import (
    click_times,
    number_of,
    numbered,
    read_audio,
    rewritten,
    write_sound,
    write_video,
)

SOUND_IN_TIME_S = 0.011
"""Allowed shift of a click: AAC smears it over a quarter of its 43 ms blocks; a lost priming would cost 20 to 64 ms."""


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
