"""Live sessions over HTTP: a page, WebRTC out, and speech in by microphone or a WebSocket of 16-bit
samples.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from latentsync_trt.errors import Busy, InputError, LatentSyncError
from latentsync_trt.live.session import LiveSession
from latentsync_trt.option_fields import from_json
from latentsync_trt.serve.admission import LiveLimits
from latentsync_trt.serve.app import HANDLED, check_origin, guard, has_key, on_error, readable
from latentsync_trt.serve.call import MARK, Call, send_json, start

_PAGE = Path(__file__).parent
_LIVE_POLICY = (
    "default-src 'self'; media-src 'self' blob:; style-src "
    "'self' 'unsafe-inline'; frame-ancestors 'self'"
)
_MOST_OFFER_BYTES = 64 * 1024
_MOST_SOCKETS = 4
"""WebSockets of a session: its page's, that of an engine, and those that one of them has lost."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What a viewer sends as JSON."""

    sdp: str = ""
    """The offer of a WebRTC connection."""
    type: str = ""
    """What the session shall do: "end", "stop" or "clear_buffer"."""


class LiveService:
    """The calls that are open. `open_session` is called in a thread."""

    def __init__(
        self, open_session: Callable[[], LiveSession], limits: LiveLimits, stun: str | None = None
    ) -> None:
        self.limits = limits
        self.calls = dict[str, Call]()
        self._open = open_session
        self._stun = stun
        self._opening = 0
        self._tasks = set[asyncio.Task[None]]()

    async def call(self, sdp: str) -> tuple[str, str]:
        """Opens a call; returns its id and the answer to an offer. Raises `InputError`, or as
        `LipSync.stream`.
        """
        if len(self.calls) + self._opening >= self.limits.max_sessions:
            viewers = f"{self.limits.max_sessions} viewers are connected (--max-sessions)"
            raise Busy(f"live: {viewers}; try again later")
        self._opening += 1
        try:
            session = await run_in_threadpool(self._open)
            name = secrets.token_urlsafe(18)
            try:
                call = Call(session, stun=self._stun, on_close=lambda: self.calls.pop(name, None))
            except BaseException:
                session.close()
                raise
            self.calls[name] = call
        finally:
            self._opening -= 1
        try:
            answer = await call.answer(sdp)
        except Exception as error:
            await call.close()
            problem = f"is no offer of a WebRTC connection ({type(error).__name__})"
            raise InputError(f"sdp: {problem}") from error
        start(self._end_in_time(call), self._tasks)
        return name, answer

    async def _end_in_time(self, call: Call) -> None:
        connect_s = min(self.limits.connect_s, self.limits.max_session_s)
        await asyncio.sleep(connect_s)
        if call.session.counts.frames:
            await asyncio.sleep(self.limits.max_session_s - connect_s)
        await call.close()


