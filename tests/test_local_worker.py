"""A worker in a child process: how it is started, stopped, killed and started again."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch import local
from latentsync_trt.batch.local import LocalWorker
from latentsync_trt.batch.tasks import Canceled, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.child import Child, Ended
from latentsync_trt.errors import BundleError, InputError
from latentsync_trt.types import Progress
from tests.clips import decoded, synced, write_clip
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FAST = SyncOptions(preset="fast", steps=2, codec="ffv1")  # libx264 repeats itself only at some widths
FRAMES = 40
posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


@pytest.fixture(scope="module")
def settings() -> WorkerSettings:
    return WorkerSettings(str(small_bundle()), "cpu", threads=1)


@pytest.fixture(scope="module")
def worker(settings: WorkerSettings) -> Iterator[LocalWorker]:
    worker = LocalWorker("cpu", settings)
    worker.start()
    yield worker
    worker.close()


@pytest.fixture
def task(clip: tuple[Path, Path], tmp_path: Path) -> Task:
    return Task("one", str(clip[0]), str(clip[1]), str(tmp_path / "a.mkv"), FAST)


def quiet(_: Progress) -> None:
    """Takes progress."""


def at_first_frame(action: Callable[[], object]) -> Callable[[Progress], None]:
    """Calls `action` once, while the clip is being written."""
    left = [action]

    def report(progress: Progress) -> None:
        if progress.stage == "lip-sync" and left:
            left.pop()()

    return report


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_killed_worker_starts_again(worker: LocalWorker, task: Task, clip: tuple[Path, Path], tmp_path: Path) -> None:
    pid = worker.pid
    assert pid is not None
    assert psutil.Process(pid).environ()["OMP_NUM_THREADS"] == "1"
    with pytest.raises(
        WorkerLost, match=r"^cpu: its process ended with (signal 9 \(SIGKILL\)|exit code \d+): no message$"
    ):
        worker.run(task, at_first_frame(psutil.Process(pid).kill))
    assert not Path(task.output).exists()
    with pytest.raises(WorkerLost):
        worker.run(task, quiet)
    worker.start()
    seen: list[Progress] = []
    done = worker.run(task, seen.append)
    assert (done.report["output"], done.report["frames"]) == (task.output, FRAMES)
    assert {"reading audio", "lip-sync", "finishing"} <= {progress.stage for progress in seen}
    assert names(tmp_path) == ["a.mkv"]
    np.testing.assert_array_equal(decoded(tmp_path / "a.mkv"), synced(clip, tmp_path / "b.mkv", FAST))


def test_canceled_and_failed_clips_leave_the_worker_usable(worker: LocalWorker, task: Task, tmp_path: Path) -> None:
    pid = worker.pid
    worker.cancel(task.id)  # has no effect before it runs
    with pytest.raises(Canceled):
        worker.run(task, at_first_frame(lambda: worker.cancel(task.id)))
    with pytest.raises(TaskError, match="no such file") as failed:
        worker.run(Task("two", str(tmp_path / "none.mp4"), task.audio, task.output), quiet)
    assert failed.value.usage
    assert names(tmp_path) == []

    def fail() -> None:
        raise InputError("of the caller")

    with pytest.raises(InputError, match="of the caller"):
        worker.run(task, at_first_frame(fail))
    assert worker.run(task, quiet).report["frames"] == FRAMES
    assert (worker.pid, names(tmp_path)) == (pid, ["a.mkv"])


def test_closing_ends_a_running_clip(settings: WorkerSettings, task: Task, tmp_path: Path) -> None:
    worker = LocalWorker("cpu", settings)
    worker.start()
    pid = worker.pid
    closing = threading.Thread(target=worker.close)
    with pytest.raises(WorkerLost, match=r"^cpu: was closed$"):
        worker.run(task, at_first_frame(closing.start))
    closing.join()
    assert not psutil.pid_exists(pid or 0)
    assert names(tmp_path) == []
    worker.close()
    with pytest.raises(WorkerLost, match="is closed"):
        worker.start()


@posix
def test_a_terminated_worker_removes_its_files(settings: WorkerSettings, task: Task, tmp_path: Path) -> None:
    worker = LocalWorker("cpu", settings)
    worker.start()

    def stop() -> None:
        os.kill(worker.pid or 0, signal.SIGINT)  # is up to the parent
        os.kill(worker.pid or 0, signal.SIGTERM)

    with pytest.raises(WorkerLost, match="exit code 143"):
        worker.run(task, at_first_frame(stop))
    assert names(tmp_path) == []
    worker.close()


KEEPING = """
from fractions import Fraction
from latentsync_trt.batch.local import work
from latentsync_trt.child import converse
from latentsync_trt.media import parts

parts.PART_S = Fraction(8, 25)
converse(work)
"""


def test_a_worker_ends_with_its_parent_and_keeps_finished_parts(
    settings: WorkerSettings, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "keeping.py").write_text(KEEPING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    with Child("keeping") as child:
        child.send(settings)
        child.send({"run": 1, "task": task})
        parts = tmp_path / ".latentsync-a.mkv" / "parts.json"
        next(event for event in child.events() if parts.exists())
        child._connection.close()  # as the end of the parent does
        assert child.wait() == Ended(1, "")
    assert parts.exists()


def test_settings_that_cannot_work() -> None:
    worker = LocalWorker("cpu", WorkerSettings("nope", "cpu"))
    with pytest.raises(BundleError, match=r"^nope: no bundle there") as missing:
        worker.start()
    assert missing.value.usage
    worker.close()


STARTING = """
import sys
from latentsync_trt.child import converse

def work(orders, emit):
    print("no event")
    emit(notice="building engines")
    sys.exit("no such driver")

converse(work)
"""


def test_a_worker_that_dies_while_it_starts(
    settings: WorkerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starting.py").write_text(STARTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local, "_MODULE", "starting")
    notices: list[str] = []
    worker = LocalWorker("gpu 1", settings, notices.append)
    with pytest.raises(WorkerLost, match=r"^gpu 1: its process ended with exit code 1: no such driver$"):
        worker.start()
    worker.close()
    assert notices == ["gpu 1: building engines"]
