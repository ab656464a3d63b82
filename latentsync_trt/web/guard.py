"""What the page refuses before Gradio gets it, and what it adds to answers."""

import re
import secrets
import time
from collections import deque
from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latentsync_trt.serve.app import check_origin
from latentsync_trt.serve.folders import FULL
from latentsync_trt.serve.service import Service
from latentsync_trt.web.jobs import COOKIE, jobs_of_browser

_COOKIE_SETTINGS = "HttpOnly; Max-Age=31536000; Path=/; SameSite=lax"
_JOB = re.compile(r"/v1/jobs/([^/]+)")
_ADDRESS = re.compile(r"/gradio_api/file=\w+:/")

_MOST_LOGINS = 10
"""Wrong passwords that one sender may try in a minute."""

_MINUTE_S = 60

_MOST_SENDERS = 100
"""Senders whose wrong passwords are counted at once."""

_PAGE_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'self'"
)
"""Browsers load nothing from other hosts. Gradio draws with inline scripts and templates that it
compiles.
"""


class Guard:
    """Middleware that refuses other sites and browsers, many passwords, and uploads for which there
    is no room; and that marks browsers.
    """

    def __init__(self, app: ASGIApp, service: Service, *, own_hosts: bool) -> None:
        self._app = app
        self._service = service
        self._own_hosts = own_hosts
        # Senders and times of wrong passwords.
        self._logins: deque[tuple[str, float]] = deque(maxlen=_MOST_LOGINS * _MOST_SENDERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._app

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._mark(request, message)
            await send(message)

        try:
            await run_in_threadpool(self._check, request)
        except HTTPException as error:
            answer = PlainTextResponse(error.detail, error.status_code)
        try:
            await answer(scope, receive, send_marked)
        except RuntimeError as error:
            # Gradio may raise it after its answer has begun.
            if not isinstance(error.__cause__, HTTPException):
                raise

    def _check(self, request: Request) -> None:
        """Raises `HTTPException` where a request is refused."""
        # Also with a key: browsers send the cookie of a login.
        check_origin(request, self._own_hosts)
        path = request.url.path
        if _ADDRESS.match(path):
            raise HTTPException(403, "file: is an address; only uploaded files are served")
        if path == "/login" and self._is_guessing(_sender(request)):
            raise HTTPException(
                429, f"login: {_MOST_LOGINS} wrong passwords in a minute; try again later"
            )
        if path.endswith("/upload") and self._service.problem() == FULL:
            raise HTTPException(507, FULL)
        job = _JOB.match(path)
        if job and job[1] not in jobs_of_browser(self._service, request.cookies):
            raise HTTPException(
                404,
                f"job {job[1][:40]}: does not exist, was deleted, or belongs to another browser",
            )

    def _is_guessing(self, sender: str) -> bool:
        since_s = time.monotonic() - _MINUTE_S
        recent = [each for each, time_s in tuple(self._logins) if time_s > since_s]
        return recent.count(sender) >= _MOST_LOGINS

    def _mark(self, request: Request, message: Message) -> None:
        """Adds headers to an answer, and remembers that a password was wrong."""
        headers = MutableHeaders(scope=message)
        headers.setdefault("content-security-policy", _PAGE_POLICY)
        path = request.url.path
        if path == "/" and COOKIE not in request.cookies:
            headers.append("set-cookie", f"{COOKIE}={secrets.token_hex(16)}; {_COOKIE_SETTINGS}")
        if path == "/login" and message["status"] == HTTPStatus.BAD_REQUEST:
            self._logins.append((_sender(request), time.monotonic()))


def _sender(request: Request) -> str:
    return request.client.host if request.client else ""
