"""Workers on a Ray cluster: what others do in a child, each does in an actor, which ends with this
process.

Actors are created when a worker starts, with what they need, so that an autoscaling cluster adds
nodes for them.
"""

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.local import CANCEL_S, HUNG_S, WorkerHandle, WorkerOrders
from latentsync_trt.batch.tasks import WorkerSettings
from latentsync_trt.child import Child, ChildLost
from latentsync_trt.child_main import (
    LIFE_S,
    CallEnded,
    Cancel,
    ChildEvent,
    Order,
    end_process,
    serve_orders,
)
from latentsync_trt.errors import InputError, LatentSyncError, MissingDependency
from latentsync_trt.runtime.providers.table import CPU
from latentsync_trt.types import NoticeCallback
from latentsync_trt.version import __version__

_CONNECT_S = 30.0
"""Time in which Ray must connect to a cluster."""
_REACH_S = 5.0
"""Time in which the cluster's address must accept a connection."""


def ray_workers(
    address: str,
    settings: WorkerSettings,
    count: int | None,
    most: int,
    on_notice: NoticeCallback,
) -> list[WorkerHandle]:
    """Returns workers of a cluster; `count` and `most` as for `make_workers`; raises as
    `connect`.
    """
    nodes = [node["Resources"] for node in connect(address).nodes() if node["Alive"]]
    plan = plan_cluster(nodes, settings.provider, count, most)
    provider = settings.provider
    if not plan.gpus and provider != CPU.name:
        provider = CPU.name
        on_notice(
            f"Ray cluster {address}: has no GPU now, so workers "
            "use the CPU; naming a --provider waits for GPUs"
        )
    runtime = replace(settings.runtime, device=0)
    settings = replace(settings, provider=provider, runtime=runtime)

    def new_child() -> Child:
        return Child(RemoteProcess(plan, on_notice), HUNG_S, CANCEL_S)

    return [
        WorkerHandle(f"ray {number}", settings, on_notice, new_child=new_child)
        for number in range(plan.workers)
    ]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """How many workers a cluster gets, and what each reserves."""

    workers: int
    gpus: int
    """Of each worker: 1, or 0 where it runs on the CPU."""
    cpus: int
    """CPU cores of each worker."""


