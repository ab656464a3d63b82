"""Workers on a Ray cluster: each is an actor that holds one `Worker`.

Actors are created when a worker starts, with what they need, so that an autoscaling cluster adds nodes for them. They
end with this process. Ray's own messages are replaced by errors and notices of this package.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Queue
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.child import taker
from latentsync_trt.batch.local import LocalWorker
from latentsync_trt.batch.tasks import Done, Task, TaskError, WorkerLost, WorkerSettings
from latentsync_trt.batch.worker import Worker
from latentsync_trt.child import Event, end_process
from latentsync_trt.errors import InputError, LatentSyncError, MissingDependency
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.types import Progress
from latentsync_trt.version import __version__

Notice = Callable[[str], None]

_NAMESPACE = "latentsync-trt"
_THREADS = 4
_POLL_S = 0.5
_CONNECT_S = 30.0
# Ray kills a driver whose cluster is gone for 60 s.
_LOST_AFTER_S = 30.0
_CHECK_S = 5.0
_QUIET_S = 5.0
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Needs:
    """What a worker reserves of a node."""

    gpus: float
    cpus: int

    def __str__(self) -> str:
        return f"{self.gpus:g} GPUs and {self.cpus} CPU cores" if self.gpus else f"{self.cpus} CPU cores"


class RayWorker(LocalWorker):
    """A `WorkerHandle` with an actor for its child, which may be lost with its node and be started again elsewhere."""

    def __init__(self, name: str, cluster: "Cluster", settings: WorkerSettings, needs: Needs) -> None:
        super().__init__(name, settings)
        self._cluster, self._needs = cluster, needs

    def start(self) -> None:
        """See `WorkerHandle.start`. Waits without limit for a node that has what the worker needs, with a notice."""
        self._end()
        if self._cluster.lost:
            raise LatentSyncError(self._cluster.lost)
        super().start()

    def run(self, task: Task, on_progress: Callable[[Progress], None]) -> Done:
        """See `WorkerHandle.run`."""
        try:
            return super().run(task, on_progress)
        except WorkerLost:
            self._end()  # if only the connection was lost, it still locks the output, and the task runs again at once
            raise
        except TaskError as error:
            node = self._child.node if isinstance(self._child, _ActorChild) else ""
            raise TaskError(f"node {node}: {error}", usage=error.usage) from error

    def _new_child(self) -> Any:
        return _ActorChild(self.name, self._cluster, self._needs)


class _ActorChild:
    """An actor with the methods of `Child` that `LocalWorker` needs.

    `node`, `pid`: where it runs; empty before.
    """

    def __init__(self, name: str, cluster: "Cluster", needs: Needs) -> None:
        self.node, self.pid = "", 0
        self._name, self._cluster, self._needs = name, cluster, needs
        self._actor = cluster.create(needs)
        self._ended = False

    def send(self, order: Event) -> None:
        """See `Child.send`."""
        with suppress(LatentSyncError), self._cluster.translated(self._name):
            self._actor.send.remote(order)

    def events(self) -> Iterator[Event]:
        """Yields events as they arrive, but notices; raises `WorkerLost` at the end of the actor or the cluster."""
        while True:
            with self._cluster.translated(f"{self._name}{self.node and f' on {self.node}'}"):
                event = self._next()
            if "node" in event:
                self.node, self.pid = event["node"], event["pid"]
            elif "notice" in event:
                self._cluster.say_once(f"node {self.node}: {event['notice']}")
            elif "refused" in event:
                yield {**event, "refused": f"node {self.node}: {event['refused']}"}
            else:
                yield event

    def end(self, patience_s: float) -> None:
        """Ends the actor, which may remove its unfinished files first."""
        if self._ended:
            return
        self._ended = True
        with suppress(Exception):  # it has ended, or the cluster has
            if self.node and not self._cluster.lost:
                self._cluster.ray.wait([self._actor.leave.remote()], timeout=patience_s)
            if not self._cluster.lost:
                self._cluster.ray.kill(self._actor)

    def _next(self) -> Event:
        answer, start_s = self._actor.event.remote(), monotonic()
        while not self._cluster.ray.wait([answer], timeout=_POLL_S)[0]:
            if self._ended:
                raise WorkerLost(f"{self._name}: was closed")
            self._cluster.check()
            if not self.node and monotonic() - start_s > _QUIET_S:
                cure = "if no node gets them, stop and give less with --gpus-per-worker or --workers"
                self._cluster.say_once(f"workers wait for {self._needs} each on the Ray cluster; {cure}")
        return dict(self._cluster.ray.get(answer))


class Cluster:
    """This process' connection to a Ray cluster, shared by its workers. `lost`: why it has ended, empty before."""

    def __init__(self, address: str, on_notice: Notice) -> None:
        try:
            import ray
        except ImportError as error:
            cure = 'pip install "latentsync-trt[cluster]"'
            raise MissingDependency(f"--ray {address}: needs the extra cluster; {cure} ({error})") from error
        self.ray: Any = ray
        self.lost = ""
        self._name, self._on_notice, self._said = address, on_notice, set[str]()
        self._lock = threading.Lock()
        self._checked_s = self._answered_s = monotonic()
        if not ray.is_initialized():
            self._connect(address)
        client = address.startswith("ray://")  # it keeps a connection, and its errors say when that is lost
        self._gcs = "" if client else str(ray.get_runtime_context().gcs_address)

    def _connect(self, address: str) -> None:
        # Ray prints the ends of actors to stdout, which may be JSON, and has no setting for that.
        self.ray._private.worker._worker_logs_enabled = False
        failures: list[BaseException] = []

        def connect() -> None:
            try:
                if ":" in address:
                    _reach(address)
                self.ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level="error")
            except BaseException as error:  # noqa: BLE001 -- raised below
                failures.append(error)

        # In the main thread, Ray would replace the handler of SIGTERM. It does not stop to try a cluster that is gone.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(_CONNECT_S)
        if thread.is_alive() or failures:
            reason = _one_line(str(failures[0])) if failures else f"no answer within {_CONNECT_S:g} s"
            cure = "start one with `ray start --head`, or give its host:port, or ray://host:10001 from another machine"
            raise InputError(f"--ray {self._name}: no Ray cluster ({reason}); {cure}") from next(iter(failures), None)

    def nodes(self) -> list[Mapping[str, float]]:
        """Returns the resources of each living node, by Ray's names."""
        with self.translated(f"--ray {self._name}"):
            return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def create(self, needs: Needs) -> Any:
        """Returns a new actor, which waits until a node has what it needs."""
        with self.translated(f"--ray {self._name}"):
            return self.ray.remote(
                num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0, max_task_retries=0, max_concurrency=_THREADS
            )(Actor).remote(__version__)

    def check(self) -> None:
        """Raises `WorkerLost` if the head node has not answered for `_LOST_AFTER_S`; asks it every `_CHECK_S`."""
        with self._lock:
            now_s = monotonic()
            if self._gcs and now_s >= self._checked_s + _CHECK_S:
                self._checked_s = now_s
                with suppress(OSError):
                    _reach(self._gcs)
                    self._answered_s = now_s
        if self.lost or self._checked_s - self._answered_s > _LOST_AFTER_S:
            raise WorkerLost(self._lose())

    def say_once(self, text: str) -> None:
        """Gives a notice, unless there was the same one."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        self._on_notice(text)

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turns errors of Ray into `WorkerLost`, or `InputError` where another attempt is useless."""
        try:
            yield
        except self.ray.exceptions.RayError as error:
            if "failed to import" in str(error) or "No module named" in str(error):
                cure = f"install latentsync-trt {__version__} with the extra cluster there"
                raise InputError(f"{what}: the node cannot load latentsync_trt; {cure}") from error
            raise WorkerLost(f"{what}: {_one_line(str(error))}") from error
        except ConnectionError as error:  # of `ray://`
            raise WorkerLost(self._lose()) from error

    def _lose(self) -> str:
        cure = "what is done is kept: restart the cluster, and run the same command with --resume"
        self.lost = f"--ray {self._name}: the Ray cluster does not answer any more; {cure}"
        return self.lost


