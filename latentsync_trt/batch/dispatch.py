"""Gives waiting tasks to workers: one thread per worker, and a task of a worker that is lost runs again."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from latentsync_trt.batch.tasks import (
    Canceled,
    CanceledEvent,
    Done,
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    Task,
    WorkerHandle,
    WorkerLost,
    WorkerState,
)
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.types import Progress

# Windows delivers Ctrl-C only between waits.
_POLL_S = 0.2
_LEAVE_S = 5.0


class Dispatcher:
    """Runs tasks on workers, in the order in which they were submitted; all methods are thread-safe.

    Workers start at once. A lost worker starts again, and its task is the next to run, until it has had `attempts`. A
    worker is given up when it is lost `attempts` times in a row while it starts, or when its settings cannot work.
    """

    def __init__(
        self, handles: Sequence[WorkerHandle], on_event: Callable[[Event], None], *, attempts: int = 3
    ) -> None:
        """`on_event`: called from several threads, for one task or worker in order; an error for `Started` fails it."""
        self._handles, self._emit, self._attempts = tuple(handles), on_event, attempts
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Task, int]] = deque()
        """Tasks with the number of their next attempt."""
        self._idle: list[WorkerHandle] = []
        self._running: dict[str, WorkerHandle] = {}
        self._to_cancel: set[str] = set()
        self._pending, self._workers = 0, len(self._handles)
        self._closing = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._serve, args=(handle,), name=handle.name, daemon=True)
            for handle in self._handles
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task, *, attempts_before: int = 0) -> None:
        with self._changed:
            self._waiting.append((task, attempts_before + 1))
            self._pending += 1
            self._changed.notify_all()

    def cancel(self, task_id: str) -> bool:
        """Removes a waiting task, or asks the worker of a running one to stop; False if it is neither."""
        with self._changed:
            waiting = next((each for each in self._waiting if each[0].id == task_id), None)
            handle = self._running.get(task_id)
            if waiting is not None:
                self._waiting.remove(waiting)
            elif handle is not None:
                self._to_cancel.add(task_id)
        if waiting is not None:
            self._end(CanceledEvent(task_id))
        elif handle is not None:
            handle.cancel(task_id)
        return waiting is not None or handle is not None

    def wait(self) -> None:
        """Returns when every submitted task has ended; raises the last worker's error if no worker is left."""
        with self._changed:
            while self._pending and self._workers and not self._closing.is_set():
                self._changed.wait(_POLL_S)
            if self._pending and not self._workers and self._error is not None:
                raise self._error

    def close(self) -> None:
        """Ends all workers. Tasks that wait or run get no further event."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        if self._handles:
            with ThreadPoolExecutor(len(self._handles)) as pool:
                list(pool.map(lambda handle: handle.close(), self._handles))
        end_s = time.monotonic() + _LEAVE_S
        for thread in self._threads:
            thread.join(max(end_s - time.monotonic(), 0))

    def _serve(self, handle: WorkerHandle) -> None:
        """Starts a worker and gives it tasks until it cannot work or the dispatcher closes; runs in a thread."""
        try:
            while self._start(handle):
                lost = False
                while not lost and (attempt := self._next(handle)) is not None:
                    lost = self._try(handle, *attempt)
        except BaseException as error:  # noqa: BLE001 -- of `on_event` or a bug: `wait` raises it
            with self._changed:
                self._error, self._workers = error, 0
            with suppress(Exception):  # it may be `on_event` that fails
                self._emit(WorkerState(handle.name, "closed", f"{type(error).__name__}: {error}"))
        finally:
            with self._changed:
                self._workers = max(self._workers - 1, 0)
                self._changed.notify_all()

    def _start(self, handle: WorkerHandle) -> bool:
        """Starts a worker; False if it cannot work, or the dispatcher closes."""
        left, reason = self._attempts, ""
        while left and not self._closing.is_set():
            self._emit(WorkerState(handle.name, "starting"))
            try:
                handle.start()
            except LatentSyncError as error:
                if self._closing.is_set():
                    break
                self._error, reason = error, str(error)
                self._emit(WorkerState(handle.name, "lost", reason))
                left = left - 1 if isinstance(error, WorkerLost) else 0
            else:
                self._emit(WorkerState(handle.name, "ready"))
                return True
        self._emit(WorkerState(handle.name, "closed", "" if left else reason))
        return False

    def _next(self, handle: WorkerHandle) -> tuple[Task, int] | None:
        """Waits for a task; None when the dispatcher closes."""
        with self._changed:
            self._idle.append(handle)
            self._changed.wait_for(lambda: self._closing.is_set() or (self._waiting and self._next_idle() is handle))
            self._idle.remove(handle)
            if self._closing.is_set():
                return None
            attempt = self._waiting.popleft()
            self._running[attempt[0].id] = handle
            self._changed.notify_all()
            return attempt

    def _next_idle(self) -> WorkerHandle:
        """The idle worker on the device that runs the fewest tasks."""
        busy = Counter(_device(each) for each in self._running.values())
        return min(self._idle, key=lambda each: busy[_device(each)])

    def _try(self, handle: WorkerHandle, task: Task, attempt: int) -> bool:
        """Runs a task; returns whether the worker was lost."""
        try:
            self._emit(Started(task.id, handle.name, attempt))
            done = self._run(handle, task)
        except WorkerLost as error:
            if not self._closing.is_set():
                self._emit(WorkerState(handle.name, "lost", str(error)))
                self._lost(handle, task, attempt, error)
            return True
        except Canceled:
            if not self._closing.is_set():
                self._end(CanceledEvent(task.id))
        except LatentSyncError as error:
            self._end(Failed(task.id, handle.name, str(error), error.usage, again=False))
        else:
            self._end(Finished(task.id, handle.name, done))
        self._emit(WorkerState(handle.name, "ready"))
        return False

    def _run(self, handle: WorkerHandle, task: Task) -> Done:
        if task.id in self._to_cancel:
            raise Canceled(f"{task.id}: canceled")
        self._emit(WorkerState(handle.name, "running", task.id))

        def moved(progress: Progress) -> None:
            self._emit(Moved(task.id, handle.name, progress))
            if task.id in self._to_cancel:  # it was canceled before the worker had it
                handle.cancel(task.id)

        return handle.run(task, moved)

    def _lost(self, handle: WorkerHandle, task: Task, attempt: int, error: WorkerLost) -> None:
        """Queues the task of a lost worker again, before all others, if it may run again."""
        again = attempt < self._attempts and not error.cause
        failed = Failed(task.id, handle.name, str(error), error.usage, again)
        if task.id in self._to_cancel:
            self._end(CanceledEvent(task.id))
        elif not failed.again:
            self._end(failed)
        else:
            self._emit(failed)
            with self._changed:
                self._running.pop(task.id)
                self._waiting.appendleft((task, attempt + 1))
                self._changed.notify_all()

    def _end(self, event: CanceledEvent | Failed | Finished) -> None:
        """Emits a task's last event, after which it cannot be canceled."""
        with self._changed:
            self._running.pop(event.task_id, None)
            self._to_cancel.discard(event.task_id)
        self._emit(event)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()


def _device(handle: WorkerHandle) -> str:
    return handle.name.partition(".")[0]
