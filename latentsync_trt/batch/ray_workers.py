"""Workers on a Ray cluster: each is an actor that holds one `Worker`.

Actors are created when a worker starts, with what they need, so that an autoscaling cluster adds nodes for them. They
end with this process. Ray's own messages are replaced by errors and notices of this package.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlsplit

from latentsync_trt.batch.tasks import Canceled, Done, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import end_process
from latentsync_trt.errors import InputError, LatentSyncError, MissingDependency
from latentsync_trt.notices import Notices
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Progress
from latentsync_trt.version import __version__

Notice = Callable[[str], None]

_NAMESPACE = "latentsync-trt"
_THREADS = 4
_POLL_S = 0.5
_CONNECT_S = 30.0
_REACH_S = 5.0
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a worker reserves of a node."""

    gpus: int
    cpus: int

    def __str__(self) -> str:
        return f"a GPU and {self.cpus} CPU cores" if self.gpus else f"{self.cpus} CPU cores"


class RayWorker:
    """A `WorkerHandle` whose actor may be lost with its node and be started again elsewhere."""

    at_once, hangs, provider = 1, False, ""  # Ray ends actors of nodes that do not answer

    def __init__(self, name: str, cluster: "Cluster", settings: WorkerSettings, needs: Needs) -> None:
        self.name, self.pid = name, 0
        self._cluster, self._settings, self._needs = cluster, settings, needs
        self._actor: Any = None
        self._node, self._closed = "", False

    def start(self) -> None:
        """See `WorkerHandle.start`. Waits without limit for a node that has what the worker needs, with a notice."""
        self._end()
        with self._cluster.translated(self.name):
            make = self._cluster.ray.remote(
                num_cpus=self._needs.cpus,
                num_gpus=self._needs.gpus,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_THREADS,
            )
            self._actor = actor = make(Actor).remote()
        cure = "if no node gets them, stop and give less with --workers"
        missing = f"workers wait for {self._needs} each on the Ray cluster; {cure}"
        place = self._result(actor.place.remote(), lambda: self._cluster.notices.add(missing))
        self._node, self.pid, version = place
        if version != __version__:
            versions = f"has latentsync-trt {version}, and this machine {__version__}"
            raise InputError(f"node {self._node}: {versions}; install the same version on both")
        error = self._result(actor.open.remote(self._settings), self._poll)
        if error is not None:
            raise type(error)(f"node {self._node}: {error}", usage=error.usage)

    def run(self, task: Task, on_progress: Callable[[Progress], None], canceled: threading.Event) -> Done:
        """See `WorkerHandle.run`. An error of `on_progress` cancels the task."""

        def wait() -> None:
            if canceled.is_set():
                self._actor.cancel.remote(task.id)
            self._poll(on_progress)

        try:
            done, error = self._result(self._actor.run.remote(task), wait)
        except WorkerLost:
            self._end()  # if only the connection was lost, it still locks the output, and the task runs again at once
            raise
        except BaseException:
            with suppress(LatentSyncError), self._cluster.translated(self.name):
                self._actor.cancel.remote(task.id)
            raise
        if done is None:
            raise type(error)(f"node {self._node}: {error}", usage=error.usage)
        return cast(Done, done)

    def close(self) -> None:
        self._closed = True
        self._end()

    def _end(self) -> None:
        """Ends the actor, which may remove its unfinished files first."""
        actor, node, self._actor, self._node = self._actor, self._node, None, ""
        if actor is None:
            return
        with suppress(Exception):  # it has ended, or the cluster has
            if node:
                self._cluster.ray.wait([actor.leave.remote()], timeout=_PATIENCE_S)
            self._cluster.ray.kill(actor)

    def _result(self, answer: Any, on_wait: Callable[[], None]) -> Any:
        """Waits for an answer of the actor, and calls `on_wait` meanwhile; raises `WorkerLost` if there is none."""
        with self._cluster.translated(f"{self.name}{self._node and f' on {self._node}'}"):
            while not self._cluster.ray.wait([answer], timeout=_POLL_S)[0]:
                if self._closed:
                    raise WorkerLost(f"{self.name}: was closed")
                on_wait()
            return self._cluster.ray.get(answer)

    def _poll(self, on_progress: Callable[[Progress], None] = lambda _: None) -> None:
        notices, progress = self._result(self._actor.news.remote(), lambda: None)
        for notice in notices:
            self._cluster.notices.add(f"node {self._node}: {notice}")
        if progress is not None:
            on_progress(progress)


