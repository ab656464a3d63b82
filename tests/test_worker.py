"""Workers in this process and in a child: paths and URLs, clips that fail, are stopped or killed."""

import importlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions
from latentsync_trt.batch import local, workers
from latentsync_trt.batch.dispatch import Dispatcher, slot_names
from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.tasks import (
    Canceled,
    CanceledEvent,
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    Task,
    TaskError,
    WorkerLost,
    WorkerSettings,
)
from latentsync_trt.batch.worker import Worker
from latentsync_trt.batch.workers import make_workers
from latentsync_trt.errors import BundleError, InferenceError, InputError, OutOfMemory, ProviderUnavailable
from latentsync_trt.media import parts
from latentsync_trt.runtime.providers import gpu, select
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT, Obstacle, Provider
from latentsync_trt.runtime.vae import VaeCodec
from latentsync_trt.types import Progress
from tests.clips import decoded, write_clip, write_sound
from tests.s3 import BUCKET, s3_server
from tests.serving import PATIENCE_S, until
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FAST = SyncOptions(preset="fast", steps=1)
LOSSLESS = replace(FAST, codec="ffv1")
"""libx264 gives the same file again only at some widths."""
FRAMES = 24
GO_ON = threading.Event()
"""Never set."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def worker(scratch: Path) -> Worker:
    return Worker(WorkerSettings(str(small_bundle()), "cpu", scratch=str(scratch)))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_clip(tmp_path_factory.mktemp("clip"), FRAMES)


def task(clip: tuple[Path, Path], output: Path | str, options: SyncOptions = FAST) -> Task:
    return Task("one", str(clip[0]), str(clip[1]), str(output), options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def at(stage: str, done: int, action: Callable[[], object]) -> Callable[[Progress], None]:
    """Calls `action` once, when so much of a stage is done."""
    left = [action]

    def report(progress: Progress) -> None:
        if progress.stage == stage and progress.done >= done and left:
            left.pop()()

    return report


def test_a_task_names_its_own_bundle(clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, opened, from_bundle = small_bundle(), list[str](), LipSync.from_bundle
    other = shutil.copytree(first, tmp_path / "other")

    def noted(path: str, *others: Any, **options: Any) -> LipSync:
        opened.append(str(path))
        return from_bundle(path, *others, **options)

    monkeypatch.setattr(LipSync, "from_bundle", noted)
    worker, stages = Worker(WorkerSettings(str(first), "cpu")), list[str]()
    assert worker.provider == "cpu"
    short = replace(task(clip, tmp_path / "a.mp4"), options=replace(FAST, end=Fraction(1, 2)))
    for bundle in (str(other), str(tmp_path / "none"), None):
        try:
            worker.run(replace(short, bundle=bundle), lambda progress: stages.append(progress.stage), GO_ON)
        except TaskError as error:
            assert "none: no bundle there" in str(error)
    assert opened == [str(first), str(other), str(tmp_path / "none"), str(first)]
    assert stages[0] == "opening networks"


def test_a_clip_that_fails_does_not_change_the_next(worker: Worker, clip: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[Progress] = []
    done = worker.run(task(clip, tmp_path / "a.mkv", LOSSLESS), seen.append, GO_ON)
    assert (done.report["output"], done.report["frames"]) == (str(tmp_path / "a.mkv"), FRAMES)
    assert done.seconds >= done.report["wall_s"] > 0
    assert Progress("lip-sync", FRAMES, FRAMES) in seen
    with pytest.raises(TaskError, match=r"^.*none.mp4: no such file") as missing:
        worker.run(task((tmp_path / "none.mp4", clip[1]), tmp_path / "b.mkv"), lambda _: None, GO_ON)
    with pytest.raises(TaskError, match=r"^.*speech.wav: has no video stream$") as damaged:
        worker.run(task((clip[1], clip[1]), tmp_path / "b.mkv"), lambda _: None, GO_ON)
    assert (missing.value.usage, damaged.value.usage) == (True, False)
    assert names(tmp_path) == ["a.mkv"]
    worker.run(task(clip, tmp_path / "b.mkv", LOSSLESS), lambda _: None, GO_ON)
    np.testing.assert_array_equal(decoded(tmp_path / "a.mkv"), decoded(tmp_path / "b.mkv"))


def test_a_canceled_clip_leaves_nothing(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_S", Fraction(4, 25))  # some are closed before the clip is canceled
    canceled = threading.Event()
    with pytest.raises(Canceled):
        worker.run(task(clip, tmp_path / "a.mp4"), at("lip-sync", 10, canceled.set), canceled)
    assert names(tmp_path) == []


def test_a_clip_goes_on_where_memory_ran_out(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OutOfMemory("denoise_step on cuda: too little memory")

    monkeypatch.setattr(parts, "PART_S", Fraction(8, 25))
    with pytest.raises(TaskError, match="too little memory"):
        worker.run(task(clip, tmp_path / "a.mp4"), at("lip-sync", 12, fail), GO_ON)
    done = worker.run(task(clip, tmp_path / "a.mp4"), lambda _: None, GO_ON)
    assert "goes on after" in " ".join(done.report["notices"])
    assert names(tmp_path) == ["a.mp4"]


@pytest.mark.slow
def test_a_clip_goes_on_where_its_worker_was_killed(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_S", Fraction(8, 25))
    with pytest.raises(SystemExit):
        worker.run(task(clip, tmp_path / "a.mp4"), at("lip-sync", 12, sys.exit), GO_ON)
    assert names(tmp_path) == [".latentsync-a.mp4"]
    done = worker.run(task(clip, tmp_path / "a.mp4"), lambda _: None, GO_ON)
    assert "goes on after" in " ".join(done.report["notices"])
    assert len(decoded(tmp_path / "a.mp4")) == FRAMES
    assert names(tmp_path) == ["a.mp4"]


def test_a_provider_that_fails_ends_the_worker(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InferenceError("vae_encoder on cuda: illegal memory access")

    monkeypatch.setattr(VaeCodec, "encode_faces", fail)
    with pytest.raises(WorkerLost, match="illegal memory access"):
        worker.run(task(clip, tmp_path / "a.mp4"), lambda _: None, GO_ON)
    assert names(tmp_path) == []
    monkeypatch.setattr(LipSync, "from_bundle", fail)
    with pytest.raises(WorkerLost, match="illegal memory access"):
        Worker(WorkerSettings("demo", "cpu"))


# URLs


@pytest.fixture(scope="module")
def s3(clip: tuple[Path, Path]) -> Iterator[Any]:
    with s3_server() as system:
        for path in clip:
            system.put_file(str(path), f"{BUCKET}/in/{path.name}")
        yield system


def test_all_files_by_url(worker: Worker, s3: Any, scratch: Path, tmp_path: Path) -> None:
    music, bucket = write_sound(tmp_path / "speech.wav", FRAMES / 25, clicks_s=(0.5,)), f"s3://{BUCKET}"
    s3.put_file(str(music), f"{BUCKET}/music/speech.wav")  # of the same name as the speech
    options = replace(FAST, mix=f"{bucket}/music/speech.wav", report=f"{bucket}/out/page.html")
    named = Task("s3", f"{bucket}/in/face.mp4", f"{bucket}/in/speech.wav", f"{bucket}/out/a.mkv", options)
    made = worker.run(named, lambda _: None, GO_ON)
    assert made.report["output"] == f"{bucket}/out/a.mkv"
    assert s3.ls(f"{BUCKET}/out", refresh=True) == [f"{BUCKET}/out/a.mkv", f"{BUCKET}/out/page.html"]
    s3.get_file(f"{BUCKET}/out/a.mkv", str(tmp_path / "a.mkv"))
    assert len(decoded(tmp_path / "a.mkv")) == FRAMES
    assert b"<html" in s3.cat(f"{BUCKET}/out/page.html")
    assert names(scratch) == []


def test_a_canceled_delivery_leaves_nothing(worker: Worker, s3: Any, clip: tuple[Path, Path], scratch: Path) -> None:
    canceled = threading.Event()
    with pytest.raises(Canceled):
        worker.run(task(clip, f"s3://{BUCKET}/canceled/a.mp4"), at("finishing", 0, canceled.set), canceled)
    assert not s3.exists(f"{BUCKET}/canceled")
    assert names(scratch) == []


def test_what_cannot_be_uploaded_is_kept(
    worker: Worker, clip: tuple[Path, Path], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("connection reset")

    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", fail)
    with pytest.raises(TaskError, match=r"^memory://out/a\.mp4: cannot be .*; what is finished is kept") as error:
        worker.run(task(clip, "memory://out/a.mp4"), lambda _: None, GO_ON)
    (kept,) = scratch.iterdir()
    assert str(error.value).endswith(f"{kept}: a.mp4")
    assert len(decoded(kept / "a.mp4")) == FRAMES
    shutil.rmtree(kept)


def test_a_bundle_by_url(s3: Any, engine_cache: Path) -> None:
    s3.put(str(small_bundle()), f"{BUCKET}/bundles/", recursive=True)
    Worker(WorkerSettings(f"s3://{BUCKET}/bundles/{small_bundle().name}", "cpu"))
    assert len(list((engine_cache / "bundles").glob("small_bundle-*/manifest.json"))) == 1


# In a child process


SETTINGS = WorkerSettings(str(small_bundle()), "cpu", threads=1)


@pytest.fixture
def own(clip: tuple[Path, Path], tmp_path: Path) -> Task:
    return task(clip, tmp_path / "a.mkv")


@pytest.fixture
def slow(own: Task) -> Task:
    """Its second window takes long enough to be stopped in it."""
    return replace(own, options=replace(FAST, steps=20))


def test_canceled_and_failed_clips_leave_the_worker_usable(own: Task, slow: Task, tmp_path: Path) -> None:
    worker = WorkerHandle("cpu", SETTINGS)
    worker.start()
    pid = worker.pid
    assert psutil.Process(pid).environ()["OMP_NUM_THREADS"] == "1"
    canceled = threading.Event()
    with pytest.raises(Canceled):
        worker.run(slow, at("lip-sync", 1, canceled.set), canceled)
    with pytest.raises(TaskError, match="no such file") as failed:
        worker.run(Task("two", str(tmp_path / "none.mp4"), own.audio, own.output), lambda _: None, GO_ON)
    assert failed.value.usage
    assert names(tmp_path) == []

    def fail() -> None:
        raise InputError("of the caller")

    with pytest.raises(InputError, match="of the caller"):
        worker.run(slow, at("lip-sync", 1, fail), threading.Event())
    assert worker.run(own, lambda _: None, GO_ON).report["frames"] == FRAMES
    assert (worker.pid, names(tmp_path)) == (pid, ["a.mkv"])
    worker.close()


def test_a_terminated_or_closed_worker_removes_its_files(slow: Task, tmp_path: Path) -> None:
    worker = WorkerHandle("cpu", SETTINGS)
    worker.start()

    def stop() -> None:
        os.kill(worker.pid or 0, signal.SIGINT)  # is up to the parent
        os.kill(worker.pid or 0, signal.SIGTERM)

    if os.name != "nt":
        with pytest.raises(WorkerLost, match="exit code 143"):
            worker.run(slow, at("lip-sync", 1, stop), GO_ON)
        assert names(tmp_path) == []
        worker.start()
    pid = worker.pid
    closing = threading.Thread(target=worker.close)
    with pytest.raises(WorkerLost, match=r"^cpu: was closed$"):
        worker.run(slow, at("lip-sync", 1, closing.start), GO_ON)
    closing.join()
    assert not psutil.pid_exists(pid or 0)
    assert names(tmp_path) == []
    with pytest.raises(WorkerLost, match="is closed"):
        worker.start()


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot stop a process")
def test_a_worker_that_hangs_is_noticed_and_a_cancel_ends_it(slow: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerHandle("cpu", SETTINGS)
    worker.start()
    monkeypatch.setattr(local, "_HUNG_S", 3.0)
    stopped, canceled = worker.pid or 0, threading.Event()

    def cancel_when_noticed() -> None:
        until(lambda: worker.hangs)
        canceled.set()

    canceling = threading.Thread(target=cancel_when_noticed)

    def stop() -> None:
        os.kill(stopped, signal.SIGSTOP)
        canceling.start()

    with pytest.raises(WorkerLost, match="did not answer, or not obey a cancel, for 3 s"):
        worker.run(slow, at("lip-sync", 1, stop), canceled)
    canceling.join()
    assert not worker.hangs and not psutil.pid_exists(stopped)
    monkeypatch.setattr(local, "_HUNG_S", 300.0)
    worker.start()
    worker.close()


def test_clips_longer_than_allowed_end(worker: Worker, own: Task) -> None:
    with pytest.raises(TaskError, match=r"lasts longer than 0\.01 s") as failed:
        worker.run(replace(own, most_s=0.01), lambda _: None, GO_ON)
    assert failed.value.usage


HOLDING = """
from pathlib import Path
from latentsync_trt.batch import local
from latentsync_trt.batch.tasks import Canceled, Done
from latentsync_trt.types import Progress

