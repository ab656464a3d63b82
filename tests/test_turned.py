"""Faces on their side or upside down, as in videos with a wrong rotation tag, are no faces, and the run says so."""

from pathlib import Path

import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.geometry import MOST_ROLL_DEG, roll_deg, usable
from latentsync_trt.types import Face, UInt8Array
from tests.clips import write_sound, write_video
from tests.people import first_person

UPSIDE_DOWN = 2
"""Quarter turns."""


def turned(frame: UInt8Array, quarters: int) -> UInt8Array:
    return np.ascontiguousarray(np.rot90(frame, quarters))


def tilted(angle_deg: float, size_px: float = 200.0) -> Face:
    cos, sin = np.cos(np.radians(angle_deg)), np.sin(np.radians(angle_deg))
    points = np.array([[-40, -30], [40, -30], [0, 30]]) @ [[cos, sin], [-sin, cos]] + 300
    box = np.array([300 - size_px / 2, 300 - size_px / 2, 300 + size_px / 2, 300 + size_px / 2], np.float32)
    return Face(box, points.astype(np.float32))


@pytest.mark.parametrize("angle_deg", [-90, -67, 0, 68, 180])
def test_upright_within_the_limit(angle_deg: float) -> None:
    face = tilted(angle_deg)
    assert abs(roll_deg(face)) == pytest.approx(abs(angle_deg), abs=1e-3)
    assert usable(face) is (abs(angle_deg) <= MOST_ROLL_DEG)
    assert usable(face, turned=True) is not usable(face)
    assert not usable(tilted(angle_deg, size_px=24), turned=True)


def test_a_video_upside_down_is_an_error_with_its_cure(lip_sync: LipSync, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "turned.mp4", [turned(frame, UPSIDE_DOWN) for frame in first_person(5)])
    sound = write_sound(tmp_path / "speech.wav", 0.2)
    with pytest.raises(NoFaceError, match=r"5 with one on its side or upside down.*ffmpeg -display_rotation"):
        lip_sync.sync(clip, sound, tmp_path / "out.mp4", SyncOptions(steps=1))
    assert not (tmp_path / "out.mp4").exists()
