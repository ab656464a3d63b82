"""Workers in this process and in a child: paths and URLs, clips that fail, are stopped or
killed.
"""

import os
import platform
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from latentsync_trt import RuntimeOptions, SyncOptions
from latentsync_trt.batch.dispatch import Dispatcher, slot_names
from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.tasks import (
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
from latentsync_trt.child import Child, ChildProcess, Ended
from latentsync_trt.child_main import CallCanceled, give_memory_back
from latentsync_trt.errors import InferenceError, OutOfMemory, ProviderUnavailable
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.types import Progress
from tests.clips import decoded, write_clip, write_sound
from tests.held_worker import die, hold
from tests.s3 import BUCKET, s3_server
from tests.serving import PATIENCE_S, until
from tests.small import small_bundle

pytestmark = pytest.mark.integration

FAST = SyncOptions(preset="fast", steps=1)
FRAMES = 5
GO_ON = threading.Event()
"""Never set."""
SETTINGS = WorkerSettings(str(small_bundle()), "cpu", threads=1)


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


def at(stage: str, action: Callable[[], object]) -> Callable[[Progress], None]:
    """Calls `action` once, in a stage."""
    left = [action]

    def report(progress: Progress) -> None:
        if progress.stage == stage and left:
            left.pop()()

    return report


@pytest.mark.usefixtures("short_parts")
def test_a_clip_goes_on_where_it_failed(worker: Worker, tmp_path: Path) -> None:
    """Not another one of the same name, which begins anew."""
    clip = write_clip(tmp_path, 12)
    own = task(clip, tmp_path / "a.mkv", replace(FAST, seed=5))

    def run(each: Task, *, fails: bool) -> tuple[set[int], dict[str, Any] | None]:
        """Where painting begins, and the report, if it does not fail at the last but one frame."""
        begun = set[int]()

        def watch(progress: Progress) -> None:
            if progress.stage == "painting first frames":
                begun.add(progress.done)
            if fails and progress.stage == "lip-sync" and progress.done == 11:
                raise OutOfMemory("denoise_step on cuda: too little memory")

        if not fails:
            return begun, worker.run(each, watch)
        with pytest.raises(TaskError, match="too little memory"):
            worker.run(each, watch)
        return begun, None

    assert run(task(clip, own.output), fails=True) == ({0}, None)
    assert run(own, fails=True) == ({0}, None)
    begun, report = run(own, fails=False)
    assert report is not None
    assert (begun, report["frames"], len(decoded(tmp_path / "a.mkv"))) == ({11}, 12, 12)
    assert "goes on after" in " ".join(report["notices"])
    assert names(tmp_path) == ["a.mkv", "face.mp4", "speech.wav"]


def test_a_provider_that_fails_ends_the_worker(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    def fail(_: Progress) -> None:
        raise InferenceError("vae_encoder on cuda: illegal memory access")

    with pytest.raises(WorkerLost, match="illegal memory access"):
        worker.run(task(clip, tmp_path / "a.mp4"), fail)
    assert names(tmp_path) == []


# URLs


@pytest.fixture(scope="module")
def s3(clip: tuple[Path, Path]) -> Iterator[Any]:
    with s3_server() as system:
        for path in clip:
            system.put_file(str(path), f"{BUCKET}/in/{path.name}")
        yield system


def test_all_files_by_url(worker: Worker, s3: Any, scratch: Path, tmp_path: Path) -> None:
    music = write_sound(tmp_path / "speech.wav", FRAMES / 25, clicks_s=(0.5,))
    bucket = f"s3://{BUCKET}"
    s3.put_file(str(music), f"{BUCKET}/music/speech.wav")  # of the same name as the speech
    options = replace(FAST, mix=f"{bucket}/music/speech.wav", report=f"{bucket}/out/page.html")
    named = Task(
        "s3", f"{bucket}/in/face.mp4", f"{bucket}/in/speech.wav", f"{bucket}/out/a.mkv", options
    )
    made = worker.run(named, lambda _: None)
    assert made["output"] == f"{bucket}/out/a.mkv"
    assert s3.ls(f"{BUCKET}/out", refresh=True) == [
        f"{BUCKET}/out/a.mkv",
        f"{BUCKET}/out/page.html",
    ]
    s3.get_file(f"{BUCKET}/out/a.mkv", str(tmp_path / "a.mkv"))
    assert len(decoded(tmp_path / "a.mkv")) == FRAMES
    assert b"<html" in s3.cat(f"{BUCKET}/out/page.html")
    assert names(scratch) == []


def test_what_cannot_be_uploaded_is_kept(
    worker: Worker, clip: tuple[Path, Path], scratch: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    url = (tmp_path / "file" / "a.mp4").as_uri()
    with pytest.raises(TaskError, match=rf"^{url}: cannot be written") as error:
        worker.run(task(clip, url), lambda _: None)
    (kept,) = scratch.iterdir()
    assert str(error.value).endswith(f"{kept}: a.mp4")
    assert len(decoded(kept / "a.mp4")) == FRAMES
    shutil.rmtree(kept)


# In a child process


def test_a_child_goes_on_after_canceled_and_failed_clips_until_it_is_closed(
    clip: tuple[Path, Path], tmp_path: Path
) -> None:
    own = task(clip, tmp_path / "a.mkv")
    slow = replace(own, options=replace(FAST, steps=3))  # to be stopped while it is painted
    worker = WorkerHandle("cpu", SETTINGS)
    canceled = threading.Event()
    worker.start()
    pid = worker.pid
    with pytest.raises(CallCanceled):
        worker.run(slow, at("painting first frames", canceled.set), canceled)
    for video, words, usage in (
        (str(tmp_path / "none.mp4"), "no such file", True),
        (own.audio, "no video", False),
    ):
        with pytest.raises(TaskError, match=words) as failed:
            worker.run(replace(own, video=str(video)), lambda _: None, GO_ON)
        assert failed.value.usage is usage
    assert names(tmp_path) == []
    assert worker.run(own, lambda _: None, GO_ON)["frames"] == FRAMES
    assert (worker.pid, names(tmp_path)) == (pid, ["a.mkv"])
    closing = threading.Thread(target=worker.close)
    with pytest.raises(WorkerLost, match=r"^cpu: was closed$"):
        worker.run(slow, at("painting first frames", closing.start), GO_ON)
    closing.join()
    assert not psutil.pid_exists(pid or 0)
    assert names(tmp_path) == ["a.mkv"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no ctypes.PyDLL(None)")
def test_a_worker_that_hangs_is_noticed_and_a_cancel_ends_it(tmp_path: Path) -> None:
    def new_child() -> Child:
        return Child(ChildProcess(hold), silent_s=10.0, cancel_s=0.5)

    worker = WorkerHandle("cpu", SETTINGS, new_child=new_child)
    worker.start()
    stuck = worker.pid or 0
    canceled = threading.Event()

    def cancel_when_noticed() -> None:
        until(lambda: worker.hangs)
        canceled.set()

    canceling = threading.Thread(target=cancel_when_noticed)
    with pytest.raises(WorkerLost, match="did not obey a cancel"):
        worker.run(
            Task("stuck", "v", "a", str(tmp_path / "a.mp4")),
            at("lip-sync", canceling.start),
            canceled,
        )
    canceling.join()
    assert not worker.hangs and not psutil.pid_exists(stuck)


def test_clips_longer_than_allowed_end(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    # 0.1 s, as half a second is tolerated
    own = replace(task(clip, tmp_path / "a.mkv"), most_s=-0.4)
    with pytest.raises(TaskError, match=r"longer than -0\.4 s") as failed:
        worker.run(own, lambda _: None)
    assert failed.value.usage


def test_another_bundle_is_opened_while_no_clip_runs(
    worker: Worker, clip: tuple[Path, Path], tmp_path: Path
) -> None:
    begun = threading.Event()
    waits = threading.Event()
    stages = list[str]()
    first = task(clip, tmp_path / "a.mp4")
    other = replace(
        first,
        output=str(tmp_path / "b.mp4"),
        bundle=str(shutil.copytree(small_bundle(), tmp_path / "b")),
    )

    def wait(_: Progress) -> None:
        begun.set()
        assert waits.wait(PATIENCE_S)

    def note(progress: Progress) -> None:
        stages.append(progress.stage)
        waits.set()

    with ThreadPoolExecutor() as threads:
        running = threads.submit(worker.run, first, wait)
        assert begun.wait(PATIENCE_S)
        second = threads.submit(worker.run, other, note)
        assert running.result(PATIENCE_S)["frames"] == second.result(PATIENCE_S)["frames"] == FRAMES
    waiting, opening, *_ = dict.fromkeys(stages)
    assert waiting.startswith("waiting for clips")
    assert opening == "opening networks"
    with pytest.raises(TaskError, match="none: no bundle there"):
        worker.run(replace(first, bundle=str(tmp_path / "none")), note)


React = Callable[[Event, list[Event], Callable[[str], bool]], None]


def run_both(pair: WorkerHandle, both: tuple[Task, Task], react: React) -> list[Event]:
    """Runs both on one worker; returns all events. `react` gets each of them, all so far, and what
    cancels a task.
    """
    events = list[Event]()

    def note(event: Event) -> None:
        events.append(event)
        react(event, events, lambda task_id: dispatcher.cancel(task_id))

    with closing(Dispatcher([pair], note)) as dispatcher:
        for each in both:
            dispatcher.submit(each)
        dispatcher.wait()
    return events


def held_child() -> Child:
    return Child(ChildProcess(hold))


@pytest.fixture
def pair() -> Iterator[WorkerHandle]:
    """A worker of two clips at a time, each of which ends when its output exists."""
    settings = replace(SETTINGS, most_bytes=0.3e9)
    with closing(WorkerHandle("gpu 0", settings, at_once=2, new_child=held_child)) as made:
        yield made


@pytest.fixture
def two(tmp_path: Path) -> tuple[Task, Task]:
    return Task("large", "v", "a", str(tmp_path / "large")), Task(
        "small", "v", "a", str(tmp_path / "small")
    )


def finished(events: list[Event]) -> list[str]:
    return sorted(each.task_id for each in events if isinstance(each, Finished))


def moves(event: Event, events: list[Event]) -> int:
    """How many clips have moved, if this event says so."""
    moved = [
        each for each in events if isinstance(each, Moved) and each.progress.stage == "lip-sync"
    ]
    return len(moved) if event in moved else 0


def test_a_process_syncs_two_clips_and_one_is_canceled(
    pair: WorkerHandle, two: tuple[Task, Task]
) -> None:
    def cancel_one(event: Event, events: list[Event], cancel: Callable[[str], bool]) -> None:
        if moves(event, events) == 2:
            assert cancel("large")
        elif isinstance(event, CanceledEvent):
            for each in two:
                Path(each.output).touch()

    events = run_both(pair, two, cancel_one)
    assert sorted(each.worker for each in events if isinstance(each, Started)) == [
        "gpu 0.1",
        "gpu 0.2",
    ]
    assert finished(events) == ["small"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals that end a process")
def test_a_clip_that_crashes_two_workers_fails_and_the_one_beside_it_is_done(
    pair: WorkerHandle, tmp_path: Path
) -> None:
    bad = Task("crash", str(tmp_path / "bad.mp4"), "a", str(tmp_path / "crash"))
    good = Task("small", "v", "a", str(tmp_path / "small"))

    def crash(event: Event, events: list[Event], _: object) -> None:
        if moves(event, events) == 2:
            (tmp_path / "crash.now").touch()
        elif isinstance(event, Failed) and event.again:
            (tmp_path / "small").touch()

    events = run_both(pair, (bad, good), crash)
    failures = [each for each in events if isinstance(each, Failed)]
    assert Counter((each.task_id, each.again) for each in failures) == {
        ("crash", True): 1, ("small", True): 1, ("crash", False): 1,
    }  # fmt: skip
    assert failures[-1].message.startswith(f"{tmp_path / 'bad.mp4'}: ")
    assert "SIGSEGV" in failures[-1].message
    assert finished(events) == ["small"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="Others give memory back themselves")
def test_freed_memory_goes_back_to_the_system() -> None:
    held = [bytearray(b"x" * 100_000) for _ in range(1000)]
    last = bytearray(b"x" * 100_000)  # above which glibc's heap would shrink
    held.clear()
    before = psutil.Process().memory_info().rss
    give_memory_back()
    assert psutil.Process().memory_info().rss < before - 50e6
    assert last


@pytest.mark.parametrize(
    ("code", "crashed"), [(-11, True), (0xC0000005, True), (0xC000013A, False), (1, False)]
)
def test_exit_codes_of_a_crash(code: int, crashed: bool) -> None:
    """On Windows an access violation is one, and Ctrl-C none."""
    assert bool(Ended(code, "").crash) == crashed


def test_of_two_clips_in_a_process_the_one_that_takes_too_much_memory_fails(
    pair: WorkerHandle, two: tuple[Task, Task], tmp_path: Path
) -> None:
    def grow(event: Event, events: list[Event], _: object) -> None:
        if moves(event, events) == 2:
            (tmp_path / "grow").touch()
        elif isinstance(event, Failed) and event.again:
            Path(two[1].output).touch()

    events = run_both(pair, two, grow)
    failures = [each for each in events if isinstance(each, Failed)]
    assert {(each.task_id, each.again) for each in failures} == {
        ("large", True),
        ("small", True),
        ("large", False),
    }
    assert finished(events) == ["small"]
    assert pair.at_once == 1
    assert "needs more than 0.3 GB" in failures[-1].message


@pytest.mark.parametrize(
    ("provider", "device", "broken", "given", "expected"),
    [
        ("cuda", "all", (), {}, ["gpu 0.1", "gpu 0.2", "gpu 1.1", "gpu 1.2", "gpu 2.1", "gpu 2.2"]),
        ("auto", "2,0", (), {"most": 3}, ["gpu 2.1", "gpu 2.2", "gpu 0"]),
        ("auto", "all", (1,), {"low_memory": True}, ["gpu 0", "gpu 2"]),
        ("auto", "all", (0, 1, 2), {}, ["cpu"]),
        ("cuda", "all", (1,), {}, None),
    ],
)
def test_a_gpu_has_a_process_of_two_clips_and_a_broken_one_is_left_out_or_refused(
    gpus: list[Gpu],
    provider: str,
    device: str,
    broken: tuple[int, ...],
    given: dict[str, Any],
    expected: Any,
) -> None:
    gpus[:] = [replace(each, name="broken") if each.index in broken else each for each in gpus]
    low_memory = given.pop("low_memory", False)
    notices = list[str]()
    settings = replace(
        SETTINGS, provider=provider, runtime=RuntimeOptions(device=device, low_memory=low_memory)
    )
    if expected is None:
        with pytest.raises(ProviderUnavailable, match="cuda: it is broken"):
            make_workers(settings)
        return
    made = make_workers(settings, **given, on_notice=notices.append)
    assert [slot for each in made for slot in slot_names(each)] == expected
    assert [text.partition(" is left out: ")[0] for text in notices] == [
        f"GPU {number}" for number in broken
    ]


def test_a_worker_that_dies_while_it_starts() -> None:
    with (
        closing(
            WorkerHandle("gpu 1", SETTINGS, new_child=lambda: Child(ChildProcess(die)))
        ) as worker,
        pytest.raises(WorkerLost, match=r"no such driver$"),
    ):
        worker.start()
