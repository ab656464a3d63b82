"""A worker of this machine: a child process, which may crash or be killed and be started again.

Orders are (number, settings) at first, then (number, task) and (number, None), which cancels that task. Events have the
number of the order that they answer: `progress`, and at last `error`, None if it succeeded, with the `provider` or what
is `done`; after `WorkerLost` the process ends. Without a number: at any time, `notice`; once a second while it works,
`alive`.
"""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf
from queue import SimpleQueue
from typing import Any

from latentsync_trt.batch.tasks import Done, Task, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Gate, Worker
from latentsync_trt.child import Child, Emit, Event, end_process
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
    """An order that is carried out. `events`: which answer it; None when the child has ended."""

    task_id: str
    events: SimpleQueue[Event | None] = field(default_factory=SimpleQueue)
    canceled_s: float = inf


@dataclass(slots=True, eq=False)
class _Process:
    """A child and its calls by number. `is_open`: its settings work. `problem`: why it was ended; `cause`: of that."""

    child: Child
    calls: dict[int, _Call] = field(default_factory=dict)
    heard_s: float = 0.0
    is_open: bool = False
    has_ended: bool = False
    problem: str = ""
    cause: _Call | None = None


class LocalWorker:
    """A `WorkerHandle` that several threads may call, for a clip each. The child ends with this process, however that
    ends; with the child, all its clips are lost.

    `on_notice`: called within `start` with a sentence about what takes long there; those of a clip are in its report.
    """

    def __init__(self, name: str, settings: WorkerSettings, on_notice: Callable[[str], None] = lambda _: None) -> None:
        self.name = name
        self._settings, self._on_notice = settings, on_notice
        self._gate, self._alone = Gate(), False
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._process: _Process | None = None
        self._numbers = count()
        self._closed = False
        self.provider = ""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.child.pid

    @property
    def hangs(self) -> bool:
        return self._process is not None and _silent_s(self._process) > _SILENT_S

    def start(self) -> None:
        """See `WorkerHandle.start`; does nothing while the child works."""
        self._started()

    def _started(self) -> _Process:
        with self._starting:
            process = self._process
            if process is not None and process.is_open and not process.has_ended:
                return process
            self._end()
            threads = self._settings.threads
            with self._lock:
                if self._closed or exit_code():
                    raise WorkerLost(f"{self.name}: is closed")
                try:
                    child = Child(work, {} if threads is None else {"OMP_NUM_THREADS": str(threads)})
                except OSError as error:
                    raise WorkerLost(f"{self.name}: its process cannot be started ({error})") from error
                self._process = process = _Process(child)
            threading.Thread(target=self._read, args=(process,), name=f"events of {self.name}", daemon=True).start()
            self.provider = self._answer(process, _Call(""), self._settings, lambda _: None)["provider"]
            process.is_open = True
            return process

    def run(self, task: Task, on_progress: Callable[[Progress], None]) -> Done:
        """See `WorkerHandle.run`. An error of `on_progress` cancels the task, and is raised when that has ended."""
        with self._gate.entered(alone=self._alone):
            process = self._started()  # again, if it has ended since its last clip
            done: Done = self._answer(process, _Call(task.id), task, on_progress)["done"]
        return done

    def cancel(self, task_id: str) -> None:
        """See `WorkerHandle.cancel`."""
        process = self._process
        with self._lock:
            for number, call in process.calls.items() if process is not None else ():
                if process is not None and call.task_id == task_id:
                    call.canceled_s = min(call.canceled_s, time.monotonic())
                    process.child.send((number, None))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.child.end(_PATIENCE_S)

    def _answer(self, process: _Process, call: _Call, order: Any, on_progress: Callable[[Progress], None]) -> Event:
        """Sends an order; returns the last event that answers it, or raises its error."""
        with self._lock:
            number = next(self._numbers)
            if not process.calls:
                process.heard_s = time.monotonic()
            process.calls[number] = call
            if process.has_ended:
                call.events.put(None)
            process.child.send((number, order))
        failure: BaseException | None = None
        try:
            while (event := call.events.get()) is not None:
                if "notice" in event:
                    self._on_notice(f"{self.name}: {event['notice']}")
                elif "progress" not in event:
                    return self._checked(process, event, failure)
                elif failure is None:
                    try:
                        on_progress(event["progress"])
                    except BaseException as error:  # noqa: BLE001 -- raised when the child has stopped
                        failure = error
                        self.cancel(call.task_id)
        finally:
            with self._lock:
                del process.calls[number]
        ended = process.child.wait()
        if self._closed:
            raise WorkerLost(f"{self.name}: was closed")
        if process.problem:
            lost = WorkerLost(f"{self.name}: {process.problem}")
            lost.cause = process.cause is call
            raise lost
        raise WorkerLost(f"{self.name}: its process ended with {ended}: {ended.last_error_line or 'no message'}")

    def _checked(self, process: _Process, event: Event, failure: BaseException | None) -> Event:
        error = event["error"]
        if isinstance(error, WorkerLost):
            process.is_open = False  # it ends
            error = WorkerLost(f"{self.name}: {error}")
        if failure is not None or error is not None:
            raise failure or error
        return event

    def _read(self, process: _Process) -> None:
        """In a thread: gives events to the calls that they answer, until the child ends."""
        for event in process.child.events(partial(self._watch, process)):
            process.heard_s = time.monotonic()
            with self._lock:
                for number, call in process.calls.items():
                    if number == event.get("number") or ("notice" in event and not process.is_open):
                        call.events.put(event)
        with self._lock:
            process.has_ended = True
            for call in process.calls.values():
                call.events.put(None)

    def _watch(self, process: _Process) -> None:
        """Ends a child that hangs, where nothing else helps, or that takes too much memory."""
        with self._lock:
            calls = list(process.calls.values())
        canceled_s = min((call.canceled_s for call in calls), default=inf)
        silent_s, canceled = _silent_s(process), canceled_s < inf
        if silent_s > (_SILENT_S if canceled else _HUNG_S) or time.monotonic() - canceled_s > _OBEYS_S:
            process.problem = "did not obey a cancel" if canceled else f"did not answer for {silent_s:.0f} s"
            process.problem += ", and was ended"
            process.child.end()
        elif process.is_open and calls and process.child.memory_bytes > self._settings.most_bytes:
            most = f"more than {self._settings.most_bytes / 1e9:.2g} GB of memory, the most for a worker here"
            process.problem = f"the clip needs {most}; give one with smaller pictures, or fewer --workers"
            self._alone = len(calls) > 1  # until it is known which of them needs so much
            process.cause = None if self._alone else calls[0]
            process.child.end()


