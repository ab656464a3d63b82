"""The page as a web application, around a service."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, PlainTextResponse

from latentsync_trt.batch.remote_files import is_url, url_file_name
from latentsync_trt.bundle.find import demo_folder, describe, exported_bundles, find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME
from latentsync_trt.environment import changed_environment
from latentsync_trt.serve.app import create_app, on_error
from latentsync_trt.serve.checks import Pool
from latentsync_trt.serve.server import LingeringClose
from latentsync_trt.serve.service import Service
from latentsync_trt.web.guard import Guard
from latentsync_trt.web.jobs import video_before

# At its import, Gradio opens an HTTP client, which the page never uses, and which proxies or
# certificates that are set for other programs may break.
with changed_environment({"no_proxy": "*", "SSL_CERT_FILE": None, "SSL_CERT_DIR": None}):
    import gradio as gr
    from gradio.route_utils import FnIndexInferError

    from latentsync_trt.web.page import Page
    from latentsync_trt.web.parts import REPORTS

_HERE = Path(__file__).parent
_THEME: Any = {
    "primary_hue": "teal",
    "neutral_hue": "zinc",
    "radius_size": "lg",
    "font": ("system-ui", "sans-serif"),
}
"""The colors and the font of the page."""

_BODY = {"body_background_fill": "#fafafa", "body_background_fill_dark": "#131316"}


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
        folder: that of the service; uploads lie in it, and are deleted at the end.
        key: what people log in with, if anything.
        own_hosts: whether requests without a key must name this machine as their host.
        bundle: what the workers have open.
        one: offer no other bundles, as workers of other machines may lack them.
    """
    uploads = folder.resolve() / "uploads"
    shutil.rmtree(uploads, ignore_errors=True)  # of a page that was killed
    uploads.mkdir(0o700, parents=True)
    os.environ |= {"GRADIO_TEMP_DIR": str(uploads), "GRADIO_ANALYTICS_ENABLED": "False"}

    async def make() -> tuple[Page, Starlette]:
        page = Page(service, uploads, _bundles_on_offer(bundle, one=one))
        app = create_app(service, None, own_hosts=own_hosts, files_only=True)
        send_before = partial(_send_video_before, service, page.inputs.files)
        app.add_route("/v1/jobs/{job_id}/before", send_before)
        app.add_middleware(Guard, service=service, own_hosts=own_hosts and key is None)
        app.add_middleware(LingeringClose, most_bytes=service.limits.most_upload_bytes)
        scripts = [path.read_text("utf-8") for path in sorted(_HERE.glob("*.js"))]
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
                "exception_handlers": {
                    **dict.fromkeys((KeyError, FnIndexInferError), _unknown_event),
                    ClientDisconnect: on_error,  # a page that is closed while it sends a file
                }
            },
            theme=gr.themes.Default(**_THEME).set(**_BODY),
            css_paths=[REPORTS / "bands.css", _HERE / "page.css"],
            head="".join(f"<script>{script}</script>" for script in scripts),
        )

    # Outside a running event loop, Gradio makes some that it never closes.
    page, app = asyncio.run(make())
    try:
        yield app
    finally:
        page.inputs.search.close()
        page.inputs.files.close()
        shutil.rmtree(uploads, ignore_errors=True)


def _unknown_event(_: Request, error: Exception) -> PlainTextResponse:
    """Returns the answer to a request for an event that the page does not have."""
    return PlainTextResponse(f"event: {error} is none of this page; open it again", 404)


def _send_video_before(service: Service, copies: Pool, request: Request) -> FileResponse:
    """Returns the video that was sent, at the times of the result. Its type may be that of an
    upload: no scripts.
    """
    path = video_before(service, request.path_params["job_id"], copies)
    return FileResponse(path, headers={"Content-Security-Policy": "sandbox"})


def _bundles_on_offer(bundle: str, *, one: bool) -> dict[str, str]:
    """Returns the folders of the bundles to choose from by what they are called; the one that is
    open comes first.
    """
    if is_url(bundle):
        return {url_file_name(bundle): bundle}
    opened = find_bundle(bundle)[0]
    folders = [opened]
    if not one:
        others = [*exported_bundles(), demo_folder()]
        folders += [folder for folder in others if not folder.samefile(opened)]
    return {describe(folder): str(folder.absolute()) for folder in folders}
