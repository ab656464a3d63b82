"""Errors in stages of a run, and what goes on while networks run."""

import threading
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt import Helpers, LipSync, SyncOptions
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.sync import caller
from latentsync_trt.types import Face, Progress, UInt8Array
from tests.clips import write_clip

TIMEOUT_S = 600.0
MOST_WAIT_S = 20.0
"""In which a caller is asked again, many times."""
QUICK = SyncOptions(steps=1, guidance=1.0)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), 5)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("long"), 38)


class HeldSteps:
    """The denoiser's steps, of which the second one waits for `go`."""

    def __init__(self, step: Callable[..., None]) -> None:
        self.count = 0
        self.waits = threading.Event()
        self.go = threading.Event()
        self._step = step

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.count += 1
        if self.count == 2:
            self.waits.set()
            assert self.go.wait(TIMEOUT_S)
        self._step(*arguments, **options)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> HeldSteps:
    held = HeldSteps(GraphDenoiser.step)
    monkeypatch.setattr(GraphDenoiser, "step", partialmethod(held))
    return held


@pytest.fixture
def left_behind(lip_sync: LipSync, tmp_path: Path) -> Iterator[None]:
    """Afterwards, no thread and no file may be left."""
    lip_sync.warm_up(QUICK)
    before = set(threading.enumerate())
    yield
    # which stay
    of_networks = {thread for thread in threading.enumerate() if "of painting" in thread.name}
    assert set(threading.enumerate()) - of_networks <= before
    assert list(tmp_path.iterdir()) == []


class Watching:
    """A detector that always finds a face at one place; calls `act` at one of its frames."""

    def __init__(self, act: Callable[[], object], at: int = 36) -> None:
        self._act = act
        self._left = at

    def detect(self, frame: UInt8Array) -> list[Face]:
        self._left -= 1
        if self._left == 0:
            self._act()
        return [
            Face(
                np.array([180, 170, 300, 330], np.float32),
                np.array([[200, 200], [280, 200], [240, 250]]),
            )
        ]


def fail(*_: object) -> None:
    raise ZeroDivisionError


class Failing:
    """An enhancer."""

    enhance = fail


@pytest.mark.parametrize(
    "helpers", [Helpers(Watching(fail, 3)), Helpers(enhancer=Failing())], ids=["face", "compose"]
)
@pytest.mark.usefixtures("left_behind")
def test_an_error_in_a_stage_reaches_the_caller(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path, helpers: Helpers
) -> None:
    with pytest.raises(ZeroDivisionError):
        lip_sync.sync(*clip, tmp_path / "out.mp4", QUICK, helpers=helpers)


@pytest.mark.parametrize("stage", ["reading audio", "lip-sync", "finishing"])
@pytest.mark.usefixtures("left_behind")
def test_an_error_in_a_callback_reaches_the_caller(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path, stage: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        lip_sync.sync(
            *clip,
            tmp_path / "out.mp4",
            QUICK,
            on_progress=lambda step: fail() if step.stage == stage else None,
        )


def test_frames_are_prepared_while_networks_run(
    lip_sync: LipSync, long: tuple[Path, Path], tmp_path: Path, steps: HeldSteps
) -> None:
    """Those of the second window while the first is denoised: networks that wait for frames waste a
    GPU.
    """
    detector = Watching(steps.go.set)
    options = SyncOptions(steps=2, guidance=1.0, codec="ffv1")
    assert (
        lip_sync.sync(*long, tmp_path / "out.mkv", options, helpers=Helpers(detector)).windows == 3
    )


@pytest.mark.usefixtures("left_behind")
def test_an_error_before_painting_is_told_though_networks_run(
    lip_sync: LipSync, long: tuple[Path, Path], tmp_path: Path, steps: HeldSteps
) -> None:
    def fail() -> None:
        assert steps.waits.wait(TIMEOUT_S)
        steps.go.set()
        raise RuntimeError("the detector failed")

    with pytest.raises(RuntimeError, match="the detector failed"):
        options = SyncOptions(steps=2, guidance=1.0)
        helpers = Helpers(Watching(fail))
        lip_sync.sync(*long, tmp_path / "out.mp4", options, helpers=helpers)


@pytest.mark.usefixtures("left_behind")
def test_a_canceled_clip_ends_within_a_step(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path, steps: HeldSteps
) -> None:
    def cancel(step: Progress) -> None:
        if step.stage == "painting first frames":
            assert steps.waits.wait(TIMEOUT_S)
            steps.go.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lip_sync.sync(
            *clip, tmp_path / "out.mp4", SyncOptions(steps=100, guidance=1.0), on_progress=cancel
        )
    assert steps.count < 20  # of 100


@pytest.mark.usefixtures("left_behind")
def test_a_clip_of_which_nothing_is_painted_yet_can_be_canceled(
    lip_sync: LipSync, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    """As one of 1000 frames/s, of which hundreds are read before the first window is complete."""
    told = list[Progress]()
    canceled = threading.Event()

    def cancel(step: Progress) -> None:
        told.extend([step] if step.stage == "painting first frames" else [])
        if len(told) == 2:
            canceled.set()
            raise ZeroDivisionError

    held = Watching(lambda: canceled.wait(MOST_WAIT_S), 3)
    with pytest.raises(ZeroDivisionError):
        lip_sync.sync(*clip, tmp_path / "out.mp4", QUICK, helpers=Helpers(held), on_progress=cancel)
    assert told[0] == told[1]


@pytest.mark.usefixtures("left_behind")
def test_a_clip_whose_sound_is_read_can_be_canceled(
    lip_sync: LipSync, long: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "_ASK_S", 0.0)
    told = list[str]()

    def cancel(step: Progress) -> None:
        told.append(step.stage)
        if told.count("reading audio") == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lip_sync.sync(*long, tmp_path / "out.mp4", QUICK, on_progress=cancel)
    assert set(told) == {"reading audio"}
