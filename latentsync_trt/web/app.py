"""The page as a web application, around a service."""

import asyncio
import os
import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from latentsync_trt.bundle.find import demo_folder, describe, exported_bundles, find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.remote_files import is_url
from latentsync_trt.remote_files import name_of as name_of_url
from latentsync_trt.serve.admission import NotNow
from latentsync_trt.serve.app import check_origin, create_app
from latentsync_trt.serve.linger import LingeringClose
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs
from latentsync_trt.web.previews import Previews

if TYPE_CHECKING:
    from latentsync_trt.web.page import Page

USER = "user"
"""The name with which people log in."""
_COOKIE, _YEAR_S = "latentsync_trt_browser", 365 * 24 * 3600
"""Marks a browser, so that no other one gets the files of its jobs, not even by their addresses."""
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
    uploads = folder.absolute() / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)  # of a page that was killed
    uploads.mkdir(0o700, parents=True)
    os.environ |= {"GRADIO_TEMP_DIR": str(uploads), "GRADIO_ANALYTICS_ENABLED": "False"}

    from latentsync_trt.web.page import Page

    previews = Previews(service.limits)

    def shown(find: Callable[[Service, str], Path], request: Request) -> FileResponse:
        """What browsers can play of a file of a job."""
        made = previews.of(find(service, request.path_params["job_id"]))
        if not made.done():
            raise NotNow("preview: is being made; try again later")
        # The name, and so the type, of a source is that of the upload: no page that runs scripts here.
        return FileResponse(made.result(), headers={"Content-Security-Policy": "sandbox"})

    def download(request: Request) -> FileResponse:
        path, name = jobs.download(service, request.path_params["job_id"])
        return FileResponse(path, filename=name)

    async def made() -> tuple[Page, Starlette]:
        page = Page(service, uploads, _COOKIE, previews, _bundles(bundle, one=one))
        app = create_app(service, None, own_hosts=own_hosts, files_only=True)
        app.add_route("/v1/jobs/{job_id}/source", partial(shown, jobs.source))
        app.add_route("/v1/jobs/{job_id}/shown", partial(shown, Service.result))
        app.add_route("/v1/jobs/{job_id}/download", download)
        app.add_middleware(BaseHTTPMiddleware, dispatch=_Guard(service, uploads, own_hosts=own_hosts and key is None))
        app.add_middleware(LingeringClose, most_bytes=service.limits.most_upload_bytes)
        return page, _mounted(app, page, key, service.limits.most_upload_bytes)

    # Outside a running event loop, Gradio makes some that it never closes.
    page, app = asyncio.run(made())
    try:
        yield app
    finally:
        page.inputs.close()
        previews.close()
        shutil.rmtree(uploads, ignore_errors=True)


class _Guard:
    """Refuses other sites and other browsers, many passwords, and uploads for which there is no room; marks browsers.

    `own_hosts`: as for `check_origin`. `uploads`: the folder in which they lie.
    """

    def __init__(self, service: Service, uploads: Path, *, own_hosts: bool) -> None:
        self._service, self._uploads, self._own_hosts = service, uploads, own_hosts
        self._most_bytes = _MOST_UPLOADS * service.limits.most_upload_bytes
        self._logins: deque[tuple[str, float]] = deque(maxlen=_MOST_LOGINS * _MOST_SENDERS)
        """From where and when wrong passwords came."""

    async def __call__(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        try:
            await run_in_threadpool(self._check, request)
            response = await call_next(request)
            if request.url.path == "/login" and response.status_code >= HTTPStatus.BAD_REQUEST:
                self._logins.append((_sender(request), time.monotonic()))
        except HTTPException as error:
            response = PlainTextResponse(error.detail, error.status_code)
        except RuntimeError:  # Starlette's, where there is no answer, as for a tab that is closed while it loads
            if not await request.is_disconnected():
                raise
            response = Response()
        response.headers.setdefault("content-security-policy", _POLICY)
        if request.url.path == "/" and _COOKIE not in request.cookies:
            response.set_cookie(_COOKIE, secrets.token_hex(16), max_age=_YEAR_S, httponly=True, samesite="lax")
        return response

    def _check(self, request: Request) -> None:
        check_origin(request, self._own_hosts)  # also with a key: browsers send the cookie of a login
        if _ADDRESS.match(request.url.path):
            raise HTTPException(403, "file: is an address; only uploaded files are served")
        job = _JOB.match(request.url.path)
        since_s = time.monotonic() - _MINUTE_S
        recent = [sender for sender, at_s in tuple(self._logins) if at_s > since_s and sender == _sender(request)]
        if request.url.path == "/login" and len(recent) >= _MOST_LOGINS:
            raise HTTPException(429, f"login: {_MOST_LOGINS} wrong passwords in a minute; try again later")
        if request.url.path.endswith("/upload") and _size_bytes(self._uploads) > self._most_bytes:
            raise HTTPException(507, "upload: too many files wait for a job; try again later")
        if job and not jobs.is_of(self._service, job[1], request.cookies.get(_COOKIE, "")):
            raise HTTPException(404, f"job {job[1][:40]}: does not exist, was deleted, or belongs to another browser")


def _bundles(bundle: str, *, one: bool) -> dict[str, str]:
    """Folders of the bundles to choose from by what they are called; the one that is open comes first."""
    if is_url(bundle):
        return {name_of_url(bundle): bundle}
    opened = find_bundle(bundle)[0]
    others = [] if one else [folder for folder in (*exported_bundles(), demo_folder()) if not folder.samefile(opened)]
    return {describe(folder): str(folder.absolute()) for folder in (opened, *others)}


def _sender(request: Request) -> str:
    return request.client.host if request.client else ""


def _size_bytes(folder: Path) -> int:
    paths = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sum(path.stat().st_size for path in paths if path.exists())


def _mounted(app: Starlette, page: "Page", key: str | None, most_upload_bytes: float) -> Starlette:
    """The application with the page at its root."""
    import gradio as gr

    from latentsync_trt.web.parts import theme

    mounted: Starlette = gr.mount_gradio_app(
        app,
        page.blocks,
        path="/",
        auth=None if key is None else (USER, key),
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=round(most_upload_bytes),
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        theme=theme(),
        css_paths=_HERE / "page.css",
        head="".join(f"<script>{(_HERE / name).read_text('utf-8')}</script>" for name in ("compare.js", "inputs.js")),
    )
    return mounted
