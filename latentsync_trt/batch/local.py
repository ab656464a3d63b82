"""A worker of this machine: a child process, which may crash or be killed and be started again."""

import threading
from collections.abc import Callable

from latentsync_trt.batch.tasks import Done, Task, WorkerLost, WorkerSettings
from latentsync_trt.child import Child, Event
from latentsync_trt.stopping import requested
from latentsync_trt.types import Progress

_MODULE = "latentsync_trt.batch.child"
# The child removes unfinished files meanwhile.
_PATIENCE_S = 2.0


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

    @property
    def pid(self) -> int | None:
        """Returns the child's process number; None before `start`."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """See `WorkerHandle.start`."""
        self._end()
        with self._lock:
            if self._closed or requested():
                raise WorkerLost(f"{self.name}: is closed")
            self._child = child = self._new_child()
        child.send({"settings": self._settings})
        for event in child.events():
            if "notice" not in event:
                self._raise_error(event)
                return
            self._on_notice(f"{self.name}: {event['notice']}")
        raise self._lost(child)

    def run(self, task: Task, on_progress: Callable[[Progress], None]) -> Done:
        """See `WorkerHandle.run`. An error of `on_progress` cancels the task."""
        with self._lock:
            if self._child is None:
                raise WorkerLost(f"{self.name}: is not started")
            child, number = self._child, self._number + 1
            self._number, self._running = number, task.id
            child.send({"run": number, "task": task})
        try:
            return self._result(child, number, on_progress)
        except BaseException:
            self.cancel(task.id)  # does nothing where it has ended
            raise
        finally:
            self._running = ""

    def cancel(self, task_id: str) -> None:
        """See `WorkerHandle.cancel`."""
        with self._lock:
            if self._child is not None and self._running == task_id:
                self._child.send({"cancel": self._number})

    def close(self) -> None:
        """See `WorkerHandle.close`."""
        with self._lock:
            self._closed = True
        self._end()

    def _new_child(self) -> Child:
        threads = self._settings.threads
        try:
            return Child(_MODULE, {} if threads is None else {"OMP_NUM_THREADS": str(threads)})
        except OSError as error:
            raise WorkerLost(f"{self.name}: its process cannot be started ({error})") from error

    def _end(self) -> None:
        if self._child is not None:
            self._child.end(_PATIENCE_S)

    def _result(self, child: Child, number: int, on_progress: Callable[[Progress], None]) -> Done:
        for event in child.events():
            if event.get("run") != number:  # of an earlier task, whose `on_progress` failed
                continue
            if "progress" in event:
                on_progress(event["progress"])
                continue
            self._raise_error(event)
            done: Done = event["done"]
            return done
        raise self._lost(child)

    def _raise_error(self, event: Event) -> None:
        error = event.get("error")
        if isinstance(error, WorkerLost):
            raise WorkerLost(f"{self.name}: {error}")
        if error is not None:
            raise error

    def _lost(self, child: Child) -> WorkerLost:
        ended = child.wait()
        if self._closed:
            return WorkerLost(f"{self.name}: was closed")
        return WorkerLost(f"{self.name}: its process ended with {ended}: {ended.last_error_line or 'no message'}")
