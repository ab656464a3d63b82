"""Workers on a Ray cluster: what others do in a child, each does in an actor, which ends with this
process.

Actors are created when a worker starts, with what they need, so that an autoscaling cluster adds
nodes for them.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from latentsync_trt.batch.local import carry_out
from latentsync_trt.batch.tasks import WorkerLost
from latentsync_trt.child import Event, end_process
from latentsync_trt.errors import InputError, LatentSyncError, MissingDependency
from latentsync_trt.sync.threads import tune_process
from latentsync_trt.version import __version__

_POLL_S = 0.5
_CONNECT_S = 30.0
_REACH_S = 5.0


class RemoteChild:
    """Acts as `Child`, with an actor."""

    memory_bytes = 0  # Ray has limits of its own

    def __init__(self, gpus: int, cpus: int, on_notice: Callable[[str], None]) -> None:
        """Creates an actor, which waits until a node has what it needs."""
        import ray

        self.pid = 0
        self._on_notice = on_notice
        self._needs = f"{'a GPU and ' if gpus else ''}{cpus} CPU cores"
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        with _translated("cluster"):
            self._actor = ray.remote(max_concurrency=4, **options)(Actor).remote()

    def send(self, order: Any) -> None:
        with suppress(LatentSyncError), _translated("send"):
            self._actor.send.remote(order)

    def events(self, watch: Callable[[], None]) -> Iterator[Event]:
        """As of `Child`; the last one is an error. Waits without limit for a node that has what the
        worker needs.
        """
        import ray

        node = "no node"
        try:
            with _translated(node):
                place = self._actor.place.remote()
                while not ray.wait([place], timeout=_POLL_S)[0]:
                    cure = "if no node gets them, stop and give less with --workers"
                    self._on_notice(
                        f"workers wait for {self._needs} each on the Ray cluster; {cure}"
                    )
                    yield {"key": None}
                node, self.pid, version = ray.get(place)
            if version != __version__:
                versions = f"has latentsync-trt {version}, and this machine {__version__}"
                raise InputError(f"node {node}: {versions}; install the same version on both")
            with _translated(f"node {node}"):
                while True:
                    news = self._actor.news.remote()
                    while not ray.wait([news], timeout=_POLL_S)[0]:
                        watch()
                    yield from ray.get(news)
                    watch()
        except LatentSyncError as error:
            yield {"key": "", "error": error}

    def end(self, patience_s: float = 0.0) -> None:
        """Ends the actor, which may remove its unfinished files first."""
        import ray

        with suppress(Exception):  # it has ended, or the cluster has
            if patience_s and self.pid:
                ray.wait([self._actor.leave.remote()], timeout=patience_s)
            ray.kill(self._actor)


class Actor:
    """Carries out orders on a node of a Ray cluster."""

    def __init__(self) -> None:
        tune_process()
        self._orders = SimpleQueue[Any]()
        self._events = SimpleQueue[Event]()
        arguments = iter(self._orders.get, None), self._emit
        threading.Thread(target=carry_out, args=arguments, name="orders", daemon=True).start()

    def place(self) -> tuple[str, int, str]:
        """Returns the name of the node, the number of the process and the version of the package
        there.
        """
        return socket.gethostname(), os.getpid(), __version__

    def send(self, order: Any) -> None:
        self._orders.put(order)

    def news(self) -> list[Event]:
        """Returns the events since the last call, one at least."""
        events = [self._events.get()]
        while not self._events.empty():
            events.append(self._events.get())
        return events

    def leave(self) -> None:
        """Removes unfinished files and ends the process."""
        end_process(0)

    def _emit(self, **event: Any) -> None:
        if isinstance(error := event.get("error"), LatentSyncError):
            event["error"] = type(error)(f"node {socket.gethostname()}: {error}", usage=error.usage)
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
def _translated(what: str) -> Iterator[None]:
    """Turns errors of Ray into `WorkerLost`, or `InputError` where another attempt is useless."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        if "failed to import" in str(error) or "No module named" in str(error):
            cure = f"install latentsync-trt {__version__} with the extra cluster there"
            raise InputError(f"{what}: the node cannot load latentsync_trt; {cure}") from error
        first_line = str(error).strip().partition("\n")[0]  # below are tables of ids
        raise WorkerLost(f"{what}: {first_line}") from error
    except ConnectionError as error:  # of `ray://`
        raise WorkerLost(f"{what}: the cluster does not answer: {error}") from error
