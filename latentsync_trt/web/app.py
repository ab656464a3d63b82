"""The page as a web application, around a service."""

import asyncio
import os
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from latentsync_trt.batch.remote_files import is_url, url_file_name
from latentsync_trt.bundle.find import demo_folder, describe, exported_bundles, find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.environment import changed_environment
from latentsync_trt.serve.app import check_origin, create_app
from latentsync_trt.serve.checks import Pool
from latentsync_trt.serve.folders import FULL
from latentsync_trt.serve.server import LingeringClose
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs

# At its import, Gradio opens an HTTP client, which the page never uses, and which proxies or
# certificates that are set for other programs may break.
with changed_environment({"no_proxy": "*", "SSL_CERT_FILE": None, "SSL_CERT_DIR": None}):
    import gradio as gr
    from gradio.route_utils import FnIndexInferError

    from latentsync_trt.web.page import Page

_COOKIE = "HttpOnly; Max-Age=31536000; Path=/; SameSite=lax"
_JOB = re.compile(r"/v1/jobs/([^/]+)")
_ADDRESS = re.compile(r"/gradio_api/file=\w+:/")
_HERE = Path(__file__).parent
_MOST_LOGINS = 10
_MINUTE_S = 60
_MOST_SENDERS = 100
_THEME: Any = {
    "primary_hue": "teal",
    "neutral_hue": "zinc",
    "radius_size": "lg",
    "font": ("system-ui", "sans-serif"),
}
_BODY = {"body_background_fill": "#fafafa", "body_background_fill_dark": "#131316"}
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'self'"
)
"""Browsers load nothing from other hosts. Gradio draws with inline scripts and templates that it
compiles.
"""


@contextmanager
def page_app(
    service: Service,
    folder: Path,
    key: str | None,
    *,
    own_hosts: bool,
    bundle: str = DEMO_NAME,
    one: bool = False,
) -> Iterator[Starlette]:
    """Gives the application with the page and the files of jobs.

    Args:
        bundle: what the workers have open. one: offer no other ones, as workers of other machines
            may lack them.
        folder: of the service; uploads lie in it, and are deleted at the end.
        key: with which people log in, if any. own_hosts: without one, requests must name this
            machine as their host.
    """
    uploads = folder.resolve() / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)  # of a page that was killed
    uploads.mkdir(0o700, parents=True)
    os.environ |= {"GRADIO_TEMP_DIR": str(uploads), "GRADIO_ANALYTICS_ENABLED": "False"}

    async def made() -> tuple[Page, Starlette]:
        page = Page(service, uploads, _bundles(bundle, one=one))
        app = create_app(service, None, own_hosts=own_hosts, files_only=True)
        app.add_route("/v1/jobs/{job_id}/before", partial(_before, service, page.inputs.files))
        app.add_middleware(_guard, service=service, own_hosts=own_hosts and key is None)
        app.add_middleware(LingeringClose, most_bytes=service.limits.most_upload_bytes)
        return page, gr.mount_gradio_app(
            app,
            page.blocks,
            path="/",
            auth=None if key is None else ("user", key),
            footer_links=[],
            run_history=False,
            show_error=False,
            max_file_size=round(service.limits.most_upload_bytes),
            enable_monitoring=False,
            app_kwargs={
                "exception_handlers": dict.fromkeys((KeyError, FnIndexInferError), _unknown_event)
            },
            theme=gr.themes.Default(**_THEME).set(**_BODY),
            css_paths=_HERE / "page.css",
            head="".join(
                f"<script>{path.read_text('utf-8')}</script>" for path in sorted(_HERE.glob("*.js"))
            ),
        )

    # Outside a running event loop, Gradio makes some that it never closes.
    page, app = asyncio.run(made())
    try:
        yield app
    finally:
        page.inputs.search.close()
        page.inputs.files.close()
        shutil.rmtree(uploads, ignore_errors=True)


def _unknown_event(_: Request, error: Exception) -> PlainTextResponse:
    """The answer to a request for an event that the page does not have."""
    return PlainTextResponse(f"event: {error} is none of this page; open it again", 404)


def _before(service: Service, copies: Pool, request: Request) -> FileResponse:
    """The video that was sent, at the times of the result. Its type may be that of an upload: no
    scripts.
    """
    path = jobs.before(service, request.path_params["job_id"], copies)
    return FileResponse(path, headers={"Content-Security-Policy": "sandbox"})


def _guard(app: ASGIApp, service: Service, *, own_hosts: bool) -> ASGIApp:
    """Refuses other sites and browsers, many passwords, and uploads for which there is no room;
    marks browsers.
    """
    # whence and when wrong ones came
    logins: deque[tuple[str, float]] = deque(maxlen=_MOST_LOGINS * _MOST_SENDERS)

    def check(request: Request, sender: str) -> None:
        check_origin(request, own_hosts)  # also with a key: browsers send the cookie of a login
        path = request.url.path
        job = _JOB.match(request.url.path)
        if _ADDRESS.match(path):
            raise HTTPException(403, "file: is an address; only uploaded files are served")
        since_s = time.monotonic() - _MINUTE_S
        if (
            path == "/login"
            and sum(one == sender and at_s > since_s for one, at_s in tuple(logins)) >= _MOST_LOGINS
        ):
            raise HTTPException(
                429, f"login: {_MOST_LOGINS} wrong passwords in a minute; try again later"
            )
        if path.endswith("/upload") and service.problem() == FULL:
            raise HTTPException(507, FULL)
        if job and job[1] not in jobs.of_browser(service, request.cookies.get(jobs.COOKIE)):
            raise HTTPException(
                404,
                f"job {job[1][:40]}: does not exist, was deleted, or belongs to another browser",
            )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope)
        answer = app
        sender = request.client.host if request.client else ""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", _POLICY)
                if request.url.path == "/" and jobs.COOKIE not in request.cookies:
                    headers.append(
                        "set-cookie", f"{jobs.COOKIE}={secrets.token_hex(16)}; {_COOKIE}"
                    )
                if request.url.path == "/login" and message["status"] == HTTPStatus.BAD_REQUEST:
                    logins.append((sender, time.monotonic()))
            await send(message)

        try:
            await run_in_threadpool(check, request, sender)
        except HTTPException as error:
            answer = PlainTextResponse(error.detail, error.status_code)
        try:
            await answer(scope, receive, marked)
        except RuntimeError as error:
            # which Gradio may raise after its answer has begun
            if not isinstance(error.__cause__, HTTPException):
                raise

    return guarded


def _bundles(bundle: str, *, one: bool) -> dict[str, str]:
    """Folders of the bundles to choose from by what they are called; the one that is open comes
    first.
    """
    if is_url(bundle):
        return {url_file_name(bundle): bundle}
    opened = find_bundle(bundle)[0]
    if one:
        others = []
    else:
        others = [
            folder for folder in (*exported_bundles(), demo_folder()) if not folder.samefile(opened)
        ]
    return {describe(folder): str(folder.absolute()) for folder in (opened, *others)}
