"""Workers on a Ray cluster: each is an actor that holds one `Worker`.

Actors are created when a worker starts, with what they need, so that an autoscaling cluster adds nodes for them. They
end with this process. Ray's own messages are replaced by errors and notices of this package.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.actor import Actor
from latentsync_trt.batch.local import error_of
from latentsync_trt.batch.tasks import Done, Task, WorkerLost, WorkerSettings
from latentsync_trt.errors import InputError, LatentSyncError, MissingDependency
from latentsync_trt.types import Progress
from latentsync_trt.version import __version__

Event = dict[str, Any]
Notice = Callable[[str], None]

_NAMESPACE = "latentsync-trt"
_THREADS = 4
_POLL_S = 0.5
_CONNECT_S = 10.0
# Ray kills a driver whose cluster is gone for 60 s.
_LOST_AFTER_S = 30.0
_CHECK_S = 5.0
_QUIET_S = 2.0
_UNPLACED_S = 30.0
_LEAVE_S = 0.8
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Needs:
    """What a worker reserves of a node."""

    gpus: float
    cpus: int

    def __str__(self) -> str:
        cores = f"{self.cpus} CPU core{'s' * (self.cpus != 1)}"
        return f"{self.gpus:g} GPU{'s' * (self.gpus > 1)} and {cores}" if self.gpus else cores

    def fit(self, node: Mapping[str, float]) -> bool:
        """Whether a node with these resources, by Ray's names, can hold such a worker."""
        return node.get("GPU", 0) >= self.gpus and node.get("CPU", 0) >= self.cpus


