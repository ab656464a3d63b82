"""The file that a run writes: frame rate, time base, and first and last stamps of picture and sound."""

from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import pytest
from PIL import Image

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import camera_frames, portrait
from latentsync_trt.types import SyncReport
from tests.clips import copied, write_sound, write_video

NTSC = Fraction(30000, 1001)
FRAMES = 16
VARIABLE_MS = [0, 33, 67, 100, 133, 200, 234, 267, 300, 400, 433, *range(480, 680, 40)]


def film(path: Path, fps: Fraction | int = 25, times: list[int] | None = None) -> Path:
    return write_video(path, islice(camera_frames(Fraction(4)), FRAMES), fps, times=times)


def stamps_s(path: Path) -> list[Fraction]:
    """Of the pictures, and when the last one ends."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        unit_s = stream.time_base or Fraction(0)
        last = frames[-1]
        return [Fraction((frame.pts or 0) * unit_s) for frame in frames] + [((last.pts or 0) + last.duration) * unit_s]


def sync(lip_sync: LipSync, video: Path, speech: Path, output: Path, **options: object) -> SyncReport:
    return lip_sync.sync(video, speech, output, SyncOptions(steps=1, guidance=1.0, **options))  # type: ignore[arg-type]


@pytest.mark.integration
def test_a_variable_rate_is_kept(tmp_path: Path, lip_sync: LipSync) -> None:
    clip = film(tmp_path / "in.mkv", times=VARIABLE_MS)
    sync(lip_sync, clip, write_sound(tmp_path / "speech.wav", 0.68), tmp_path / "out.mp4")
    found = stamps_s(tmp_path / "out.mp4")
    assert [stamp_s * 1000 for stamp_s in found[:-1]] == VARIABLE_MS
    assert found[-1] == Fraction(68, 100)


@pytest.mark.integration
def test_a_picture_speaks(tmp_path: Path, lip_sync: LipSync) -> None:
    source, speech, output = tmp_path / "face.png", write_sound(tmp_path / "speech.wav", 0.64), tmp_path / "out.mp4"
    Image.fromarray(portrait()).save(source)
    report = sync(lip_sync, source, speech, output)
    assert stamps_s(output) == [Fraction(k, 25) for k in range(17)]
    assert report.frames_with_face == FRAMES


@pytest.mark.integration
def test_a_films_own_sound_is_the_speech(tmp_path: Path, lip_sync: LipSync) -> None:
    silent, speech = film(tmp_path / "silent.mp4", NTSC), write_sound(tmp_path / "s.wav", 0.53)
    clip = copied(tmp_path / "in.mov", silent, speech)
    report = sync(lip_sync, clip, clip, tmp_path / "out.mp4")
    found = stamps_s(tmp_path / "out.mp4")
    assert report.frames == FRAMES
    assert found[:-1] == [k / NTSC for k in range(FRAMES)]
    assert abs(audio_duration_s(tmp_path / "out.mp4") - Fraction("0.53")) < Fraction(1, 30)