class Actor:
    """Runs a worker on a node of a Ray cluster; takes orders and gives events as `child`, from two threads at once."""

    def __init__(self, version: str) -> None:
        """`version`: of the package where the driver runs."""
        tune_process()
        self._events = Queue[Event]()
        self._version = version
        self._take = taker(self._emit, Worker, lambda: None)
        self._emit(node=socket.gethostname(), pid=os.getpid())

    def send(self, order: Event) -> None:
        """Takes an order."""
        if self._version == __version__:
            self._take(order)
        elif "settings" in order:
            versions = f"has latentsync-trt {__version__}, and the driver {self._version}"
            self._emit(refused=f"{versions}; install the same version on both", usage=True, kind="InputError")

    def event(self) -> Event:
        """Waits for the next event."""
        return self._events.get()

    def leave(self) -> None:
        """Removes unfinished files and ends the process."""
        end_process(0)

    def _emit(self, **fields: Any) -> None:
        self._events.put(fields)


def _reach(address: str) -> None:
    """Raises OSError if nothing answers at "host:port" or "ray://host:port", and ValueError if that is neither."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    socket.create_connection((parts.hostname, parts.port), _CHECK_S).close()


def _one_line(text: str) -> str:
    """Returns the message of Ray without its tables of ids and its guesses."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    said = " ".join(lines).partition(" Some common causes")[0]
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}…"