class Actor:
    """Holds a worker on a node of a Ray cluster. Other threads call `news` and `cancel` while one calls `run`."""

    def __init__(self) -> None:
        tune_process()
        self._running = threading.Lock()
        self._task_id, self._canceled = "", threading.Event()
        self._notices: list[str] = []
        self._progress: Progress | None = None

    def place(self) -> tuple[str, int, str]:
        """Returns the name of the node, the number of the process and the version of the package there."""
        return socket.gethostname(), os.getpid(), __version__

    def open(self, settings: WorkerSettings) -> LatentSyncError | None:
        """Opens the worker; returns why that failed."""
        try:
            self._worker = Worker(settings, self._notices.append)
        except LatentSyncError as error:
            return error
        return None

    def run(self, task: Task) -> tuple[Done | None, LatentSyncError | None]:
        """Syncs a clip, after an earlier one that was canceled; returns the result, or why it failed."""
        with self._running:
            self._task_id, self._canceled = task.id, threading.Event()
            try:
                return self._worker.run(task, self._note, self._canceled), None
            except (TaskError, Canceled, WorkerLost) as error:
                return None, error

    def news(self) -> tuple[list[str], Progress | None]:
        """Returns notices, and the last progress since the last call."""
        notices, self._notices[:] = self._notices[:], []
        progress, self._progress = self._progress, None
        return notices, progress

    def cancel(self, task_id: str) -> None:
        """Stops the task if it runs here."""
        if self._task_id == task_id:
            self._canceled.set()

    def leave(self) -> None:
        """Removes unfinished files and ends the process."""
        end_process(0)

    def _note(self, progress: Progress) -> None:
        self._progress = replace(progress, picture=None)


class Cluster:
    """This process' connection to a Ray cluster, shared by its workers."""

    def __init__(self, address: str, on_notice: Notice) -> None:
        try:
            import ray
        except ImportError as error:
            cure = 'pip install "latentsync-trt[cluster]"'
            raise MissingDependency(f"--ray {address}: needs the extra cluster; {cure} ({error})") from error
        self.ray: Any = ray
        self._name, self.notices = address, Notices(on_notice)
        if not ray.is_initialized():
            self._connect(address)

    def _connect(self, address: str) -> None:
        # Ray prints the ends of actors to stdout, which may be JSON, and has no setting for that.
        self.ray._private.worker._worker_logs_enabled = False
        failures: list[BaseException] = []

        def connect() -> None:
            try:
                if ":" in address:
                    _reach(address)
                self.ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level="error")
                # Imports what Ray loads at its first use: beside imports of other threads, that fails.
                self.ray.put(None)
            except BaseException as error:  # noqa: BLE001 -- raised below
                failures.append(error)

        # In the main thread, Ray would replace the handler of SIGTERM. It does not stop to try a cluster that is gone.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(_CONNECT_S)
        if thread.is_alive() or failures:
            reason = _first_line(failures[0]) if failures else f"no answer within {_CONNECT_S:g} s"
            cure = "start one with `ray start --head`, or give its host:port, or ray://host:10001 from another machine"
            raise InputError(f"--ray {self._name}: no Ray cluster ({reason}); {cure}") from next(iter(failures), None)

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turns errors of Ray into `WorkerLost`, or `InputError` where another attempt is useless."""
        try:
            yield
        except self.ray.exceptions.RayError as error:
            if "failed to import" in str(error) or "No module named" in str(error):
                cure = f"install latentsync-trt {__version__} with the extra cluster there"
                raise InputError(f"{what}: the node cannot load latentsync_trt; {cure}") from error
            raise WorkerLost(f"{what}: {_first_line(error)}") from error
        except ConnectionError as error:  # of `ray://`
            raise WorkerLost(f"{what}: the cluster does not answer: {error}") from error


def _reach(address: str) -> None:
    """Raises OSError if nothing answers at "host:port" or "ray://host:port", and ValueError if that is neither."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    socket.create_connection((parts.hostname, parts.port), _REACH_S).close()


def _first_line(error: BaseException) -> str:
    """Returns Ray's message without its tables of ids and its guesses."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).partition(" Some common causes")[0]
