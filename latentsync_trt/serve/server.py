"""Runs the service in this process, with uvicorn, until the command is stopped; and how its answers
arrive.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.paths import PrintableLines

MOST_MESSAGE_BYTES = 2 * 48_000 * 60
"""Largest message of a WebSocket: a minute of samples at the highest rate."""

SETTINGS: Any = {
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": 1,
    "ws_max_size": MOST_MESSAGE_BYTES,
    "ws_max_queue": 1,
    # Compressed, a few bytes would be many of the largest messages.
    "ws_per_message_deflate": False,
}

SILENT_S = 2.0
"""Silence after which the rest of a refused request is not waited for."""
MOST_S = 30.0
"""Longest time for which the rest of a refused request is read."""


def log_to_stderr() -> None:
    """Makes this process log steps of jobs, and warnings of all libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableLines("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("latentsync_trt").setLevel(logging.INFO)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises `InputError` if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"cannot be used ({reason})"
        raise InputError(f"--host {host} --port {port}: {problem}; choose another") from error


def run(app: Starlette, listener: socket.socket, check: Callable[[], None] = lambda: None) -> None:
    """Answers requests with `app` until a signal raises KeyboardInterrupt here, `check` raises, or
    the server ends.
    """
    server = uvicorn.Server(uvicorn.Config(app, **SETTINGS))
    # In another thread than the main one it leaves signals alone, which are ours.
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True
    )
    try:
        thread.start()
        while thread.is_alive():  # on Windows, an endless wait cannot be interrupted
            thread.join(0.5)
            check()
        raise LatentSyncError(
            "service: its HTTP server ended, its log says why; start the service again"
        )
    finally:
        server.should_exit = True


class LingeringClose:
    """Middleware, the outermost, that reads and discards the rest of a request which is answered
    before its end.

    A connection that is closed with unread bytes is reset, and what of the answer has not left by
    then is lost.
    """

    def __init__(self, app: ASGIApp, most_bytes: float) -> None:
        """`most_bytes`: size of a request that is read; connections of larger ones are reset."""
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        length = headers.get(b"content-length", headers.get(b"transfer-encoding"))
        if scope["type"] != "http" or length in (None, b"0"):
            await self._app(scope, receive, send)
            return
        has_more = True
        received_bytes = 0

        async def counted() -> Message:
            nonlocal has_more, received_bytes
            message = await receive()
            has_more = message.get("more_body", False)
            received_bytes += len(message.get("body", b""))
            return message

        async def send_then_read(message: Message) -> None:
            if has_more and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            elif has_more and not message.get("more_body", False):
                await send({**message, "more_body": True})
                with suppress(TimeoutError):
                    async with asyncio.timeout(MOST_S):
                        while has_more and received_bytes < self._most_bytes:
                            await asyncio.wait_for(counted(), SILENT_S)
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, counted, send_then_read)
