"""A worker of this machine: a child process, which may crash or be killed and be started again.

Orders are ("", settings) at first, then (id, task) and (id, None), which cancels that task. Events have the `key` of
the order that they answer: `progress`, a notice while it opens, and at last `error`, None if it succeeded, with the
`result`; after `WorkerLost` it takes no more. One of no order shows that it lives, once a second while it works.
"""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from latentsync_trt.batch.tasks import Done, Task, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Child, Emit, Ended, Event, end_process
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.stopping import exit_code
from latentsync_trt.types import Progress
from latentsync_trt.unexpected import one_line

# The child removes unfinished files meanwhile.
_PATIENCE_S = 2.0
_ALIVE_S = 1.0
# A child that works and sends nothing for so long hangs. It is ended, so that its tasks run again, when one of them is
# canceled, or much later; and so is one that goes on with a canceled task.
_SILENT_S, _HUNG_S, _OBEYS_S = 30.0, 900.0, 300.0


@dataclass(slots=True, eq=False)
class _Call:
    """An order that is carried out. `failure`: what `on_progress` raised, after which it is canceled."""

    on_progress: Callable[[Any], None]
    canceled: threading.Event
    answer: Future[Any] = field(default_factory=Future)
    canceled_s: float = inf
    failure: BaseException | None = None

    def note(self, progress: Any) -> None:
        if self.failure is None:
            try:
                self.on_progress(progress)
            except BaseException as error:  # noqa: BLE001 -- raised when the child has stopped
                self.failure = error
                self.canceled.set()


@dataclass(slots=True, eq=False)
class _Process:
    """A child, and its calls by key. `works`: it takes orders. `problem`: why it was ended; `cause`: which call did."""

    name: str
    child: Any  # a `Child`, or what acts as one elsewhere
    calls: dict[str, _Call] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    heard_s: float = 0.0
    works: bool = True
    problem: str = ""
    cause: _Call | None = None

    @property
    def silent_s(self) -> float:
        """For how long the child has sent nothing although it works."""
        return time.monotonic() - self.heard_s if self.calls else 0.0

    def ask(self, key: str, order: Any, call: _Call) -> Any:
        """Sends an order; returns its result, or raises its error."""
        with self.lock:
            if not self.calls:
                self.heard_s = time.monotonic()
            if works := self.works:
                self.calls[key] = call
        if not works:
            raise self.lost(call)
        self.child.send((key, order))
        return call.answer.result()

    def take(self, event: Event) -> None:
        self.heard_s = time.monotonic()
        call, error = self.calls.get(key := event["key"]), event.get("error")
        if call is None:
            return
        if "progress" in event:
            call.note(event["progress"])
            return
        with self.lock:
            del self.calls[key]
            if isinstance(error, WorkerLost) or (error is not None and not key):
                self.works = False
        if isinstance(error, WorkerLost):
            error = WorkerLost(f"{self.name}: {error}")
        if call.failure is not None or error is not None:
            call.answer.set_exception(call.failure or error)
        else:
            call.answer.set_result(event["result"])

    def end_calls(self) -> None:
        """The child has ended."""
        with self.lock:
            self.works = False
            calls, self.calls = [*self.calls.values()], {}
        for call in calls:
            call.answer.set_exception(self.lost(call))

    def lost(self, call: _Call) -> WorkerLost:
        lost = WorkerLost(f"{self.name}: {self.problem or _reason(self.child.wait())}")
        lost.cause = self.cause is call
        return lost


