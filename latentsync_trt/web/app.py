"""The page as a web application, around a service."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.serve.app import FastAPI, check_origin, create_app
from latentsync_trt.serve.service import Service
from latentsync_trt.web import jobs

USER = "user"
"""Who logs in with the key."""
_HERE = Path(__file__).parent
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'self'"
)
"""Browsers load nothing from other hosts. Gradio draws with inline scripts and templates that it compiles."""


@contextmanager
def page_app(service: Service, folder: Path, key: str | None, *, own_hosts: bool) -> Iterator[FastAPI]:
    """The application with the page, the files of jobs, and the endpoint `/sync`.

    Args:
        folder: of the service; uploads lie in it, and are deleted at the end.
        key: with which people log in, if any. own_hosts: without one, requests must name this machine as their host.
    """
    uploads = folder.absolute() / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)  # of a page that was killed
    uploads.mkdir(0o700, parents=True)
    os.environ |= {"GRADIO_TEMP_DIR": str(uploads), "GRADIO_ANALYTICS_ENABLED": "False"}
    import gradio as gr

    from latentsync_trt.web.page import Page
    from latentsync_trt.web.theme import theme

    def source(request: Request) -> FileResponse:
        return FileResponse(jobs.source(service, request.path_params["job_id"]))

    page = Page(service, uploads)
    # Whoever knows the random id of a job may have its files.
    app = create_app(service, None, own_hosts=own_hosts, files_only=True)
    app.add_route("/v1/jobs/{job_id}/source", source)
    app.add_middleware(_Guard, own_hosts=own_hosts, open_=key is None)
    script = (_HERE / "compare.js").read_text("utf-8")
    try:
        yield gr.mount_gradio_app(
            app,
            page.blocks,
            path="/",
            auth=None if key is None else (USER, key),
            footer_links=[],
            run_history=False,
            show_error=False,
            max_file_size=round(service.limits.max_upload_mb * 1e6),
            ssr_mode=False,
            mcp_server=False,
            pwa=False,
            enable_monitoring=False,
            theme=theme(),
            css_paths=_HERE / "page.css",
            head=f"<script>{script}</script>",
        )
    finally:
        page.close()
        shutil.rmtree(uploads, ignore_errors=True)


class _Guard:
    """Refuses what other sites send, and addresses that Gradio would fetch; forbids browsers to load from elsewhere."""

    def __init__(self, app: Any, *, own_hosts: bool, open_: bool) -> None:
        self._app, self._own_hosts, self._open = app, own_hosts, open_

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(event: Any) -> None:
            if event["type"] == "http.response.start":
                names = {name.lower() for name, _ in event["headers"]}
                if b"content-security-policy" not in names:
                    event["headers"] = [*event["headers"], (b"content-security-policy", _POLICY.encode())]
            await send(event)

        try:
            if self._open:
                check_origin(Request(scope), self._own_hosts)
            if scope["path"].startswith(("/gradio_api/file=http:", "/gradio_api/file=https:")):
                raise HTTPException(403, "file: is an address; only uploaded files are served")
        except HTTPException as error:
            await PlainTextResponse(error.detail, error.status_code)(scope, receive, send)
            return
        await self._app(scope, receive, guarded)


def public_address(host: str, port: int) -> str:
    """An address on the Internet that leads to the page, by Gradio's servers; raises `LatentSyncError`."""
    import secrets

    from gradio.networking import setup_tunnel

    try:
        return str(setup_tunnel(host, port, secrets.token_urlsafe(32), None, None))
    except Exception as error:
        cure = "look at the connection to the Internet, or leave --share out"
        raise LatentSyncError(f"--share: Gradio's servers gave no address ({error}); {cure}") from error
