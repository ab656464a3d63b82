"""Workers on a Ray cluster: each is an actor that holds one `Worker`.

Actors are created when a worker starts, with what they need, so that an autoscaling cluster adds nodes for them. They
end with this process. Ray's own messages are replaced by errors and notices of this package.
"""

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.actor import Actor
from latentsync_trt.batch.local import LocalWorker
from latentsync_trt.batch.tasks import Done, Task, WorkerLost, WorkerSettings
from latentsync_trt.child import Event
from latentsync_trt.errors import InputError, LatentSyncError, MissingDependency
from latentsync_trt.runtime.providers.table import CPU
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
        cores = f"{self.cpus} CPU core{'s' * (self.cpus != 1)}"
        return f"{self.gpus:g} GPU{'s' * (self.gpus > 1)} and {cores}" if self.gpus else cores


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
        wanted = settings.provider not in ("auto", CPU.name) or any(node.get("GPU") for node in nodes)
        gpus = 1.0 if wanted and settings.provider != CPU.name else 0.0
    if not gpus and settings.provider not in ("auto", CPU.name):
        raise InputError(
            f"--gpus-per-worker 0: provider {settings.provider} needs a GPU; give more, or --provider {CPU.name}"
        )
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
    count, needs = plan(cluster.nodes(), settings, count, gpus_per_worker, most or sys.maxsize)
    runtime = replace(settings.runtime, device="all" if needs.gpus > 1 else 0)
    provider = settings.provider if needs.gpus else CPU.name
    if gpus_per_worker is None and provider != settings.provider:
        on_notice(f"Ray cluster {address}: has no GPU now, so workers use the CPU; --gpus-per-worker 1 waits for GPUs")
    settings = replace(settings, provider=provider, runtime=runtime)
    return [RayWorker(f"ray {number}", cluster, settings, needs) for number in range(count)]


class RayWorker(LocalWorker):
    """A `WorkerHandle` with an actor for its child, which may be lost with its node and be started again elsewhere."""

    def __init__(self, name: str, cluster: "_Cluster", settings: WorkerSettings, needs: Needs) -> None:
        super().__init__(name, settings)
        self._cluster, self._needs = cluster, needs

    def start(self) -> None:
        """See `WorkerHandle.start`. Waits without end for a node that has what the worker needs, and says so."""
        self._end()
        while not self._cluster.answers(ask=True):  # else Ray would wait for it, and nothing could stop that
            if self._cluster.lost:
                raise LatentSyncError(self._cluster.lost)
            if self._closed:
                raise WorkerLost(f"{self.name}: was closed")
            sleep(_POLL_S)
        super().start()

    def run(self, task: Task, on_progress: Callable[[Progress], None]) -> Done:
        """See `WorkerHandle.run`."""
        try:
            return super().run(task, on_progress)
        except WorkerLost:
            self._end()  # if only the connection was lost, it still locks the output, and the task runs again at once
            raise

    def _new_child(self) -> Any:
        return _ActorChild(self.name, self._cluster, self._needs)


class _ActorChild:
    """An actor with the methods of `Child` that `LocalWorker` needs.

    `node`, `pid`: where it runs; empty before.
    """

    def __init__(self, name: str, cluster: "_Cluster", needs: Needs) -> None:
        self.node, self.pid = "", 0
        self._name, self._cluster, self._needs = name, cluster, needs
        self._actor = cluster.create(needs)
        self._ended = False

    def send(self, order: Event) -> None:
        """See `Child.send`."""
        with suppress(LatentSyncError), self._cluster.translated(self._name):
            self._actor.send.remote(order)

    def events(self) -> Iterator[Event]:
        """Events as they arrive, but notices; raises `WorkerLost` at the end of the actor or the cluster."""
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
            self._cluster.answers()
            if self._cluster.lost:
                raise WorkerLost(self._cluster.lost)
            if not self.node and monotonic() - start_s > _QUIET_S:
                cure = "if no node gets them, stop and give less with --gpus-per-worker or --workers"
                self._cluster.say_once(f"workers wait for {self._needs} each on the Ray cluster; {cure}")
        return dict(self._cluster.ray.get(answer))


class _Cluster:
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
        import ray

        # Ray prints the ends of actors to stdout, which may be JSON, and has no setting for that.
        ray._private.worker._worker_logs_enabled = False
        failures: list[BaseException] = []

        def connect() -> None:
            try:
                if ":" in address:
                    _reach(address)
                ray.init(address, namespace=_NAMESPACE, log_to_driver=False, logging_level="error")
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
        """Resources of each living node, by Ray's names."""
        with self.translated(f"--ray {self._name}"):
            return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def create(self, needs: Needs) -> Any:
        """A new actor, which waits until a node has what it needs."""
        with self.translated(f"--ray {self._name}"):
            return self.ray.remote(
                num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0, max_task_retries=0, max_concurrency=_THREADS
            )(Actor).remote(__version__)

    def answers(self, *, ask: bool = False) -> bool:
        """Whether the cluster answered when last asked; with `ask`, or after a while, it is asked again."""
        with self._lock:
            now_s = monotonic()
            if self._gcs and not self.lost and (ask or now_s >= self._checked_s + _CHECK_S):
                self._checked_s = now_s
                with suppress(OSError):
                    _reach(self._gcs)
                    self._answered_s = now_s
        if self._checked_s - self._answered_s > _LOST_AFTER_S:
            self._lose()
        return not self.lost and self._checked_s == self._answered_s

    def say_once(self, text: str) -> None:
        """A notice, unless there was the same one."""
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
            self._lose()
            raise WorkerLost(self.lost) from error

    def _lose(self) -> None:
        cure = "what is done is kept: look after the cluster, and run the same command with --resume"
        self.lost = f"--ray {self._name}: the Ray cluster does not answer any more; {cure}"


def _reach(address: str) -> None:
    """Raises OSError if nothing answers at "host:port" or "ray://host:port", and ValueError if that is neither."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    socket.create_connection((parts.hostname, parts.port), _CHECK_S).close()


def _one_line(text: str) -> str:
    """What Ray says, without its tables of ids and its guesses."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    said = " ".join(lines).partition(" Some common causes")[0]
    return said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}…"