class Worker:
    provider = "cuda"

    def __init__(self, settings, on_notice):
        on_notice("opens")

    def run(self, task, on_progress, canceled):
        on_progress(Progress("lip-sync", 1, 2))
        held = []
        while not Path(task.output).exists():
            if task.id == "large" and not held and Path(task.output).with_name("grow").exists():
                held.append(b"x" * 800_000_000)
            if canceled.wait(0.01):
                raise Canceled("canceled")
        return Done(0.0, {"frames": 1})

def work(orders, emit):
    local.Worker = Worker
    local.work(orders, emit)
"""
"""A child whose clips end when their output exists; the one named large takes 0.8 GB when "grow" exists."""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerHandle]:
    """A worker of two clips at a time."""
    (tmp_path / "holding.py").write_text(HOLDING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(local, "work", importlib.import_module("holding").work)
    monkeypatch.setattr(workers, "_devices", lambda *_: [(0, "gpu 0")])
    monkeypatch.setattr(workers, "machine_bytes", lambda: 0.75e9)
    (made,) = make_workers(replace(SETTINGS, provider="cuda"))
    assert isinstance(made, WorkerHandle)
    yield made
    made.close()


def test_a_process_syncs_two_clips_and_one_is_canceled(pair: WorkerHandle, tmp_path: Path) -> None:
    begun, canceled, events = threading.Barrier(3), threading.Event(), list[Event]()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Moved):
            threading.Thread(target=begun.wait, args=(PATIENCE_S,)).start()
        elif isinstance(event, CanceledEvent):
            canceled.set()

    dispatcher = Dispatcher([pair], on_event)
    for name in ("one", "two"):
        dispatcher.submit(Task(name, "v", "a", str(tmp_path / name)))
    begun.wait(PATIENCE_S)
    assert dispatcher.cancel("one")
    assert canceled.wait(PATIENCE_S)
    assert not [each for each in events if isinstance(each, Finished)]
    (tmp_path / "two").touch()
    dispatcher.wait()
    dispatcher.close()
    assert sorted(each.worker for each in events if isinstance(each, Started)) == ["gpu 0.1", "gpu 0.2"]
    assert [each.task_id for each in events if isinstance(each, Finished)] == ["two"]
    assert (pair.provider, pair.at_once) == ("cuda", 2)


def test_a_process_that_dies_loses_both_clips_and_both_run_again(pair: WorkerHandle, tmp_path: Path) -> None:
    events, seen = list[Event](), list[int]()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Moved):
            seen.append(pair.pid or 0)
            if len(seen) == 2:
                psutil.Process(pair.pid).kill()
            elif len(seen) == 4:
                for name in ("one", "two"):
                    (tmp_path / name).touch()

    dispatcher = Dispatcher([pair], on_event)
    for name in ("one", "two"):
        dispatcher.submit(Task(name, "v", "a", str(tmp_path / name)))
    dispatcher.wait()
    dispatcher.close()
    assert sorted((each.task_id, each.attempt) for each in events if isinstance(each, Started)) == [
        *[("one", 1), ("one", 2), ("two", 1), ("two", 2)]
    ]
    assert sorted(each.task_id for each in events if isinstance(each, Failed) and each.again) == ["one", "two"]
    assert sorted(each.task_id for each in events if isinstance(each, Finished)) == ["one", "two"]
    assert len(set(seen[:2])) == len(set(seen[2:])) == 1 and seen[0] != seen[2]


def test_of_two_clips_in_a_process_the_one_that_takes_too_much_memory_fails(pair: WorkerHandle, tmp_path: Path) -> None:
    events = list[Event]()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Moved) and len({each.task_id for each in events if isinstance(each, Moved)}) == 2:
            (tmp_path / "grow").touch()
        elif isinstance(event, Failed) and event.again:
            (tmp_path / "small").touch()

    dispatcher = Dispatcher([pair], on_event)
    for name in ("large", "small"):
        dispatcher.submit(Task(name, "v", "a", str(tmp_path / name)))
    dispatcher.wait()
    dispatcher.close()
    lost = {(each.task_id, each.again) for each in events if isinstance(each, Failed)}
    assert lost == {("large", True), ("small", True), ("large", False)}
    assert [each.task_id for each in events if isinstance(each, Finished)] == ["small"]
    (failed,) = (each.message for each in events if isinstance(each, Failed) and not each.again)
    assert "needs more than 0.6 GB of memory, the most for a worker here" in failed


def test_a_gpu_has_a_process_of_two_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    def names_of(*devices: str, count: int | None = None, low_memory: bool = False, most: int = 9) -> list[str]:
        monkeypatch.setattr(workers, "_devices", lambda *_: list(enumerate(devices)))
        settings = replace(SETTINGS, provider="auto", runtime=RuntimeOptions(low_memory=low_memory))
        return [slot for each in make_workers(settings, count, most=most) for slot in slot_names(each)]

    assert names_of("gpu 0", "gpu 1") == ["gpu 0.1", "gpu 0.2", "gpu 1.1", "gpu 1.2"]
    assert names_of("gpu 0", "gpu 1", most=3) == ["gpu 0.1", "gpu 0.2", "gpu 1"]
    assert names_of("gpu 0", "gpu 1", most=2) == names_of("gpu 0", "gpu 1", count=2) == ["gpu 0", "gpu 1"]
    assert names_of("gpu 0", low_memory=True) == ["gpu 0"]
    assert names_of("gpu 0", count=2) == ["gpu 0.1", "gpu 0.2"]
    assert names_of("cpu") == ["cpu"]


@pytest.mark.parametrize(
    ("provider", "device", "broken", "names"),
    [
        ("cuda", "all", (), ["gpu 0", "gpu 1", "gpu 2"]),
        ("auto", "2,0", (), ["gpu 2", "gpu 0"]),
        ("auto", "all", (1,), ["gpu 0", "gpu 2"]),
        ("cuda", "all", (1,), ["gpu 0", "gpu 2"]),
        ("auto", "all", (0, 1, 2), ["cpu"]),
        ("cuda", "all", (0, 1, 2), None),
        ("cpu", "all", (), ["cpu"]),
    ],
)
def test_a_gpu_without_the_provider_is_left_out_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, provider: str, device: str, broken: tuple[int, ...], names: list[str] | None
) -> None:
    def diagnose(provider: Provider, number: int = 0) -> Obstacle | None:
        fails = provider is TENSORRT or (provider is CUDA and number in broken)
        return Obstacle("it is broken", "mend it") if fails else None

    monkeypatch.setattr(gpu, "gpus", lambda: tuple(Gpu(number, "GPU", "9.0", 10**10) for number in range(3)))
    monkeypatch.setattr(select, "diagnose_provider", diagnose)
    settings = replace(SETTINGS, provider=provider, runtime=RuntimeOptions(device=device, low_memory=True))
    notices: list[str] = []
    with pytest.raises(ProviderUnavailable, match="cuda: it is broken") if names is None else nullcontext():
        assert [each.name for each in make_workers(settings, on_notice=notices.append)] == names
    assert [text.partition(" is left out: ")[0] for text in notices] == [f"GPU {number}" for number in broken]
    assert all("it is broken; mend it" in text for text in notices)


def test_a_bundle_is_changed_while_no_clip_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened, holds, go_on = list[str](), threading.Barrier(3), threading.Event()

    def open_bundle(path: str, *_: Any, **__: Any) -> Mock:
        opened.append(path)
        return Mock()

    def hold(_: Worker, item: Task, __: object) -> None:
        if item.id == "held":
            holds.wait(PATIENCE_S)
            assert go_on.wait(PATIENCE_S)
            assert opened == ["usual"]
        raise InputError("ended")

    monkeypatch.setattr(LipSync, "from_bundle", open_bundle)
    monkeypatch.setattr(Worker, "_sync", hold)
    worker, canceled = Worker(WorkerSettings("usual")), threading.Event()
    held = Task("held", "v", "a", str(tmp_path / "a.mp4"))
    other = replace(held, id="other", bundle="other")
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(worker.run, held, lambda _: None, GO_ON) for _ in range(2)]
        holds.wait(PATIENCE_S)
        stopped = threads.submit(worker.run, other, lambda _: None, canceled)
        canceled.set()
        with pytest.raises(Canceled):  # while it waits
            stopped.result(PATIENCE_S)
        runs.append(threads.submit(worker.run, other, lambda _: None, GO_ON))
        go_on.set()
        for run in runs:
            with pytest.raises(TaskError, match="ended"):
                run.result(PATIENCE_S)
    assert opened == ["usual", "other"]


def test_settings_that_cannot_work() -> None:
    worker = WorkerHandle("cpu", WorkerSettings("nope", "cpu"))
    with pytest.raises(BundleError, match=r"^nope: no bundle there") as missing:
        worker.start()
    assert missing.value.usage
    worker.close()


STARTING = """
import sys

def work(orders, emit):
    next(iter(orders))
    print("no event")
    emit(key="", progress="building engines")
    sys.exit("no such driver")
"""


def test_a_worker_that_dies_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starting.py").write_text(STARTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(local, "work", importlib.import_module("starting").work)
    notices: list[str] = []
    worker = WorkerHandle("gpu 1", SETTINGS, notices.append)
    with pytest.raises(WorkerLost, match=r"^gpu 1: its process ended with exit code 1: no such driver$"):
        worker.start()
    worker.close()
    assert notices == ["building engines"]