def plan(
    nodes: Sequence[Mapping[str, float]], settings: WorkerSettings, count: int | None, gpus: float | None, most: int
) -> tuple[int, Needs]:
    """How many workers there are on a cluster with these nodes, and what each reserves. Pure.

    Workers with a GPU take half of the CPU cores beside it, so that other programs leave room for them. A node that an
    autoscaler adds is thought to be like those of now.

    Raises:
        InputError: `gpus` does not fit the provider, or is more than 1 and not whole.
    """
    if gpus is None:
        wanted = settings.provider not in ("auto", "cpu") or any(node.get("GPU") for node in nodes)
        gpus = 1.0 if wanted and settings.provider != "cpu" else 0.0
    if not gpus and settings.provider not in ("auto", "cpu"):
        raise InputError(f"--gpus-per-worker 0: provider {settings.provider} needs a GPU; give more, or --provider cpu")
    if gpus > 1 and gpus % 1:
        raise InputError(f"--gpus-per-worker {gpus:g}: only whole GPUs above 1; give {ceil(gpus)}")
    usable = [node for node in nodes if (node.get("GPU", 0) >= gpus if gpus else node.get("CPU"))]
    places = [int(node.get("GPU", 0) / gpus + 1e-6) if gpus else 1 for node in usable]
    count = min(count or max(sum(places), 1), most)
    if not gpus:
        places = [ceil(count / len(usable)) for _ in usable]
    share = min((int(node.get("CPU", 0) // here) for node, here in zip(usable, places, strict=True)), default=1)
    return count, Needs(gpus, max(settings.threads or (share // 2 if gpus else share), 1))


def ray_workers(
    address: str,
    settings: WorkerSettings,
    count: int | None = None,
    gpus_per_worker: float | None = None,
    *,
    most: int | None = None,
    on_notice: Notice = lambda _: None,
) -> "list[RayWorker]":
    """Workers of a Ray cluster that are not started yet; connects this process to it.

    Args:
        address: "auto" for a cluster that this machine is part of, `host:port`, or `ray://host:port`.
        count: by default one for each GPU that the cluster has now, else one for each node. most: no more than these.
        gpus_per_worker: also a fraction; 0 = on the CPU. By default 1, or 0 where the cluster has no GPU.

    Raises:
        InputError: there is no such cluster, or a number does not fit. MissingDependency: Ray is not installed.
    """
    cluster = _Cluster(address, on_notice)
    nodes = cluster.nodes()
    count, needs = plan(nodes, settings, count, gpus_per_worker, most or sys.maxsize)
    runtime = replace(settings.runtime, device="all" if needs.gpus > 1 else 0)
    if not needs.gpus and settings.provider == "auto":
        on_notice(f"Ray cluster {address}: has no GPU now, so workers use the CPU; --gpus-per-worker 1 waits for GPUs")
        settings = replace(settings, provider="cpu")
    settings = replace(settings, runtime=runtime)
    return [RayWorker(f"ray {number}", cluster, settings, needs) for number in range(count)]


class RayWorker:
    """A `WorkerHandle`: an actor, which may be lost with its node and be started again elsewhere.

    `node`, `pid`: where it runs; empty before.
    """

    def __init__(self, name: str, cluster: "_Cluster", settings: WorkerSettings, needs: Needs) -> None:
        self.name = name
        self.node, self.pid = "", 0
        self._cluster, self._settings, self._needs = cluster, settings, needs
        self._lock = threading.Lock()
        self._actor: Any = None
        self._closed = False
        self._number, self._running = 0, ""

    def start(self) -> None:
        """See `WorkerHandle.start`. Waits without end for a node that has what the worker needs, and says so."""
        self._end()
        self._cluster.check()
        with self._lock:
            if self._closed:
                raise WorkerLost(f"{self.name}: was closed")
            self._actor = actor = self._cluster.create(self._needs)
        placed = self._wait(actor.place.remote(), self._waiting())
        self.node, self.pid = placed["node"], placed["pid"]
        if placed["version"] != __version__:
            versions = f"{placed['version']}, and here is {__version__}"
            raise InputError(f"node {self.node}: has latentsync-trt {versions}; install the same version on both")
        answer = self._wait(actor.open.remote(self._settings.to_json()), self._looking(actor))
        if "refused" in answer:
            answer["refused"] = f"node {self.node}: {answer['refused']}"
        if answer:
            raise error_of(self.name, answer)

    def run(self, task: Task, on_progress: Callable[[Progress], None]) -> Done:
        """See `WorkerHandle.run`."""
        with self._lock:
            if self._actor is None:
                raise WorkerLost(f"{self.name}: is not started, or was closed")
            actor, self._number, self._running = self._actor, self._number + 1, task.id
        try:
            event = self._wait(actor.run.remote(self._number, task.to_json()), self._looking(actor, on_progress))
        except _ClusterLost as error:  # the task may run again; `start` ends this worker
            raise WorkerLost(str(error)) from error
        except WorkerLost:
            raise
        except BaseException:  # of the caller
            self.cancel(task.id)
            raise
        finally:
            self._running = ""
        if "done" in event:
            return Done(**event["done"])
        raise error_of(self.name, event)

    def cancel(self, task_id: str) -> None:
        """See `WorkerHandle.cancel`."""
        with self._lock:
            if self._actor is not None and self._running == task_id:
                self._actor.cancel.remote(self._number)

    def close(self) -> None:
        """See `WorkerHandle.close`."""
        with self._lock:
            self._closed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            actor, self._actor = self._actor, None
        if actor is not None:
            self._cluster.end(actor, politely=bool(self.node))
        self.node = ""

    def _wait(self, answer: Any, meanwhile: Iterator[None]) -> Any:
        """The value of `answer`; takes a step of `meanwhile` from time to time."""
        with self._cluster.translated(f"{self.name}{self.node and f' on {self.node}'}"):
            while not self._cluster.ray.wait([answer], timeout=_POLL_S)[0]:
                if self._closed:
                    raise WorkerLost(f"{self.name}: was closed")
                self._cluster.check()
                next(meanwhile)
            return self._cluster.ray.get(answer)

    def _waiting(self) -> Iterator[None]:
        """Says that the cluster has no room."""
        start_s, said = monotonic(), ""
        while True:
            waited_s, text = monotonic() - start_s, ""
            if waited_s > _UNPLACED_S and not any(map(self._needs.fit, self._cluster.nodes())):
                cure = "if no autoscaler adds one, stop and give less with --gpus-per-worker or --workers"
                text = f"no node of the Ray cluster has {self._needs}, as a worker needs; {cure}"
            elif waited_s > _QUIET_S:
                text = f"workers wait until the Ray cluster has {self._needs} for each"
            if text and text != said:
                self._cluster.say_once(text)
                said = text
            yield

    def _looking(self, actor: Any, on_progress: Callable[[Progress], None] | None = None) -> Iterator[None]:
        """Passes on progress of the actor, or its notices while it opens the bundle."""
        seen: Event = {}
        while True:
            look = actor.look.remote()
            while not self._cluster.ray.wait([look], timeout=0)[0]:
                yield
            found = self._cluster.ray.get(look)
            if on_progress is None:
                if found["notice"]:
                    self._cluster.say_once(f"node {self.node}: {found['notice']}")
            elif found["progress"] and found["progress"] != seen.get("progress"):
                on_progress(Progress(**found["progress"]))
            seen = found
            yield


class _ClusterLost(LatentSyncError):
    """The cluster does not answer any more."""


class _Cluster:
    """This process' connection to a Ray cluster, shared by its workers."""

    def __init__(self, address: str, on_notice: Notice) -> None:
        try:
            import ray
        except ImportError as error:
            cure = 'pip install "latentsync-trt[cluster]"'
            raise MissingDependency(f"--ray {address}: needs the extra cluster; {cure}") from error
        self.ray: Any = ray
        self._name, self._on_notice, self._said = address, on_notice, set[str]()
        self._lock = threading.Lock()
        self._checked_s = self._answered_s = monotonic()
        self._dead = False
        if not ray.is_initialized():
            self._connect(address)
        client = address.startswith("ray://")  # it keeps a connection, and its errors say when that is lost
        self._gcs = None if client else _host_and_port(ray.get_runtime_context().gcs_address)

    def _connect(self, address: str) -> None:
        import ray

        # Ray prints the ends of actors to stdout, which may be JSON; they are told by errors here.
        ray._private.worker._worker_logs_enabled = False
        try:
            if address == "auto":
                address = os.environ.get("RAY_ADDRESS") or ray._private.services.canonicalize_bootstrap_address_or_die(
                    "auto"
                )
            # Ray itself tries an address that does not answer for minutes.
            socket.create_connection(_host_and_port(address), _CONNECT_S).close()
            with _own_signals():
                ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            cure = "start one with `ray start --head`, or give its host:port, or ray://host:10001 from another machine"
            raise InputError(f"--ray {self._name}: no Ray cluster ({_one_line(str(error))}); {cure}") from error

    def nodes(self) -> list[Mapping[str, float]]:
        """Resources of each living node, by Ray's names."""
        with self.translated(f"--ray {self._name}"):
            return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def create(self, needs: Needs) -> Any:
        """A new actor, which waits until a node has what it needs."""
        with self.translated(f"--ray {self._name}"):
            # Threads: one for `open` and `run`, the others for what is asked meanwhile.
            return self.ray.remote(
                num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0, max_task_retries=0, max_concurrency=_THREADS
            )(Actor).remote()

    def end(self, actor: Any, *, politely: bool) -> None:
        """Ends an actor; `politely`: it may remove its unfinished files first."""
        with suppress(Exception):  # it has ended, or the cluster has
            if politely and not self._gone_s() and not self._dead:
                self.ray.wait([actor.leave.remote()], timeout=_LEAVE_S)
            if not self._dead:
                self.ray.kill(actor)

    def check(self) -> None:
        """Raises `_ClusterLost` if the cluster has not answered for `_LOST_AFTER_S`."""
        with self._lock:
            now_s = monotonic()
            if self._gcs is not None and now_s >= self._checked_s + _CHECK_S:
                self._checked_s = now_s
                with suppress(OSError):
                    socket.create_connection(self._gcs, _CHECK_S).close()
                    self._answered_s = self._checked_s
            if self._dead or self._gone_s() > _LOST_AFTER_S:
                raise self._lost()

    def say_once(self, text: str) -> None:
        """A notice, unless there was the same one."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        self._on_notice(text)

    @contextmanager
    def translated(self, what: str) -> Iterator[None]:
        """Turns errors of Ray into `WorkerLost`, and those of a lost connection into `_ClusterLost`."""
        try:
            yield
        except LatentSyncError:
            raise
        except self.ray.exceptions.RayError as error:
            if "failed to import" in str(error) or "No module named" in str(error):
                cure = f"install latentsync-trt {__version__} with the extra cluster there"
                raise InputError(f"{what}: the node cannot load latentsync_trt; {cure}") from error
            raise WorkerLost(f"{what}: {_one_line(str(error))}") from error
        except ConnectionError as error:  # of `ray://`
            raise self._lost() from error

    def _gone_s(self) -> float:
        return self._checked_s - self._answered_s

    def _lost(self) -> _ClusterLost:
        self._dead = True
        cure = "what is done is kept: look after the cluster, and run the same command with --resume"
        return _ClusterLost(f"--ray {self._name}: the Ray cluster does not answer any more; {cure}")


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this process' handlers of signals: Ray sets its own."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _host_and_port(address: str) -> tuple[str, int]:
    """The parts of "host:port" or "ray://host:port"; raises ValueError for anything else."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if not parts.hostname or parts.port is None:
        raise ValueError("not host:port")
    return parts.hostname, parts.port


def _one_line(text: str) -> str:
    """What Ray says, without its tables of ids and its guesses."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    said = " ".join(lines).partition(" Some common causes")[0]
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}…"