def plan_cluster(
    nodes: Sequence[Mapping[str, float]], provider: str, count: int | None, most: int
) -> ClusterPlan:
    """Returns the plan for a cluster whose nodes have these resources. Workers beside a GPU reserve
    half of its share of CPU cores, so that other programs have room.
    """
    if provider == "auto":
        on_gpu = any(node.get("GPU") for node in nodes)
    else:
        on_gpu = provider != CPU.name
    needed = "GPU" if on_gpu else "CPU"
    usable = [node for node in nodes if node.get(needed)]
    per_node = [int(node["GPU"]) if on_gpu else 1 for node in usable]
    count = min(count or max(sum(per_node), 1), most)
    if not on_gpu:
        per_node = [ceil(count / len(usable)) for _ in usable]
    cores = [
        int(node.get("CPU", 0) // workers) for node, workers in zip(usable, per_node, strict=True)
    ]
    cpus = min(cores, default=1)
    if on_gpu:
        cpus //= 2
    return ClusterPlan(count, int(on_gpu), max(cpus, 1))


class RemoteProcess:
    """An actor that carries out the orders of a worker, for a `Child`."""

    memory_bytes = 0  # Ray has limits of its own

    def __init__(self, plan: ClusterPlan, on_notice: NoticeCallback) -> None:
        """Creates an actor, which waits until a node has what it needs."""
        import ray

        self.pid = 0
        self._on_notice = on_notice
        self._needs = f"{plan.cpus} CPU cores"
        if plan.gpus:
            self._needs = f"a GPU and {self._needs}"
        resources = {"num_cpus": plan.cpus, "num_gpus": plan.gpus}
        once = {"max_restarts": 0, "max_task_retries": 0}
        with _translate_ray_errors("cluster"):
            self._actor = ray.remote(max_concurrency=4, **resources, **once)(Actor).remote()

    def send(self, message: Order | Cancel) -> None:
        with suppress(LatentSyncError), _translate_ray_errors("send"):
            self._actor.send.remote(message)

    def events(self) -> Iterator[ChildEvent]:
        """Yields what the actor sends; raises `LatentSyncError` when it has ended. Waits without
        limit for a node that has what the worker needs.
        """
        import ray

        with _translate_ray_errors("no node"):
            place = self._actor.place.remote()
            while not ray.wait([place], timeout=LIFE_S)[0]:
                cure = "if no node gets them, stop and give less with --workers"
                self._on_notice(f"workers wait for {self._needs} each on the Ray cluster; {cure}")
                yield None
            node = ray.get(place)
        self.pid = node.pid
        if node.version != __version__:
            versions = f"has latentsync-trt {node.version}, and this machine {__version__}"
            cure = "install the same version on both"
            raise InputError(f"node {node.name}: {versions}; {cure}")
        with _translate_ray_errors(f"node {node.name}"):
            while True:
                yield from ray.get(self._actor.news.remote())

    def end(self, patience_s: float = 0.0) -> None:
        """Ends the actor, which may remove its unfinished files first."""
        import ray

        with suppress(Exception):  # it has ended, or the cluster has
            if patience_s and self.pid:
                ray.wait([self._actor.leave.remote()], timeout=patience_s)
            ray.kill(self._actor)


@dataclass(frozen=True, slots=True)
class Node:
    """Where an actor runs."""

    name: str
    pid: int
    version: str
    """The version of this package there."""


class Actor:
    """Carries out orders on a node of a Ray cluster."""

    def __init__(self) -> None:
        self._messages = SimpleQueue[Order | Cancel]()
        self._events = SimpleQueue[ChildEvent]()
        arguments = (WorkerOrders(), self._received(), self._emit)
        threading.Thread(target=serve_orders, args=arguments, name="orders", daemon=True).start()

    def place(self) -> Node:
        return Node(socket.gethostname(), os.getpid(), __version__)

    def send(self, message: Order | Cancel) -> None:
        self._messages.put(message)

    def news(self) -> list[ChildEvent]:
        """Returns the events since the last call, one at least."""
        events = [self._events.get()]
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def leave(self) -> None:
        """Removes unfinished files and ends the process."""
        end_process(0)

    def _received(self) -> Iterator[Order | Cancel | None]:
        while True:
            try:
                yield self._messages.get(timeout=LIFE_S)
            except Empty:
                yield None

    def _emit(self, event: ChildEvent) -> None:
        if isinstance(event, CallEnded) and event.error is not None:
            error = event.error
            text = f"node {socket.gethostname()}: {error}"
            event = replace(event, error=type(error)(text, usage=error.usage))
        self._events.put(event)


def connect(address: str) -> Any:
    """Connects this process to a Ray cluster, once; returns `ray`; raises `InputError` or
    `MissingDependency`.
    """
    try:
        import ray
    except ImportError as error:
        cure = 'pip install "latentsync-trt[cluster]"'
        raise MissingDependency(
            f"--ray {address}: needs the extra cluster; {cure} ({error})"
        ) from error
    reached = Future[None]()

    def reach() -> None:
        try:
            if ":" in address:
                parts = urlsplit(address if "://" in address else f"//{address}")
                socket.create_connection((parts.hostname, parts.port), _REACH_S).close()
            ray.init(
                address, namespace="latentsync-trt", log_to_driver=False, logging_level="error"
            )
            # Imports what Ray loads at its first use: beside imports of other threads, that fails.
            ray.put(None)
            reached.set_result(None)
        except Exception as error:  # noqa: BLE001 -- raised below
            reached.set_exception(error)

    if not ray.is_initialized():
        # Ray prints the ends of actors to stdout, which may be JSON, and has no setting for that.
        ray._private.worker._worker_logs_enabled = False
        # In the main thread, Ray would replace the handler of SIGTERM. It does not stop to try a
        # cluster that is gone.
        threading.Thread(target=reach, daemon=True).start()
        try:
            reached.result(_CONNECT_S)
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or "no answer"
            cure = (
                "start one with `ray start --head`, or give its "
                "host:port, or ray://host:10001 from another machine"
            )
            raise InputError(f"--ray {address}: no Ray cluster ({reason}); {cure}") from error
    return ray


@contextmanager
def _translate_ray_errors(place: str) -> Iterator[None]:
    """Turns errors of Ray into `ChildLost`, or `InputError` where another attempt is useless;
    `place`: where they happen, for messages.
    """
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        if "failed to import" in str(error) or "No module named" in str(error):
            cure = f"install latentsync-trt {__version__} with the extra cluster there"
            raise InputError(f"{place}: the node cannot load latentsync_trt; {cure}") from error
        first_line = str(error).strip().partition("\n")[0]  # below are tables of ids
        raise ChildLost(f"{place}: {first_line}") from error
    except ConnectionError as error:  # of `ray://`
        raise ChildLost(f"{place}: the cluster does not answer: {error}") from error
