"""A worker of this machine: a child process, which may crash or be killed and be started again.

Orders are ("", settings) at first, then (id, task) and (id, None), which cancels that task. Events
have the `key` of the order that they answer: `progress`, a notice while it opens, and at last
`error`, None if it succeeded, with the `result`; after `WorkerLost` it takes no more. One of no
order shows that it lives, once a second while it works.
"""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Any

from latentsync_trt.batch.tasks import Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Child, Emit, Event, end_process, give_memory_back
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.stopping import exit_code
from latentsync_trt.types import Progress

# The child removes unfinished files meanwhile: at once, unless the machine is overloaded.
_PATIENCE_S = 10.0
_ALIVE_S = 1.0


@dataclass(slots=True, eq=False)
class _Call:
    """An order that is carried out, and the events that answer it."""

    canceled: threading.Event
    events: SimpleQueue[Event] = field(default_factory=SimpleQueue)
    canceled_s: float = inf


class WorkerHandle:
    """The driver's side of a worker; any thread may call it. The child ends with this process,
    however that ends.

    `at_once`: how many tasks it takes at a time. `provider`: on which it opened its bundle; empty
    before. `hangs`: whether it works and has sent nothing for a tenth of `hung_s`, after which it
    is ended, and its tasks run again. It is ended, too, where it does not obey a cancel within
    `cancel_s`.
    """

    hung_s = 300.0
    cancel_s = 30.0

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        on_notice: Callable[[str], None] = lambda _: None,
        *,
        at_once: int = 1,
        new_child: Callable[[], Any] | None = None,
    ) -> None:
        """`on_notice`: called within `start` with what takes long there. `new_child`: makes what
        acts as a `Child`.
        """
        self.name = name
        self.at_once = at_once
        self.provider = ""
        self._settings = settings
        self._on_notice = on_notice
        if settings.threads is None:
            environment = {}
        else:
            environment = {"OMP_NUM_THREADS": str(settings.threads)}
        self._new_child = new_child or partial(Child, work, environment)
        self._starting = threading.Lock()
        self._lock = threading.Lock()
        self._child: Any = None
        self._reader: threading.Thread | None = None
        self._calls: dict[str, _Call] = {}
        self.hangs = self._works = self._closed = False
        self._heard_s = 0.0
        self._problem: LatentSyncError | None = None  # why the child ends, where that is known

    @property
    def pid(self) -> int | None:
        if self._child is None:
            return None
        return self._child.pid

    def start(self) -> None:
        """Returns when the bundle is open; raises `WorkerLost`, or `LatentSyncError` if the
        settings cannot work.
        """
        with self._starting:
            if self._works:
                return
            if self._reader is not None:
                self._reader.join()
            with self._lock:
                if self._closed or exit_code():
                    raise WorkerLost(f"{self.name}: is closed")
                self._child = self._new_child()
                self._problem = None
                self._works = True
                self._reader = threading.Thread(
                    target=self._read, name=f"events of {self.name}", daemon=True
                )
                self._reader.start()
            self.provider = self._ask("", self._settings, self._on_notice, threading.Event())

    def run(
        self, task: Task, on_progress: Callable[[Progress], None], canceled: threading.Event
    ) -> dict[str, Any]:
        """As `Worker.run`; raises also what `on_progress` does."""
        self.start()
        return dict(self._ask(task.id, task, on_progress, canceled))

    def close(self) -> None:
        """Ends the worker, also within a task, which then raises; may be called again."""
        with self._lock:
            self._closed = True
            self._problem = WorkerLost("was closed")
        if self._child is not None:
            self._child.end(_PATIENCE_S)

    def _ask(
        self, key: str, order: Any, on_progress: Callable[[Any], None], canceled: threading.Event
    ) -> Any:
        call = _Call(canceled)
        with self._lock:
            if not self._works:
                raise WorkerLost(f"{self.name}: {self._problem}")
            if not self._calls:
                self._heard_s = time.monotonic()
            self._calls[key] = call
        self._child.send((key, order))
        try:
            while "progress" in (event := call.events.get()):
                on_progress(event["progress"])
        except BaseException:
            canceled.set()
            while "progress" in call.events.get():
                pass  # until the child has stopped
            raise
        error = event["error"]
        if error is not None:
            raise (
                WorkerLost(f"{self.name}: {error}", crash=error.crash)
                if isinstance(error, WorkerLost)
                else error
            )
        return event["result"]

    def _read(self) -> None:
        """In a thread: takes events, until the child ends or is lost."""
        for event in self._child.events(self._watch):
            key = event["key"]
            error = event.get("error")
            lost = isinstance(error, WorkerLost) or (error is not None and not key)
            with self._lock:
                self._heard_s = time.monotonic()
                if "progress" in event:
                    call = self._calls.get(key)
                else:
                    call = self._calls.pop(key, None)
                if lost:
                    self._works = False
                    self._problem = self._problem or error
            if call is not None:
                call.events.put(event)
            if lost:
                break
        # elsewhere, if only the connection was lost, it still locks its outputs
        ended = self._child.end(_PATIENCE_S)
        with self._lock:
            self._works = self.hangs = False
            calls = [*self._calls.values()]
            self._calls = {}
            if self._problem is None:
                line = ended.last_error_line or "no message"
                self._problem = WorkerLost(
                    f"its process ended with {ended}: {line}", crash=ended.crash
                )
        for call in calls:
            call.events.put({"error": self._problem})

    def _watch(self) -> None:
        """Passes cancels on; ends a child that hangs, or that takes too much memory."""
        now_s = time.monotonic()
        bytes_ = self._child.memory_bytes
        most = self._settings.most_bytes
        problem: LatentSyncError | None = None
        with self._lock:
            calls = dict(self._calls)
            silent_s = now_s - self._heard_s if calls else 0.0
            self.hangs = silent_s > self.hung_s / 10
            if silent_s > self.hung_s:
                problem = WorkerLost(f"did not answer for {self.hung_s:g} s, and was ended")
            elif any(now_s - call.canceled_s > self.cancel_s for call in calls.values()):
                problem = WorkerLost(
                    f"did not obey a cancel within {self.cancel_s:g} s, and was ended"
                )
            elif calls and "" not in calls and bytes_ > most:
                text = f"needs more than {most / 1e9:.2g} GB of memory, the most for a worker here"
                problem = TaskError(
                    f"the clip {text}; give one with smaller pictures, or fewer --workers"
                )
                if len(calls) > 1:
                    self.at_once = 1
                    problem = WorkerLost(f"{text}; its clips run again, one at a time")
            if problem is not None:
                self._works = False
                self._problem = problem
        if problem is not None:
            self._child.end()
        for key, call in calls.items():
            if call.canceled.is_set() and call.canceled_s == inf:
                call.canceled_s = now_s
                self._child.send((key, None))


