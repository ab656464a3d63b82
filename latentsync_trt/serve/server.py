"""Runs the service in this process, with uvicorn, until the command is stopped."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette

from latentsync_trt.errors import InputError, LatentSyncError

_POLL_S = 0.5
_LEAVE_S = 1

MOST_MESSAGE_BYTES = 2 * 48_000 * 60
"""Of a WebSocket: a minute of samples at the highest rate."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises `InputError` if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: cannot be used ({reason}); choose another") from error


def config(app: Starlette) -> uvicorn.Config:
    """How `app` is served. WebSockets hold a message and the next: packed ones could become many of the largest."""
    sockets: Any = {"ws_max_size": MOST_MESSAGE_BYTES, "ws_max_queue": 1, "ws_per_message_deflate": False}
    common: Any = {"log_config": None, "access_log": False, "server_header": False}
    return uvicorn.Config(app, timeout_graceful_shutdown=_LEAVE_S, **common, **sockets)


def run(app: Starlette, listener: socket.socket, check: Callable[[], None] = lambda: None) -> None:
    """Answers requests with `app` until a signal raises KeyboardInterrupt here, or `check` raises.

    Raises:
        LatentSyncError: the server ended.
    """
    server = uvicorn.Server(config(app))
    # In another thread than the main one it leaves signals alone, which are ours.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
    try:
        thread.start()
        while thread.is_alive():  # on Windows, an endless wait cannot be interrupted
            thread.join(_POLL_S)
            check()
        raise LatentSyncError("service: its HTTP server ended, its log says why; start the service again")
    finally:
        server.should_exit = True
