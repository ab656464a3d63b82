"""The dispatcher, with workers that do as the test says."""

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latentsync_trt.batch.dispatch import Dispatcher
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
    WorkerState,
)
from latentsync_trt.child_main import CallCanceled
from latentsync_trt.errors import BundleError, OutputError
from latentsync_trt.types import Progress
from tests.serving import until

pytestmark = pytest.mark.integration

DONE = {"frames": 1, "wall_s": 0.0}


Work = Callable[["Fake", Task, Callable[[Progress], None], threading.Event], None]


class Fake:
    """A worker that runs `work` for each task, and fails to start with each of `starts` that is an
    error.
    """

    def __init__(
        self,
        name: str,
        work: Work = lambda *_: None,
        starts: Sequence[Exception | None] = (),
        at_once: int = 1,
    ) -> None:
        self.name = name
        self.work = work
        self.starts = deque(starts)
        self.ran: list[str] = []
        self.closing = threading.Event()
        self.hangs = False
        self.at_once = at_once
        self.provider = "cpu"

    def start(self) -> None:
        problem = self.starts.popleft() if self.starts else None
        if problem is not None:
            raise problem

    def run(
        self, task: Task, on_progress: Callable[[Progress], None], canceled: threading.Event
    ) -> dict[str, Any]:
        self.ran.append(task.id)
        self.work(self, task, on_progress, canceled)
        return DONE

    def close(self) -> None:
        self.closing.set()


def until_stopped(
    worker: Fake, task: Task, _: Callable[[Progress], None], canceled: threading.Event
) -> None:
    until(lambda: canceled.is_set() or worker.closing.is_set())
    raise CallCanceled(task.id)


def task(number: int) -> Task:
    return Task(str(number), "v", "a", f"{number}.mp4")


@contextmanager
def dispatching(
    *workers: Fake, seen: Callable[[Event], None] = lambda _: None
) -> Iterator[tuple[Dispatcher, list[Event]]]:
    events: list[Event] = []

    def on_event(event: Event) -> None:
        events.append(event)
        seen(event)

    dispatcher = Dispatcher(workers, on_event)
    try:
        yield dispatcher, events
    finally:
        dispatcher.close()


