"""Errors in every stage of a run, what goes on while networks run, and clips and recordings of a few frames."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt import Helpers, LipSync, SyncOptions
from latentsync_trt.config import Length
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.types import Face, Progress, UInt8Array
from tests.clips import decoded, write_clip, write_face, write_sound

TIMEOUT_S = 600.0
QUICK = SyncOptions(steps=1, guidance=1.0)

pytestmark = pytest.mark.integration

STAGES = {
    "decode": ("latentsync_trt.media.reader", "LazyRgb"),
    "face": ("latentsync_trt.face.tracker", "FaceTracker.update"),
    "audio": ("latentsync_trt.audio.encoder", "SpeechStream.windows"),
    "encode faces": ("latentsync_trt.sync.inpaint", "Inpainter.encode"),
    "denoise": ("latentsync_trt.sync.inpaint", "Inpainter.denoise"),
    "decode faces": ("latentsync_trt.sync.inpaint", "Inpainter.decode"),
    "compose": ("latentsync_trt.sync.compose", "Paster.paste"),
    "encode": ("latentsync_trt.media.writer", "VideoWriter.write"),
    "end of the file": ("latentsync_trt.media.writer", "VideoWriter._finish"),
}
"""A function of each stage."""

IN_CALL = dict.fromkeys(("audio", "encode faces", "denoise", "decode faces", "end of the file"), 1)
"""The call that fails; the third if not listed."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), 20)


@pytest.fixture(scope="module")
def two_seconds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("two_seconds"), 50)


def failing(function: Callable[..., Any], call: int, error: Exception) -> Callable[..., Any]:
    calls = 0

    def wrapper(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return function(*arguments, **options)

    return wrapper


@pytest.mark.parametrize("stage", STAGES)
def test_an_error_in_any_stage_reaches_the_caller(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    module, name = STAGES[stage]
    wanted, before = RuntimeError(f"{stage} failed"), set(threading.enumerate())
    with monkeypatch.context() as patch:
        target = f"{module}.{name}"
        owner, _, attribute = name.rpartition(".")
        holder = __import__(module, fromlist=["_"])
        function = getattr(getattr(holder, owner) if owner else holder, attribute)
        patch.setattr(target, failing(function, IN_CALL.get(stage, 3), wanted))
        with pytest.raises(RuntimeError) as raised:
            lip_sync.sync(*clip, tmp_path / "out.mp4", QUICK)
    assert raised.value is wanted
    kept = {thread for thread in threading.enumerate() if "of painting" in thread.name}  # by `lip_sync`, once begun
    assert set(threading.enumerate()) - kept <= before
    assert list(tmp_path.iterdir()) == []


class HeldSteps:
    """The denoiser's steps, of which the second one waits for `go`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, self.waits, self.go = 0, threading.Event(), threading.Event()
        step = GraphDenoiser.step

        def held(*arguments: Any, **options: Any) -> None:
            self.count += 1
            if self.count == 2:
                self.waits.set()
                assert self.go.wait(TIMEOUT_S)
            step(*arguments, **options)

        patch.setattr(GraphDenoiser, "step", held)


class Watching:
    """A detector that always finds a face at one place; calls `at_40` at its 40th frame."""

    def __init__(self, at_40: Callable[[], object]) -> None:
        self._at_40, self._seen = at_40, 0

    def detect(self, frame: UInt8Array) -> list[Face]:
        self._seen += 1
        if self._seen == 40:
            self._at_40()
        return [Face(np.array([180, 170, 300, 330], np.float32), np.array([[200, 200], [280, 200], [240, 250]]))]


def test_frames_are_prepared_while_networks_run(
    lip_sync: LipSync, two_seconds: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the second window while the first is denoised: networks that wait for frames waste a GPU."""
    steps = HeldSteps(monkeypatch)
    detector, options = Watching(steps.go.set), SyncOptions(steps=2, guidance=1.0)
    assert lip_sync.sync(*two_seconds, tmp_path / "out.mp4", options, helpers=Helpers(detector)).windows == 4


def test_an_error_before_painting_is_told_though_networks_run(
    lip_sync: LipSync, two_seconds: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = HeldSteps(monkeypatch)

    def fail() -> None:
        assert steps.waits.wait(TIMEOUT_S)
        steps.go.set()
        raise RuntimeError("the detector failed")

    with pytest.raises(RuntimeError, match="the detector failed"):
        options, helpers = SyncOptions(steps=20, guidance=1.0), Helpers(Watching(fail))
        lip_sync.sync(*two_seconds, tmp_path / "out.mp4", options, helpers=helpers)
    assert list(tmp_path.iterdir()) == []


def test_a_canceled_clip_ends_within_a_step_and_leaves_nothing(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lip_sync.warm_up(QUICK)
    steps, before = HeldSteps(monkeypatch), set(threading.enumerate())

    def cancel(step: Progress) -> None:
        if step.stage == "painting first frames":
            assert steps.waits.wait(TIMEOUT_S)
            steps.go.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lip_sync.sync(*clip, tmp_path / "out.mp4", SyncOptions(steps=100, guidance=1.0), on_progress=cancel)
    assert steps.count < 20  # of 100
    kept = {thread for thread in threading.enumerate() if "of painting" in thread.name}
    assert set(threading.enumerate()) - kept <= before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("length", "video_frames", "audio_s", "wanted"),
    [("audio", 1, 0.001, 1), ("audio", 1, 0.2, 5), ("video", 3, 0.001, 3)],
)
def test_a_few_frames(
    lip_sync: LipSync, tmp_path: Path, length: Length, video_frames: int, audio_s: float, wanted: int
) -> None:
    video = write_face(tmp_path / "clip.mp4", video_frames)
    sound = write_sound(tmp_path / "sound.wav", audio_s)
    options = SyncOptions(steps=1, guidance=1.0, length=length)
    report = lip_sync.sync(video, sound, tmp_path / "out.mp4", options)
    assert (report.frames, report.frames_with_face, report.windows) == (wanted, wanted, 1)
    assert len(decoded(tmp_path / "out.mp4")) == wanted
