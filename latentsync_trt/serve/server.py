"""Runs the service in this process, with uvicorn, until the command is stopped."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette

from latentsync_trt.errors import InputError, LatentSyncError

_POLL_S = 0.5

MOST_MESSAGE_BYTES = 2 * 48_000 * 60
"""Of a WebSocket: a minute of samples at the highest rate."""

SETTINGS: Any = {"log_config": None, "access_log": False, "server_header": False, "timeout_graceful_shutdown": 1}
# Compressed, a few bytes would be many of the largest messages.
SETTINGS |= {"ws_max_size": MOST_MESSAGE_BYTES, "ws_max_queue": 1, "ws_per_message_deflate": False}


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises `InputError` if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--host {host} --port {port}: cannot be used ({reason}); choose another") from error


def run(app: Starlette, listener: socket.socket, check: Callable[[], None] = lambda: None) -> None:
    """Answers requests with `app` until a signal raises KeyboardInterrupt here, or `check` raises.

    Raises:
        LatentSyncError: the server ended.
    """
    server = uvicorn.Server(uvicorn.Config(app, **SETTINGS))
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