def _silent_s(process: _Process) -> float:
    """For how long a child has sent nothing although it works."""
    return time.monotonic() - process.heard_s if process.calls else 0.0


class Lane:
    """A `WorkerHandle` for one of the clips that a `LocalWorker` syncs at a time."""

    def __init__(self, name: str, worker: LocalWorker) -> None:
        self.name, self._worker = name, worker
        self.start, self.run, self.cancel, self.close = worker.start, worker.run, worker.cancel, worker.close

    @property
    def provider(self) -> str:
        """See `WorkerHandle.provider`."""
        return self._worker.provider

    @property
    def hangs(self) -> bool:
        return self._worker.hangs


def work(orders: Iterator[Any], emit: Emit) -> None:
    """In the child: takes orders in the main thread, which so handles signals at once; others carry them out."""
    from latentsync_trt.sync.threads import tune_process

    tune_process()
    # Ctrl-C reaches this process, too, but its parent decides; other signals end it without its files.
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), lambda number, _: end_process(128 + number))
    workers, running = list[Worker](), dict[int, threading.Event]()
    threading.Thread(target=_show_life, args=(running, emit), name="alive", daemon=True).start()
    for number, order in orders:
        if order is not None:
            running[number] = threading.Event()
            arguments = number, order, workers, running, emit
            threading.Thread(target=_carry_out, args=arguments, name=f"order {number}", daemon=True).start()
        elif number in running:  # else it has just ended
            running[number].set()


def _carry_out(
    number: int, order: WorkerSettings | Task, workers: list[Worker], running: dict[int, threading.Event], emit: Emit
) -> None:
    """Opens a worker or runs a task on it; ends the process when it cannot run another."""
    answer: Event = {"error": None}
    try:
        try:
            if isinstance(order, WorkerSettings):
                workers.append(Worker(order, lambda text: emit(notice=text)))
                answer["provider"] = workers[0].provider
            else:
                answer["done"] = workers[0].run(order, partial(_report, emit, number), running[number])
        except LatentSyncError as failure:
            answer["error"] = failure
        except Exception as failure:  # noqa: BLE001 -- the parent reports it
            answer["error"] = LatentSyncError(one_line(failure, ["batch"])[0])
        del running[number]
        emit(number=number, **answer)
    except BaseException:  # noqa: BLE001 -- the parent would wait forever
        traceback.print_exc()
        end_process(1)
    if not workers or isinstance(answer["error"], WorkerLost):
        end_process(1)


def _show_life(running: dict[int, threading.Event], emit: Emit) -> None:
    while True:
        if running:
            emit(alive=True)
        time.sleep(_ALIVE_S)


def _report(emit: Emit, number: int, progress: Progress) -> None:
    emit(number=number, progress=replace(progress, picture=None))
