"""What runs on a node of a Ray cluster: takes the same orders as the process of `child`, and tells the same events."""

import os
import socket
import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

from latentsync_trt.batch.child import taker
from latentsync_trt.batch.tasks import Done, Task, TaskError
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Event, end_process
from latentsync_trt.remote_files import local_of
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Progress
from latentsync_trt.version import __version__


class Actor:
    """Takes orders and gives events, as `child` describes them; `send` and `leave` are called while `event` waits."""

    def __init__(self, version: str) -> None:
        """`version`: of the package where the driver runs."""
        tune_process()
        self._events = Queue[Event]()
        self._version = version
        self._take = taker(self._emit, _NodeWorker, lambda: None)
        self._emit(node=socket.gethostname(), pid=os.getpid())

    def send(self, order: Event) -> None:
        """Takes an order."""
        if self._version == __version__:
            self._take(order)
        elif "settings" in order:
            versions = f"has latentsync-trt {__version__}, and the driver {self._version}"
            self._emit(refused=f"{versions}; install the same version on both", usage=True, kind="InputError")

    def event(self) -> Event:
        """The next event; waits for it."""
        return self._events.get()

    def leave(self) -> None:
        """Removes unfinished files and ends the process."""
        end_process(0)

    def _emit(self, **fields: Any) -> None:
        self._events.put(fields)


class _NodeWorker(Worker):
    def run(self, task: Task, on_progress: Callable[[Progress], None], canceled: threading.Event) -> Done:
        """As `Worker.run`; says where it ran if a file is missing there."""
        for file, written in task.files():
            path = local_of(file)
            if path is not None and not os.path.exists(path.parent if written else path):  # noqa: PTH110 -- never raises
                where = f"is not on node {socket.gethostname()}, where this ran"
                raise TaskError(f"{path}: {where}; use a folder that all nodes share, or a URL", usage=True)
        return super().run(task, on_progress, canceled)
