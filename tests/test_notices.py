"""Notices that decide whether a run is worth its time come before it, once, and are in its report."""

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.config import Extend, Length
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.timeline import notices_of_length, notices_of_rate
from latentsync_trt.types import Progress, SyncReport, VideoInfo
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


@pytest.mark.parametrize(
    ("rate", "shown"), [(30, "30"), (Fraction(30000, 1001), "29.97"), (50, "50"), (25, ""), (None, "")]
)
def test_frame_rates(rate: Fraction | None, shown: str) -> None:
    info = video(frames_per_s=None if rate is None else Fraction(rate))
    assert notices_of_rate(info, SyncOptions()) == []
    found = notices_of_rate(info, SyncOptions(fps="25"))
    assert found == [f"the video has {shown} frames/s, the output 25 (--fps)"] * bool(shown)


@dataclass
class Log:
    """What a run said and did, in order."""

    lines: list[str] = field(default_factory=list)

    def on_progress(self, progress: Progress) -> None:
        if progress.stage == "lip-sync":
            self.lines.append("written")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Log, SyncReport, SyncReport]:
    """Two runs of a clip of 10 frames at 50 frames/s with longer speech; log and report of the first, and a report."""
    folder, log = tmp_path_factory.mktemp("run"), Log()
    clip, sound = write_face(folder / "clip.mp4", 10, fps=50), write_sound(folder / "speech.wav", 0.8)
    with pytest.MonkeyPatch.context() as patch:
        prepare = Networks.prepare
        patch.setattr(Networks, "prepare", lambda self, *given: (log.lines.append("opening"), prepare(self, *given)))
        with LipSync.from_bundle(small_bundle(), "cpu", on_notice=log.lines.append) as lip_sync:
            first, second = (
                lip_sync.sync(clip, sound, folder / "out.mp4", QUICK, on_progress=log.on_progress) for _ in range(2)
            )
    return log, first, second


@pytest.mark.integration
def test_what_decides_comes_before_the_work(run: tuple[Log, SyncReport, SyncReport]) -> None:
    log, report, _ = run
    before = log.lines[: log.lines.index("opening")]
    for words in (
        "the built-in model is",
        "the video has 50 frames/s, the output 25",
        "the picture goes back and forth",
    ):
        assert sum(words in line for line in before) == 1
        assert sum(words in notice for notice in report.notices) == 1


@pytest.mark.integration
def test_a_report_has_all_notices_of_its_run_and_no_other(run: tuple[Log, SyncReport, SyncReport]) -> None:
    log, first, second = run
    assert first.notices == second.notices
    assert tuple(line for line in log.lines if line not in ("opening", "written")) == first.notices + second.notices


@pytest.mark.integration
def test_notices_of_a_failed_run_are_not_the_next_one_s(tmp_path: Path) -> None:
    short, clip = write_face(tmp_path / "short.mp4", 3), write_face(tmp_path / "clip.mp4", 20)
    sound = write_sound(tmp_path / "speech.wav", 0.8)

    def stop(_: Progress) -> None:
        raise RuntimeError("stopped")

    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync:
        with pytest.raises(RuntimeError, match="stopped"):
            lip_sync.sync(short, sound, tmp_path / "out.mp4", QUICK, on_progress=stop)
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", QUICK)
    assert not any("goes back and forth" in notice for notice in report.notices)
