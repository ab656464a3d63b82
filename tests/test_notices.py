"""Notices that decide whether a run is worth its time come before it, once, and are in its report."""

from fractions import Fraction
from pathlib import Path

import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.config import Extend, Length
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.speakers import notices_of_length
from latentsync_trt.types import Progress, VideoInfo
from tests.clips import write_face, write_sound
from tests.small import small_bundle

QUICK = SyncOptions(steps=1, guidance=1.0, fps="25")


def video(duration_s: Fraction | None = None, frames_per_s: Fraction | None = None) -> VideoInfo:
    return VideoInfo(64, 64, duration_s, "yuv420p", False, Fraction(1), frames_per_s=frames_per_s)


@pytest.mark.parametrize(
    ("length", "extend", "video_s", "audio_s", "words"),
    [
        (None, "pingpong", 2, 4, "the picture goes back and forth"),
        ("audio", "loop", 2, 4, "the picture starts again"),
        ("longest", "loop", 4, 2, "the rest is silent"),
        ("audio", "loop", 2, Fraction("2.4"), ""),
        ("audio", "loop", 4, 2, "the picture is cut"),
        ("video", "loop", 4, 2, "the rest is silent"),
        ("video", "loop", 2, 4, "the sound is cut"),
        ("shortest", "loop", 2, 4, ""),
        ("audio", "loop", None, 4, ""),
    ],
)
def test_lengths(length: Length | None, extend: Extend, video_s: float | None, audio_s: float, words: str) -> None:
    info = video(None if video_s is None else Fraction(video_s))
    found = notices_of_length(info, Fraction(audio_s), SyncOptions(length=length, extend=extend))
    assert len(found) == bool(words)
    assert all(words in text and f"the video lasts {float(video_s or 0):g} s" in text for text in found)


@pytest.mark.integration
def test_what_decides_comes_before_the_work_and_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clip of 10 frames at 50 frames/s with longer speech, after a run that failed."""
    lines, prepare = list[str](), Networks.prepare
    monkeypatch.setattr(Networks, "prepare", lambda self, *given: (lines.append("opening"), prepare(self, *given)))
    clip, sound = write_face(tmp_path / "clip.mp4", 10, fps=50), write_sound(tmp_path / "speech.wav", 0.8)
    still = write_face(tmp_path / "still.mp4", 1)

    def stop(_: Progress) -> None:
        raise RuntimeError("stopped")

    with LipSync.from_bundle(small_bundle(), "cpu", on_notice=lines.append) as lip_sync:
        with pytest.raises(RuntimeError, match="stopped"):
            lip_sync.sync(still, sound, tmp_path / "out.mp4", QUICK, on_progress=stop)
        lines.clear()
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", QUICK)
    before = lines[: lines.index("opening")]
    for words in (
        "the built-in model is",
        "the video has 50 frames/s, the output 25",
        "the picture goes back and forth",
    ):
        assert sum(words in line for line in before) == 1
        assert sum(words in notice for notice in report.notices) == 1
    assert tuple(line for line in lines if line != "opening") == report.notices
