"""Runs the service until the command is stopped: in this process with uvicorn, or as a Ray Serve deployment."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette

from latentsync_trt.batch.tasks import WorkerHandle
from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.service import Service

_POLL_S = 0.5
_LEAVE_S = 1
_NAME = "latentsync-trt"
_MOST_REQUESTS = 200
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class Runs(Protocol):
    """What `run` runs."""

    def check(self) -> None:
        """Raises if it cannot go on."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises `InputError` if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: cannot be used ({reason}); choose another") from error


def run(service: "Runs", app: Starlette, listener: socket.socket) -> None:
    """Answers requests with the service's `app` until a signal raises KeyboardInterrupt here; closes the service.

    Raises:
        LatentSyncError: no worker is left, the ledger cannot be written, or the server ended.
    """
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=_LEAVE_S
    )
    server = uvicorn.Server(config)
    # In another thread than the main one it leaves signals alone, which are ours.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
    try:
        thread.start()
        while thread.is_alive():  # on Windows, an endless wait cannot be interrupted
            thread.join(_POLL_S)
            service.check()
        raise LatentSyncError("service: its HTTP server ended, its log says why; start the service again")
    finally:
        server.should_exit = True
        service.close()
        listener.close()


def run_on_ray(
    make_handles: Callable[[], Sequence[WorkerHandle]],
    folder: Path,
    limits: Limits,
    key: str | None,
    secret: bytes | None,
    address: tuple[str, int],
    on_ready: Callable[[], None],
) -> None:
    """Deploys the service on the Ray cluster of this process, until a signal raises KeyboardInterrupt.

    One replica answers, on this machine, since the folder and the ledger are here. Its workers are
    actors, which need a folder that all machines share.

    `make_handles` is called in the replica. `address`: where Ray Serve listens, if it does not yet.
    """
    import ray
    from ray import serve

    def build() -> Any:
        from latentsync_trt.serve.app import create_app, is_loopback

        service = Service(folder, make_handles(), limits, secret)
        return create_app(service, key, own_hosts=is_loopback(address[0]))

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    node = ray.get_runtime_context().get_node_id()
    here = next(each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node)
    deployment = serve.deployment(
        serve.ingress(build)(),
        name="service",
        num_replicas=1,
        max_ongoing_requests=_MOST_REQUESTS,
        ray_actor_options={"num_cpus": 0, "resources": {f"node:{here}": 0.001}},
    )
    serve.start(http_options={"host": address[0], "port": address[1]}, logging_config=_LOGGING)
    try:
        try:
            serve.run(deployment.bind(), name=_NAME, route_prefix="/", logging_config=_LOGGING)
        except RuntimeError as error:  # its message does not say why
            traceback = serve.status().applications[_NAME].deployments["service"].message
            raise LatentSyncError(
                f"serve --ray: did not start: {(traceback.strip() or str(error)).splitlines()[-1]}"
            ) from error
        on_ready()
        while True:
            time.sleep(_POLL_S)
    finally:
        serve.delete(_NAME)