class LocalWorker:
    """A `WorkerHandle`. The child ends with this process, however that ends; with the child, all its clips are lost.

    `on_notice`: called within `start` with a sentence about what takes long there; those of a clip are in its report.
    `at_once`: one after two clips together took too much memory, until it is known which of them did.
    """

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        on_notice: Callable[[str], None] = lambda _: None,
        *,
        at_once: int = 1,
    ) -> None:
        self.name, self.at_once, self.provider = name, at_once, ""
        self._settings, self._on_notice, self._most_at_once = settings, on_notice, at_once
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._process: _Process | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.child.pid

    @property
    def hangs(self) -> bool:
        return self._process is not None and self._process.silent_s > _SILENT_S

    def start(self) -> None:
        self._started()

    def _started(self) -> _Process:
        with self._starting:
            if self._process is not None and self._process.works:
                return self._process
            self._end()
            with self._lock:
                if self._closed or exit_code():
                    raise WorkerLost(f"{self.name}: is closed")
                self._process = process = _Process(self.name, self._new_child())
            threading.Thread(target=self._read, args=(process,), name=f"events of {self.name}", daemon=True).start()
            call = _Call(self._on_notice, threading.Event())
            self.provider = process.ask("", self._settings, call)
            return process

    def _new_child(self) -> Any:
        threads = self._settings.threads
        try:
            return Child(work, {} if threads is None else {"OMP_NUM_THREADS": str(threads)})
        except OSError as error:
            raise WorkerLost(f"{self.name}: its process cannot be started ({error})") from error

    def run(self, task: Task, on_progress: Callable[[Progress], None], canceled: threading.Event) -> Done:
        """See `WorkerHandle.run`; `on_progress` is called in a thread of the worker."""
        done: Done = self._started().ask(task.id, task, _Call(on_progress, canceled))
        return done

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.problem = "was closed"
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.child.end(_PATIENCE_S)

    def _read(self, process: _Process) -> None:
        """In a thread: takes events, until the child ends."""
        for event in process.child.events(partial(self._watch, process)):
            process.take(event)
        process.child.end(_PATIENCE_S)  # one elsewhere, of which only the connection was lost, still locks its outputs
        process.end_calls()

    def _watch(self, process: _Process) -> None:
        """Ends a child that hangs, where nothing else helps, or that takes too much memory."""
        with process.lock:
            calls = [*process.calls.items()]
        for key, call in calls:
            if call.canceled.is_set() and call.canceled_s == inf:
                call.canceled_s = time.monotonic()
                process.child.send((key, None))
        canceled_s = min((call.canceled_s for _, call in calls), default=inf)
        silent_s, canceled = process.silent_s, canceled_s < inf
        if silent_s > (_SILENT_S if canceled else _HUNG_S) or time.monotonic() - canceled_s > _OBEYS_S:
            process.problem = "did not obey a cancel" if canceled else f"did not answer for {silent_s:.0f} s"
            process.problem += ", and was ended"
            process.child.end()
        elif calls and calls[0][0] and process.child.memory_bytes > self._settings.most_bytes:
            most = f"more than {self._settings.most_bytes / 1e9:.2g} GB of memory, the most for a worker here"
            process.problem = f"the clip needs {most}; give one with smaller pictures, or fewer --workers"
            process.cause = calls[0][1] if len(calls) == 1 else None
            self.at_once = self._most_at_once if len(calls) == 1 else 1
            process.child.end()


def _reason(ended: Ended | str) -> str:
    if isinstance(ended, str):
        return ended
    return f"its process ended with {ended}: {ended.last_error_line or 'no message'}"


def work(orders: Iterator[Any], emit: Emit) -> None:
    """In the child: takes orders in the main thread, which so handles signals at once."""
    from latentsync_trt.sync.threads import tune_process

    tune_process()
    # Ctrl-C reaches this process, too, but its parent decides; other signals end it without its files.
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))
    carry_out(orders, emit)


def carry_out(orders: Iterator[Any], emit: Emit) -> None:
    """Carries out each order in a thread of its own."""
    workers, canceled = list[Worker](), dict[str, threading.Event]()

    def report(key: str, progress: Progress) -> None:
        emit(key=key, progress=replace(progress, picture=None))

    def answer(key: str, order: WorkerSettings | Task) -> None:
        error: LatentSyncError | None = None
        result: Any = None
        try:
            try:
                if isinstance(order, WorkerSettings):
                    workers.append(Worker(order, lambda text: emit(key=key, progress=text)))
                    result = workers[0].provider
                else:
                    result = workers[0].run(order, partial(report, key), canceled[key])
            except LatentSyncError as failure:
                error = failure
            except Exception as failure:  # noqa: BLE001 -- the parent reports it
                error = LatentSyncError(one_line(failure, ["batch"])[0])
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
            threading.Thread(target=answer, args=(key, order), name=f"order {key}", daemon=True).start()
        elif key in canceled:  # else it has just ended
            canceled[key].set()
