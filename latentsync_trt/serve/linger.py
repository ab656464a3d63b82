"""Answers that are given before a request was read to its end, as refusals are, and that still arrive."""

import asyncio
import time
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SILENT_S, MOST_S = 2.0, 30.0
"""The rest of a request is read until nothing arrives for so long, and no longer than this."""


class LingeringClose:
    """Middleware, the outermost: after such an answer, the rest of the request is read and discarded before the close.

    A connection that is closed with unread bytes is reset, and what of the answer has not left by then is lost.
    Clients that notice the answer leave at once; the others would have to send all of it.
    """

    def __init__(self, app: ASGIApp, most_bytes: float) -> None:
        """`most_bytes`: of a request that is read so; the connections of larger ones are reset."""
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or headers.get(b"content-length", headers.get(b"transfer-encoding")) in (None, b"0"):
            await self._app(scope, receive, send)
            return
        open_, received_bytes, last = True, 0, False

        async def counted() -> Message:
            nonlocal open_, received_bytes
            message = await receive()
            open_ = message.get("more_body", False)
            received_bytes += len(message.get("body", b""))
            return message

        async def held(message: Message) -> None:
            nonlocal last
            if open_ and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            elif open_ and not message.get("more_body", False):
                message, last = {**message, "more_body": True}, True
            await send(message)

        await self._app(scope, counted, held)
        if last:
            end_s = time.monotonic() + MOST_S
            with suppress(TimeoutError):
                while open_ and received_bytes < self._most_bytes and time.monotonic() < end_s:
                    await asyncio.wait_for(counted(), SILENT_S)
            await send({"type": "http.response.body"})