def of(kind: type[Event], events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_tasks_run_in_order_and_a_failed_one_stops_no_other() -> None:
    def work(_: Fake, item: Task, on_progress: Callable[[Progress], None], __: object) -> None:
        on_progress(Progress("lip-sync", 1, 2))
        if item.id == "1":
            raise TaskError("damaged", usage=True)

    worker = Fake("cpu", work)
    with dispatching(worker) as (dispatcher, events):
        for number in range(3):
            dispatcher.submit(task(number))
        dispatcher.wait()
    assert worker.ran == ["0", "1", "2"]
    assert [event.task_id for event in of(Finished, events)] == ["0", "2"]  # type: ignore[union-attr]
    assert of(Failed, events) == [Failed("1", "cpu", "damaged", usage=True, again=False)]
    assert len(of(Moved, events)) == 3
    assert worker.closing.is_set()


@pytest.mark.parametrize(("before", "runs"), [(0, 3), (2, 1)])
def test_the_task_of_a_lost_worker_is_the_next_to_run_until_its_attempts_are_used(
    before: int, runs: int
) -> None:
    def work(_: Fake, item: Task, *__: object) -> None:
        if item.id == "0":
            raise WorkerLost("killed")

    worker = Fake("cpu", work)
    with dispatching(worker) as (dispatcher, events):
        dispatcher.submit(task(0), attempts_before=before)
        dispatcher.submit(task(1))
        dispatcher.wait()
    assert worker.ran == ["0"] * runs + ["1"]
    assert [event.again for event in events if isinstance(event, Failed)] == [True] * (runs - 1) + [
        False
    ]
    assert [event.attempt for event in events if isinstance(event, Started)] == [
        *range(before + 1, 4),
        1,
    ]


def test_a_worker_that_does_not_start_leaves_the_tasks_to_others() -> None:
    bad = Fake("gpu 0", starts=[WorkerLost("no memory")] * 3)
    good = Fake("gpu 1")
    with dispatching(bad, good) as (dispatcher, events):
        dispatcher.submit(task(0))
        dispatcher.wait()
        until(lambda: WorkerState("gpu 0", "closed", "no memory") in events)
    assert (bad.ran, good.ran) == ([], ["0"])
    assert events.count(WorkerState("gpu 0", "lost", "no memory")) == 3


@pytest.mark.parametrize("starts", [[WorkerLost("killed")] * 3, [BundleError("damaged")]])
def test_without_any_worker_the_last_error_is_raised(starts: list[Exception]) -> None:
    with dispatching(Fake("cpu", starts=starts)) as (dispatcher, _):
        dispatcher.submit(task(0))
        with pytest.raises(type(starts[0]), match=str(starts[0])):
            dispatcher.wait()


def test_canceling_a_waiting_and_a_running_task_and_one_that_begins() -> None:
    def cancel(event: Event) -> None:
        if isinstance(event, Started) and event.task_id == "2":
            assert dispatcher.cancel("2")

    worker = Fake("cpu", until_stopped)
    with dispatching(worker, seen=cancel) as (dispatcher, events):
        for number in range(3):
            dispatcher.submit(task(number))
        until(lambda: worker.ran)
        assert dispatcher.cancel("1")
        assert dispatcher.cancel("0")
        dispatcher.wait()
        assert not dispatcher.cancel("0")
    assert of(CanceledEvent, events) == [CanceledEvent("1"), CanceledEvent("0"), CanceledEvent("2")]
    assert worker.ran == ["0", "2"]


@pytest.mark.parametrize("kind", [Started, Finished])
def test_errors_of_who_listens(kind: type[Event]) -> None:
    """A task whose start cannot be recorded fails; whose end cannot be, stops everything."""

    def refuse(event: Event) -> None:
        if isinstance(event, kind):
            raise OutputError("disk full")

    with dispatching(Fake("cpu"), seen=refuse) as (dispatcher, events):
        dispatcher.submit(task(0))
        if kind is Started:
            dispatcher.wait()
            assert of(Failed, events) == [Failed("0", "cpu", "disk full", usage=False, again=False)]
        else:
            with pytest.raises(OutputError, match="disk full"):
                dispatcher.wait()


@given(
    seed=st.integers(),
    count=st.integers(0, 12),
    workers=st.integers(1, 3),
    at_once=st.integers(1, 2),
)
@settings(max_examples=30)
def test_each_task_ends_once_and_none_runs_twice_at_once(
    seed: int, count: int, workers: int, at_once: int
) -> None:
    chance = random.Random(seed)
    running = Counter[str]()
    lock = threading.Lock()
    most = Counter[str]()

    def work(worker: Fake, item: Task, on_progress: Callable[[Progress], None], __: object) -> None:
        with lock:
            for key in (item.id, worker.name):
                running[key] += 1
                most[key] = max(most[key], running[key])
            fate = chance.random()
        on_progress(Progress("lip-sync", 1, 1))
        with lock:
            running.subtract((item.id, worker.name))
        if fate < 0.3:
            raise WorkerLost("killed")
        if fate < 0.4:
            raise TaskError("damaged")

    fakes = [Fake(f"gpu {number}", work, at_once=at_once) for number in range(workers)]
    with dispatching(*fakes) as (dispatcher, events):
        for number in range(count):
            dispatcher.submit(task(number))
        dispatcher.wait()
    assert all(found <= (at_once if key.startswith("gpu") else 1) for key, found in most.items())
    ends = [
        event
        for event in events
        if isinstance(event, Finished) or (isinstance(event, Failed) and not event.again)
    ]
    assert sorted(event.task_id for event in ends) == sorted(map(str, range(count)))
    starts = Counter(event.task_id for event in events if isinstance(event, Started))
    again = Counter(event.task_id for event in events if isinstance(event, Failed) and event.again)
    assert all(starts[key] == again[key] + 1 <= 3 for key in starts)
