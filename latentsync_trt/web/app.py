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

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, DispatchFunction, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from latentsync_trt.batch.remote_files import is_url
from latentsync_trt.batch.remote_files import name_of as name_of_url
from latentsync_trt.bundle.find import demo_folder, describe, exported_bundles, find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.serve.app import check_origin, create_app
from latentsync_trt.serve.server import LingeringClose
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs

USER = "user"
"""The name with which people log in."""
_YEAR_S = 365 * 24 * 3600
_JOB, _ADDRESS = re.compile(r"/v1/jobs/([^/]+)"), re.compile(r"/gradio_api/file=\w+:/")
_HERE = Path(__file__).parent
_MOST_LOGINS, _MINUTE_S, _MOST_SENDERS = 10, 60, 100
_MOST_UPLOADS = 10
"""Largest uploads that may lie here without a job."""
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'self'"
)
"""Browsers load nothing from other hosts. Gradio draws with inline scripts and templates that it compiles."""


@contextmanager
def page_app(
    service: Service, folder: Path, key: str | None, *, own_hosts: bool, bundle: str = DEMO_NAME, one: bool = False
) -> Iterator[Starlette]:
    """Gives the application with the page and the files of jobs.

    Args:
        bundle: what the workers have open. one: offer no other ones, as workers of other machines may lack them.
        folder: of the service; uploads lie in it, and are deleted at the end.
        key: with which people log in, if any. own_hosts: without one, requests must name this machine as their host.
    """
    uploads = folder.resolve() / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)  # of a page that was killed
    uploads.mkdir(0o700, parents=True)
    os.environ |= {"GRADIO_TEMP_DIR": str(uploads), "GRADIO_ANALYTICS_ENABLED": "False"}

    import gradio as gr

    from latentsync_trt.web.page import Page
    from latentsync_trt.web.parts import theme

    async def made() -> tuple[Page, Starlette]:
        page = Page(service, uploads, _bundles(bundle, one=one))
        app = create_app(service, None, own_hosts=own_hosts, files_only=True)
        for name in "before", "download":
            app.add_route(f"/v1/jobs/{{job_id}}/{name}", partial(_file, service, name))
        dispatch = _guard(service, uploads, own_hosts=own_hosts and key is None)
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
        app.add_middleware(LingeringClose, most_bytes=service.limits.most_upload_bytes)
        return page, gr.mount_gradio_app(
            app,
            page.blocks,
            path="/",
            auth=None if key is None else (USER, key),
            footer_links=[],
            run_history=False,
            show_error=False,
            max_file_size=round(service.limits.most_upload_bytes),
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            theme=theme(),
            css_paths=_HERE / "page.css",
            head="".join(f"<script>{path.read_text('utf-8')}</script>" for path in sorted(_HERE.glob("*.js"))),
        )

    # Outside a running event loop, Gradio makes some that it never closes.
    page, app = asyncio.run(made())
    try:
        yield app
    finally:
        page.inputs.search.close()
        shutil.rmtree(uploads, ignore_errors=True)


def _file(service: Service, name: str, request: Request) -> FileResponse:
    """A file that the service does not have, or not under this name. Its type may be that of an upload: no scripts."""
    job_id = request.path_params["job_id"]
    path, shown = (jobs.before(service, job_id), None) if name == "before" else jobs.download(service, job_id)
    return FileResponse(path, filename=shown, headers={"Content-Security-Policy": "sandbox"})


def _guard(service: Service, uploads: Path, *, own_hosts: bool) -> DispatchFunction:
    """Refuses other sites and other browsers, many passwords, and uploads for which there is no room; marks browsers.

    `own_hosts`: as for `check_origin`. `uploads`: the folder in which they lie.
    """
    logins: deque[tuple[str, float]] = deque(maxlen=_MOST_LOGINS * _MOST_SENDERS)  # whence and when wrong ones came

    def check(request: Request, sender: str) -> None:
        check_origin(request, own_hosts)  # also with a key: browsers send the cookie of a login
        path, job = request.url.path, _JOB.match(request.url.path)
        if _ADDRESS.match(path):
            raise HTTPException(403, "file: is an address; only uploaded files are served")
        since_s = time.monotonic() - _MINUTE_S
        if path == "/login" and sum(one == sender and at_s > since_s for one, at_s in tuple(logins)) >= _MOST_LOGINS:
            raise HTTPException(429, f"login: {_MOST_LOGINS} wrong passwords in a minute; try again later")
        if path.endswith("/upload") and _size_bytes(uploads) > _MOST_UPLOADS * service.limits.most_upload_bytes:
            raise HTTPException(507, "upload: too many files wait for a job; try again later")
        if job and jobs.own(service, job[1], request.cookies.get(jobs.COOKIE)) is None:
            raise HTTPException(404, f"job {job[1][:40]}: does not exist, was deleted, or belongs to another browser")

    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        sender = request.client.host if request.client else ""
        try:
            await run_in_threadpool(check, request, sender)
            response = await call_next(request)
            if request.url.path == "/login" and response.status_code >= HTTPStatus.BAD_REQUEST:
                logins.append((sender, time.monotonic()))
        except HTTPException as error:
            response = PlainTextResponse(error.detail, error.status_code)
        except RuntimeError:  # Starlette's, where there is no answer, as for a tab that is closed while it loads
            if not await request.is_disconnected():
                raise
            response = Response()
        response.headers.setdefault("content-security-policy", _POLICY)
        if request.url.path == "/" and jobs.COOKIE not in request.cookies:
            response.set_cookie(jobs.COOKIE, secrets.token_hex(16), max_age=_YEAR_S, httponly=True, samesite="lax")
        return response

    return dispatch


def _bundles(bundle: str, *, one: bool) -> dict[str, str]:
    """Folders of the bundles to choose from by what they are called; the one that is open comes first."""
    if is_url(bundle):
        return {name_of_url(bundle): bundle}
    opened = find_bundle(bundle)[0]
    others = [] if one else [folder for folder in (*exported_bundles(), demo_folder()) if not folder.samefile(opened)]
    return {describe(folder): str(folder.absolute()) for folder in (opened, *others)}


def _size_bytes(folder: Path) -> int:
    paths = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sum(path.stat().st_size for path in paths if path.exists())
