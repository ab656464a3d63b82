"""What runs on a node of a Ray cluster."""

import os
import socket
import threading
from dataclasses import asdict
from typing import Any

from latentsync_trt.batch import store
from latentsync_trt.batch.tasks import Task, WorkerSettings
from latentsync_trt.types import Progress
from latentsync_trt.version import __version__

Event = dict[str, Any]


class Actor:
    """A `Worker` whose methods take and return plain values, for `ray_workers`.

    `cancel`, `look` and `leave` are called while `open` or `run` is.
    """

    def __init__(self) -> None:
        self._worker: Any = None
        self._progress: Event | None = None
        self._notice = ""
        self._number, self._cancelled_number = 0, 0
        self._cancelled = threading.Event()

    def place(self) -> Event:
        """Where this is, and what is installed there."""
        return {"node": socket.gethostname(), "pid": os.getpid(), "version": __version__}

    def open(self, settings: Event) -> Event:
        """Opens the bundle; returns an event of `child.opened`."""
        from latentsync_trt.batch.child import opened
        from latentsync_trt.batch.worker import Worker
        from latentsync_trt.sync.threads import tune_process

        tune_process()
        self._worker = Worker(WorkerSettings.from_json(settings), self._note)
        return opened(self._worker)

    def run(self, number: int, task_json: Event) -> Event:
        """Runs a task; returns an event of `child.outcome`."""
        from latentsync_trt.batch.child import outcome

        self._progress, self._number = None, number
        self._cancelled = threading.Event()
        if number <= self._cancelled_number:  # the other thread was faster
            self._cancelled.set()
        task = Task.from_json(task_json)
        for file, written in task.files():
            path = store.local_of(file)
            if path is not None and not (path.parent if written else path).exists():
                where = f"is not on node {socket.gethostname()}, where this ran"
                return {"failed": f"{path}: {where}; use a folder that all nodes share, or a URL", "usage": True}
        return outcome(self._worker, task, self._show, self._cancelled)

    def cancel(self, number: int) -> None:
        """Stops a run at its next progress."""
        self._cancelled_number = number
        if number == self._number:
            self._cancelled.set()

    def look(self) -> Event:
        """The latest progress and notice."""
        return {"progress": self._progress, "notice": self._notice}

    def leave(self) -> None:
        """Removes unfinished files and ends the process."""
        from latentsync_trt.child import end_process

        end_process(0)

    def _show(self, progress: Progress) -> None:
        self._progress = asdict(progress)

    def _note(self, text: str) -> None:
        self._notice = text
