"""Gives waiting tasks to workers, in a thread for each that one takes at a time; those of a lost
worker run again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller

from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.remote_files import without_secrets
from latentsync_trt.batch.tasks import (
    CanceledEvent,
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    Task,
    WorkerLost,
    WorkerState,
)
from latentsync_trt.child_main import CallCanceled
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.stopping import exit_code
from latentsync_trt.types import Progress

ATTEMPTS = 3
"""How often a task runs whose worker is lost each time, and how often a worker tries to start."""
_TICK_S = 0.2
"""Time between two calls of `on_poll`. Windows delivers Ctrl-C only between waits."""
_LEAVE_S = 5.0
"""Time for the threads of workers to end."""


@dataclass(slots=True, eq=False)
class _Job:
    """A task that waits or runs."""

    task: Task
    attempt: int
    worker: WorkerHandle | None = None
    """The worker that has the task; None while it waits."""
    alone: bool = False
    """Whether a worker was lost with it, so that no other task runs beside it, to be lost, too."""
    crash: str = ""
    """What ended that worker, as in `WorkerLost`."""
    canceled: threading.Event = field(default_factory=threading.Event)


def slot_names(worker: WorkerHandle) -> list[str]:
    """Returns the names under which events tell of a worker, one for each task at a time."""
    if worker.at_once > 1:
        return [f"{worker.name}.{number + 1}" for number in range(worker.at_once)]
    return [worker.name]


class Dispatcher:
    """Runs tasks on workers, which start at once, in the order of submission; all methods are
    thread-safe.

    A lost worker starts again, and its tasks are the next to run, one at a time. A task fails that
    has lost `ATTEMPTS` workers, or two in a row by the same crash; a worker is given up that
    `ATTEMPTS` starts lose.
    """

    def __init__(self, workers: Sequence[WorkerHandle], on_event: Callable[[Event], None]) -> None:
        """`on_event`: called from several threads, for one task or worker in order; an error for
        `Started` fails it.
        """
        self._workers = tuple(workers)
        self._emit = on_event
        self._changed = threading.Condition()
        # in the order of submission, so one that runs again is the next
        self._jobs = dict[str, _Job]()
        self._pending = 0
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(worker, slot), name=slot, daemon=True)
            for worker in self._workers
            for slot in slot_names(worker)
        ]
        self._slots = len(self._threads)
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task, *, attempts_before: int = 0) -> None:
        job = _Job(task, attempts_before + 1)
        with self._changed:
            self._jobs[task.id] = job
            self._pending += 1
            self._changed.notify_all()

    def cancel(self, task_id: str) -> bool:
        """Removes a waiting task, or asks the worker of a running one to stop; False if it is
        neither.
        """
        with self._changed:
            job = self._jobs.get(task_id)
            if job is None:
                return False
            job.canceled.set()
            if job.worker is not None:
                return True
            del self._jobs[task_id]
        self._end(CanceledEvent(task_id))
        return True

    def wait(self, on_poll: Callable[[], object] = lambda: None) -> None:
        """Returns when every task has ended; raises KeyboardInterrupt on a signal, or the last
        worker's error. `on_poll`: called several times a second meanwhile.
        """

        def is_over() -> bool:
            return not self._pending or not self._slots or self._stops()

        with self._changed:
            ended = self._changed.wait_for(is_over, _TICK_S)
        while not ended:
            on_poll()
            with self._changed:
                ended = self._changed.wait_for(is_over, _TICK_S)
        if exit_code():  # Python drops the error of a signal that arrives within a destructor
            raise KeyboardInterrupt
        if self._pending and not self._slots and self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends all workers. Tasks that wait or run get no further event."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        with ThreadPoolExecutor(len(self._workers) or 1) as pool:
            list(pool.map(methodcaller("close"), self._workers))
        end_s = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(end_s - time.monotonic(), 0))

    def _serve(self, worker: WorkerHandle, slot: str) -> None:
        """In a thread: lets a worker work, and emits its end."""
        try:
            reason = self._work(worker, slot)
            if self._stops():
                reason = ""
            self._emit(WorkerState(slot, "closed", reason))
        except BaseException as error:  # noqa: BLE001 -- of `on_event` or a bug: `wait` raises it
            self._error = error
            self._slots = 0
            with suppress(Exception):  # it may be `on_event` that fails
                self._emit(WorkerState(slot, "closed", f"{type(error).__name__}: {error}"))
        finally:
            with self._changed:
                self._slots = max(self._slots - 1, 0)
                self._changed.notify_all()

    def _work(self, worker: WorkerHandle, slot: str) -> str:
        """Starts a worker, gives it tasks, and starts it again where it is lost, until all stops;
        else returns why it cannot start.
        """
        failures = 0
        reason = ""
        while failures < ATTEMPTS and not self._stops():
            self._emit(WorkerState(slot, "starting"))
            try:
                worker.start()
            except LatentSyncError as error:
                failures += 1
                if not isinstance(error, WorkerLost):  # another attempt is useless
                    failures = ATTEMPTS
                if not self._stops():
                    self._error = error
                    reason = str(error)
                    self._emit(WorkerState(slot, "lost", reason))
                continue
            failures = 0
            is_there = True
            while is_there:
                self._emit(WorkerState(slot, "ready"))
                job = self._next(worker)
                is_there = job is not None and self._try(worker, slot, job)
        return reason

    def _stops(self) -> bool:
        """Returns whether all stops, as the dispatcher closes or a signal has asked the command to
        end: what breaks off by that is no failure.
        """
        return self._closing.is_set() or bool(exit_code())

    def _next(self, worker: WorkerHandle) -> _Job | None:
        """Waits until a task waits and the worker may take it; None when all stops."""
        with self._changed:
            while not self._stops():
                jobs = self._jobs.values()
                job = next((each for each in jobs if each.worker is None), None)
                if job is not None:
                    running = [each for each in jobs if each.worker is worker]
                    is_alone = job.alone or any(each.alone for each in running)
                    if len(running) < (1 if is_alone else worker.at_once):
                        job.worker = worker
                        return job
                self._changed.wait()
        return None

    def _try(self, worker: WorkerHandle, slot: str, job: _Job) -> bool:
        """Runs a task; returns whether the worker is still there, else queues the task again,
        before all others.
        """
        task = job.task
        event: CanceledEvent | Failed | Finished

        def on_progress(progress: Progress) -> None:
            self._emit(Moved(task.id, slot, progress))

        try:
            self._emit(Started(task.id, slot, job.attempt))
            self._emit(WorkerState(slot, "running", task.id))
            event = Finished(task.id, slot, worker.run(task, on_progress, job.canceled))
        except WorkerLost as error:
            if not self._stops():
                self._emit(WorkerState(slot, "lost", str(error)))
                self._run_again(job, slot, error)
            return False
        except CallCanceled:
            if self._stops():
                return True
            event = CanceledEvent(task.id)
        except LatentSyncError as error:
            event = Failed(task.id, slot, str(error), error.usage, again=False)
        self._end(event)
        return True

    def _run_again(self, job: _Job, slot: str, error: WorkerLost) -> None:
        """Queues the task of a lost worker, before all others, unless it is canceled or another
        attempt is useless.
        """
        task = job.task
        if job.canceled.is_set():
            self._end(CanceledEvent(task.id))
            return
        message = str(error)
        again = job.attempt < ATTEMPTS
        if error.crash and error.crash == job.crash:
            message = _crashes(task, error.crash)
            again = False
        failed = Failed(task.id, slot, message, error.usage, again)
        if not again:
            self._end(failed)
            return
        self._emit(failed)
        with self._changed:
            job.attempt += 1
            job.worker = None
            job.alone = True
            job.crash = error.crash
            self._changed.notify_all()

    def _end(self, event: CanceledEvent | Failed | Finished) -> None:
        """Emits a task's last event, after which it cannot be canceled."""
        with self._changed:
            self._jobs.pop(event.task_id, None)
        self._emit(event)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()


def _crashes(task: Task, crash: str) -> str:
    """Returns the message about a task of which two workers have crashed in the same way."""
    if "SIGKILL" in crash:
        problem = "the system killed its worker twice, most likely as memory was short"
        cure = "give a clip with smaller pictures, or fewer --workers"
    else:
        problem = f"this file makes the decoder crash ({crash}, twice)"
        cure = "convert it (ffmpeg -i OLD NEW.mp4), or give another one"
    return f"{without_secrets(task.video)}: {problem}; {cure}"
