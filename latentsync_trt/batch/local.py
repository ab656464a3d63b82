"""A worker of this machine: a child process, which may crash or be killed and be started again.

Orders: first the settings, then `{"run": number, "task": …}` and `{"cancel": number}`. Events:
`error`, None if the settings work, with the `provider`; then for each run, with its number, `progress`, and `done` or
`error`; after `WorkerLost` the process ends. At any time, `notice`; once a second while it works, `alive`.
"""

import signal
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from queue import Queue
from typing import Any

from latentsync_trt.batch.tasks import Canceled, Done, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Child, Emit, Event, end_process
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.stopping import requested
from latentsync_trt.types import Progress
from latentsync_trt.unexpected import one_line

# The child removes unfinished files meanwhile.
_PATIENCE_S = 2.0
_ALIVE_S = 1.0
# A child that works and sends nothing for so long hangs. It is ended, so that its task runs again, when the task is
# canceled, or much later; and so is one that goes on with a canceled task.
_SILENT_S, _HUNG_S, _OBEYS_S = 30.0, 900.0, 300.0


class LocalWorker:
    """A `WorkerHandle`. The child ends with this process, however that ends.

    `on_notice`: called within `start` with a sentence about what takes long there; those of a clip are in its report.
    """

    def __init__(self, name: str, settings: WorkerSettings, on_notice: Callable[[str], None] = lambda _: None) -> None:
        self.name = name
        self._settings, self._on_notice = settings, on_notice
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._closed = False
        self._number, self._running = 0, ""
        self._heard_s = self._canceled_s = inf
        self.provider = ""

    @property
    def pid(self) -> int | None:
        """Returns the child's process number; None before `start`."""
        return None if self._child is None else self._child.pid

    @property
    def hangs(self) -> bool:
        """See `WorkerHandle.hangs`."""
        return time.monotonic() - self._heard_s > _SILENT_S

    def start(self) -> None:
        """See `WorkerHandle.start`."""
        self._end()
        threads = self._settings.threads
        with self._lock:
            if self._closed or requested():
                raise WorkerLost(f"{self.name}: is closed")
            try:
                child = Child(work, {} if threads is None else {"OMP_NUM_THREADS": str(threads)})
            except OSError as error:
                raise WorkerLost(f"{self.name}: its process cannot be started ({error})") from error
            self._child = child
        child.send(self._settings)
        self.provider = self._result(child, 0, lambda _: None)["provider"]

    def run(self, task: Task, on_progress: Callable[[Progress], None]) -> Done:
        """See `WorkerHandle.run`. An error of `on_progress` cancels the task."""
        with self._lock:
            if self._child is None:
                raise WorkerLost(f"{self.name}: is not started")
            child, number = self._child, self._number + 1
            self._number, self._running, self._canceled_s = number, task.id, inf
            child.send({"run": number, "task": task})
        try:
            done: Done = self._result(child, number, on_progress)["done"]
        except BaseException:
            self.cancel(task.id)  # does nothing where it has ended
            raise
        finally:
            self._running = ""
        return done

    def cancel(self, task_id: str) -> None:
        """See `WorkerHandle.cancel`."""
        with self._lock:
            if self._child is not None and self._running == task_id:
                self._canceled_s = min(self._canceled_s, time.monotonic())
                self._child.send({"cancel": self._number})

    def close(self) -> None:
        """See `WorkerHandle.close`."""
        with self._lock:
            self._closed = True
        self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end(_PATIENCE_S)

    def _result(self, child: Child, number: int, on_progress: Callable[[Progress], None]) -> Event:
        """The last event of a run, or of opening (`number` 0); raises its error."""
        self._heard_s = time.monotonic()
        try:
            for event in child.events(self._watch):
                self._heard_s = time.monotonic()
                if "notice" in event and not number:
                    self._on_notice(f"{self.name}: {event['notice']}")
                if "alive" in event or "notice" in event or event.get("run", 0) != number:
                    continue  # else of an earlier task, whose `on_progress` failed
                if "progress" in event:
                    on_progress(event["progress"])
                elif isinstance(event["error"], WorkerLost):
                    raise WorkerLost(f"{self.name}: {event['error']}")
                elif event["error"] is not None:
                    raise event["error"]
                else:
                    return event
        finally:
            self._heard_s = inf
        ended = child.wait()
        if self._closed:
            raise WorkerLost(f"{self.name}: was closed")
        raise WorkerLost(f"{self.name}: its process ended with {ended}: {ended.last_error_line or 'no message'}")

    def _watch(self) -> None:
        """Ends a child that hangs, where nothing else helps."""
        now_s = time.monotonic()
        silent_s, canceled = now_s - self._heard_s, self._canceled_s < inf
        if silent_s > (_SILENT_S if canceled else _HUNG_S) or now_s - self._canceled_s > _OBEYS_S:
            if self._child is not None:
                self._child.end()
            problem = "did not obey a cancel" if canceled else f"did not answer for {silent_s:.0f} s"
            raise WorkerLost(f"{self.name}: {problem}, and was ended")


def work(orders: Iterator[Any], emit: Emit) -> None:
    """In the child: takes orders in the main thread, which so handles signals at once; another one runs the tasks."""
    from latentsync_trt.sync.threads import tune_process

    tune_process()
    # Ctrl-C reaches this process, too, but its parent decides; other signals end it without its files.
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))
    tasks: Queue[Event] = Queue()
    works = threading.Event()
    threading.Thread(target=_show_life, args=(works, emit), name="alive", daemon=True).start()
    canceled: defaultdict[int, threading.Event] = defaultdict(threading.Event)
    arguments = next(orders), tasks, canceled, works, emit
    threading.Thread(target=_run_tasks, args=arguments, name="worker", daemon=True).start()
    for order in orders:
        if "run" in order:
            tasks.put(order)
        else:  # it may come before its run, or after that has ended
            canceled[order["cancel"]].set()


def _run_tasks(
    settings: WorkerSettings,
    tasks: "Queue[Event]",
    canceled: defaultdict[int, threading.Event],
    works: threading.Event,
    emit: Emit,
) -> None:
    """Opens a worker and runs its tasks, meanwhile sets `works`; ends the process when it cannot run another."""
    works.set()
    try:
        worker, error = _opened(settings, emit), None
        while worker is not None and not isinstance(error, WorkerLost):
            works.clear()
            order = tasks.get()
            works.set()
            number, done, error = order["run"], None, None
            try:
                done = worker.run(order["task"], partial(_report, emit, number), canceled[number])
            except (TaskError, Canceled, WorkerLost) as failure:
                error = failure
            del canceled[number]
            emit(run=number, done=done, error=error)
    except BaseException:  # noqa: BLE001 -- the parent would wait forever
        traceback.print_exc()
    end_process(1)


def _show_life(works: threading.Event, emit: Emit) -> None:
    while works.wait():
        emit(alive=True)
        time.sleep(_ALIVE_S)


def _report(emit: Emit, number: int, progress: Progress) -> None:
    emit(run=number, progress=replace(progress, picture=None))


def _opened(settings: WorkerSettings, emit: Emit) -> Worker | None:
    """Opens a worker; emits why that failed, or None."""
    worker, error = None, None
    try:
        worker = Worker(settings, lambda text: emit(notice=text))
    except LatentSyncError as failure:
        error = failure
    except Exception as failure:  # noqa: BLE001 -- the parent reports it
        error = LatentSyncError(one_line(failure, ["batch"])[0])
    emit(error=error, provider="" if worker is None else worker.provider)
    return worker
