"""The file that a run writes: frame rate, time base, and first and last stamps of picture and
sound.
"""

from fractions import Fraction
from pathlib import Path

import av
import pytest
from PIL import Image

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.media.audio import audio_duration_s
from latentsync_trt.media.demo_clip import portrait
from tests.clips import camera_frames, copied, write_sound, write_video

QUICK = SyncOptions(steps=1, guidance=1.0)
VARIABLE_MS = [0, 33, 120, 160, 200, 240]
"""Few, as each is painted in a window of its own: the copied stream states 1000 frames/s."""


def stamps_s(path: Path) -> list[Fraction]:
    """Of the pictures, and when the last one ends."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        unit_s = stream.time_base or Fraction(0)
        last = frames[-1]
        return [Fraction((frame.pts or 0) * unit_s) for frame in frames] + [
            ((last.pts or 0) + last.duration) * unit_s
        ]


@pytest.mark.integration
def test_a_picture_speaks(tmp_path: Path, lip_sync: LipSync) -> None:
    source = tmp_path / "face.png"
    speech = write_sound(tmp_path / "speech.wav", 0.64)
    output = tmp_path / "out.mp4"
    Image.fromarray(portrait()).save(source)
    report = lip_sync.sync(source, speech, output, QUICK)
    assert stamps_s(output) == [Fraction(k, 25) for k in range(17)]
    assert report.frames_with_face == 16


@pytest.mark.integration
def test_a_films_own_sound_is_the_speech_and_its_variable_rate_is_kept(
    tmp_path: Path, lip_sync: LipSync
) -> None:
    silent = write_video(
        tmp_path / "silent.mkv", camera_frames(Fraction(len(VARIABLE_MS), 25)), times=VARIABLE_MS
    )
    clip = copied(tmp_path / "in.mkv", silent, write_sound(tmp_path / "speech.wav", 0.28))
    report = lip_sync.sync(clip, clip, tmp_path / "out.mp4", QUICK)
    found = stamps_s(tmp_path / "out.mp4")
    assert report.frames == len(VARIABLE_MS)
    assert [stamp_s * 1000 for stamp_s in found[:-1]] == VARIABLE_MS
    assert found[-1] == Fraction(28, 100)
    assert abs(audio_duration_s(tmp_path / "out.mp4") - found[-1]) < Fraction(1, 30)