def live_app(service: LiveService, key: str | None, *, own_hosts: bool = False) -> FastAPI:
    """Returns the application of a service; `key` and `own_hosts` as for `create_app`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for call in list(service.calls.values()):
            await call.close()

    handlers: Any = dict.fromkeys(HANDLED, on_error)
    app = FastAPI(
        title="latentsync-trt live", lifespan=lifespan, exception_handlers=handlers, docs_url=None
    )
    allowed = [Depends(guard(key, own_hosts))]
    app.add_route("/", partial(_page_file, "live.html"), include_in_schema=False)
    app.add_route("/live.js", partial(_page_file, "live.js"), include_in_schema=False)
    app.include_router(_calls(service), dependencies=allowed)

    @app.websocket("/v1/live/{name}/speech")
    async def speech(
        socket: WebSocket, name: str, rate: Annotated[int, Query(ge=8000, le=48_000)] = 16_000
    ) -> None:
        """16-bit samples as bytes; `end`, `stop` or `clear_buffer` as JSON. Only its viewer knows
        the id.
        """
        if key is None or not has_key(socket, key):  # browsers cannot send one here
            check_origin(socket, own_hosts and key is None)
        await _converse(socket, _call_of(service, name), rate)

    @readable(app, "/healthz")
    def health() -> dict[str, str]:
        """200 while it runs; needs no key."""
        return {"status": "ready"}

    @readable(app, "/metrics", dependencies=allowed)
    def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(_live_figures(service), media_type=CONTENT_TYPE_LATEST)

    return app


def _calls(service: LiveService) -> APIRouter:
    router = APIRouter(prefix="/v1/live")

    @router.post("", status_code=201)
    async def open_call(request: Request) -> dict[str, str]:
        """Opens a session for the viewer who offers a connection."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MOST_OFFER_BYTES:
                raise HTTPException(413, f"offer: has more than {_MOST_OFFER_BYTES // 1024} kB")
        offer = from_json(_Message, body, 'offer: is not JSON as {"sdp": "v=0…"}', InputError)
        name, answer = await service.call(offer.sdp)
        return {"id": name, "type": "answer", "sdp": answer, "mark": MARK}

    @router.delete("/{name}", status_code=204)
    async def close_call(name: str) -> None:
        """Ends a session."""
        await _call_of(service, name).close()

    return router


def _live_figures(service: LiveService) -> bytes:
    registry = CollectorRegistry()
    calls = list(service.calls.values())
    late = sum(call.session.counts.late for call in calls)
    for name, text, value in (
        ("sessions", "Occupied slots: sessions that are open.", len(calls)),
        ("slots", "Sessions that may be open.", service.limits.max_sessions),
        ("late_frames", "Frames of open sessions that were not painted in time.", late),
    ):
        Gauge(f"latentsync_live_{name}", text, registry=registry).set(value)
    return generate_latest(registry)


def _page_file(name: str, _: Request) -> FileResponse:
    return FileResponse(_PAGE / name, headers={"Content-Security-Policy": _LIVE_POLICY})


def _call_of(service: LiveService, name: str) -> Call:
    if name not in service.calls:
        problem = "there is none, or it has ended; open another"
        raise HTTPException(404, f"live session {name[:40]}: {problem}")
    return service.calls[name]


async def _converse(socket: WebSocket, call: Call, rate_hz: int) -> None:
    """Answers each message of a viewer until he leaves; raises `Busy` where too many sockets are
    open.
    """
    if len(call.sockets) >= _MOST_SOCKETS:
        cure = f"has {_MOST_SOCKETS} WebSockets open, the most; close one"
        raise Busy(f"live session: {cure}")
    call.sockets.add(socket)
    try:
        await socket.accept()
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                answer = await asyncio.to_thread(_carry_out, call.session, message, rate_hz)
                await send_json(socket, **answer)
            except LatentSyncError as error:
                busy = isinstance(error, Busy)
                await send_json(socket, type="error", error=str(error), busy=busy)
    finally:
        call.sockets.remove(socket)


def _carry_out(session: LiveSession, message: Any, rate_hz: int) -> dict[str, Any]:
    """Does what a message asks for; returns the answer. Raises `LatentSyncError`."""
    samples = message.get("bytes")
    if samples is not None:
        if len(samples) % 2:
            cure = "send 16-bit samples, little-endian, mono"
            raise InputError(f"say: an odd number of bytes; {cure}")
        waiting_s = session.say(np.frombuffer(samples, "<i2"), rate_hz)
        return {"type": "buffered", "seconds": round(waiting_s, 3)}
    example = 'message: is not JSON as {"type": "end"}'
    kind = from_json(_Message, message.get("text"), example, InputError).type
    if kind == "end":
        session.end()
        return {"type": "ended"}
    if kind in ("stop", "clear_buffer"):
        return {"type": "stopped", "heard_s": round(session.stop(), 3)}
    raise InputError(f"message: {kind[:40]} is none of end, stop and clear_buffer")
