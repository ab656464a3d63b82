"""A worker of this machine: a child process, which may crash or be killed and be started again."""

import threading
from collections.abc import Callable
from typing import Any

from latentsync_trt.batch.tasks import ReportValues, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Child, ChildLost, ChildProcess, MemoryExceeded
from latentsync_trt.child_main import OnProgress
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.stopping import exit_code
from latentsync_trt.types import NoticeCallback, ProgressCallback

HUNG_S = 300.0
"""A worker that sends nothing for so long while it works is ended, and its tasks run again."""
CANCEL_S = 30.0
"""A worker that does not obey a cancel within this time is ended, too."""


class WorkerOrders:
    """Carries out a worker's orders, in its process: `WorkerSettings` at first, which open it, then
    tasks.
    """

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        """The one worker of this process; none before it is open."""

    def __call__(self, order: WorkerSettings | Task, on_progress: OnProgress) -> Any:
        """Returns the provider on which the worker opened its bundle, or the report of a task."""
        if isinstance(order, WorkerSettings):
            from latentsync_trt.sync.threads import tune_process

            tune_process()
            self._workers = [Worker(order, on_progress)]
            return self._workers[0].provider
        return self._workers[0].run(order, on_progress)


class WorkerHandle:
    """The driver's side of a worker; any thread may call it. The child ends with this process,
    however that ends.
    """

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        on_notice: NoticeCallback = lambda _: None,
        *,
        at_once: int = 1,
        new_child: Callable[[], Child] | None = None,
    ) -> None:
        """
        Args:
            on_notice: called within `start` with what takes long there.
            at_once: how many tasks the worker takes at a time.
            new_child: starts what carries out `WorkerOrders`.
        """
        self.name = name
        self.at_once = at_once
        self.provider = ""
        """On which it opened its bundle; empty before."""
        self._settings = settings
        self._on_notice = on_notice
        self._new_child = new_child or self._local_child
        self._starting = threading.Lock()
        self._child: Child | None = None
        self._closed = threading.Event()

    @property
    def pid(self) -> int | None:
        if self._child is None:
            return None
        return self._child.pid

    @property
    def hangs(self) -> bool:
        """Whether it works and has sent nothing for a tenth of the time after which it is ended."""
        return self._child is not None and self._child.is_silent

    def start(self) -> Child:
        """Starts the child, unless it runs; returns it when it has the bundle open. Raises
        `WorkerLost`, or `LatentSyncError` if the settings cannot work.
        """
        with self._starting:
            child = self._child
            if child is not None:
                if not child.is_lost:
                    return child
                child.end()  # returns when it has freed its memory
            if self._closed.is_set() or exit_code():
                raise WorkerLost(f"{self.name}: is closed")
            self._child = child = self._new_child()
            if self._closed.is_set():  # meanwhile
                child.end()
            try:
                self.provider = self._call(child, self._settings, self._on_notice)
            except LatentSyncError as error:
                child.end(error)
                raise
            return child

    def run(
        self, task: Task, on_progress: ProgressCallback, canceled: threading.Event
    ) -> ReportValues:
        """Syncs a clip, as `Worker.run`; raises also what `on_progress` does."""
        child = self.start()
        limits = {"is_canceled": canceled.is_set, "most_bytes": self._settings.most_bytes}
        try:
            return dict(self._call(child, task, on_progress, **limits))
        except MemoryExceeded as error:
            text = f"{error}, the most for a worker here"
            if error.calls > 1:
                self.at_once = 1
                again = f"{self.name}: {text}; its clips run again, one at a time"
                raise WorkerLost(again) from error
            cure = "give one with smaller pictures, or fewer --workers"
            raise TaskError(f"the clip {text}; {cure}") from error

    def close(self) -> None:
        """Ends the worker, also within a task, which then raises; may be called again."""
        self._closed.set()
        if self._child is not None:
            self._child.end()

    def _local_child(self) -> Child:
        environment = {}
        if self._settings.threads is not None:
            environment = {"OMP_NUM_THREADS": str(self._settings.threads)}
        return Child(ChildProcess(WorkerOrders(), environment), HUNG_S, CANCEL_S)

    def _call(self, child: Child, order: Any, on_progress: OnProgress, **limits: Any) -> Any:
        """Calls the child; after `WorkerLost` it takes no more orders, and its other tasks end."""
        try:
            return child.call(order, on_progress, **limits)
        except MemoryExceeded:
            raise
        except ChildLost as error:
            raise WorkerLost(f"{self.name}: {error}", crash=error.ended.crash) from error
        except WorkerLost as error:
            child.end(ChildLost(*error.args))
            raise WorkerLost(f"{self.name}: {error}") from error