def work(orders: Iterator[Any], emit: Emit) -> None:
    """In the child: takes orders in the main thread, which so handles signals at once."""
    from latentsync_trt.sync.threads import tune_process

    tune_process()
    # Ctrl-C reaches this process, too, but its parent decides; other signals end it without its
    # files.
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))
    carry_out(orders, emit)


def carry_out(orders: Iterator[Any], emit: Emit) -> None:
    """Carries out each order in a thread of its own."""
    workers = list[Worker]()
    canceled = dict[str, threading.Event]()

    def answer(key: str, order: WorkerSettings | Task) -> None:
        error: LatentSyncError | None = None
        result: Any = None
        try:
            try:
                if isinstance(order, WorkerSettings):
                    workers.append(Worker(order, lambda text: emit(key=key, progress=text)))
                    result = workers[0].provider
                else:
                    result = workers[0].run(
                        order, lambda at: emit(key=key, progress=at), canceled[key]
                    )
            except LatentSyncError as failure:
                error = failure
            give_memory_back()
            del canceled[key]
            emit(key=key, error=error, result=result)
        except BaseException:  # noqa: BLE001 -- the parent would wait forever
            traceback.print_exc()
            end_process(1)

    def show_life() -> None:
        while True:
            if canceled:
                emit(key=None)
            time.sleep(_ALIVE_S)

    threading.Thread(target=show_life, name="alive", daemon=True).start()
    for key, order in orders:
        if order is not None:
            canceled[key] = threading.Event()
            threading.Thread(
                target=answer, args=(key, order), name=f"order {key}", daemon=True
            ).start()
        elif key in canceled:  # else it has just ended
            canceled[key].set()
