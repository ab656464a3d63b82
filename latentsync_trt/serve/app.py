"""The service over HTTP: a FastAPI application around a `Service`."""

import asyncio
import errno
import ipaddress
import logging
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, TypeVar, get_args
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client import Counter as Total
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect, HTTPConnection

from latentsync_trt import __version__
from latentsync_trt.batch.job_store import State
from latentsync_trt.batch.tasks import WorkerStateName
from latentsync_trt.child import ChildLost
from latentsync_trt.errors import Busy, InputError, LatentSyncError, MediaError, OutputError
from latentsync_trt.paths import printable
from latentsync_trt.serve.admission import (
    PAGE,
    PREVIEW,
    RETRY_S,
    SPEAKER,
    Form,
    Limits,
    NotNow,
    TooLarge,
    UnknownJob,
)
from latentsync_trt.serve.folders import FULL
from latentsync_trt.serve.jobs import JobStatus
from latentsync_trt.serve.server import LingeringClose
from latentsync_trt.serve.service import Service

F = TypeVar("F", bound=Callable[..., Any])

_LEAST_BYTES_PER_S = 10_000
"""Rate of an upload on the whole, after the time in which it may stall."""

_TYPES = {".mp4": "video/mp4", ".mov": "video/quicktime", ".mkv": "video/x-matroska"}
_STATUS: dict[type[Exception], int] = {
    UnknownJob: 404,
    NotNow: 409,
    Busy: 429,
    OutputError: 507,
    ChildLost: 503,
    TooLarge: 413,
    MediaError: 415,
    InputError: 422,
    ClientDisconnect: 400,
}
"""The status of an answer by its error; of a class and its parents, the first one counts."""
_INVALID = RequestValidationError, WebSocketRequestValidationError
HANDLED = LatentSyncError, ClientDisconnect, OSError, Exception, StarletteHTTPException, *_INVALID
_FILE = {"type": "string", "format": "binary"}
_TEXT_FIELDS = ("options", "label")
_FILE_FIELDS = ("video", "audio", "mix", "turns", "faces", "keep_mask", "c2pa")
_FIELDS = {name: {"type": "string"} for name in _TEXT_FIELDS} | dict.fromkeys(
    (*_FILE_FIELDS, "speaker_0"), _FILE
)
_FORM = {
    "content": {"multipart/form-data": {"schema": {"type": "object", "properties": _FIELDS}}},
    "required": True,
}

_MOST_TEXT_BYTES = 64 * 1024
_LONGEST_FILE_NAME = 255
_LARGEST_OFFSET = 2**63 - 1
"""The largest integer of SQLite."""
_FILE_SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Problem:
    """The body of every response that is an error."""

    error: str


disable_created_metrics()  # type: ignore[no-untyped-call]

_log = logging.getLogger(__name__)
_bearer = HTTPBearer(auto_error=False)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def create_app(
    service: Service,
    key: str | None,
    *,
    own_hosts: bool = False,
    files_only: bool = False,
    stall_s: float = 60.0,
) -> FastAPI:
    """Returns the application of a service.

    Args:
        key: what clients must send, if any.
        own_hosts: without a key, requests must name this machine as their host.
        files_only: answers only requests for the files of a job whose id is known; add
            `LingeringClose` yourself.
        stall_s: an upload of which nothing arrives for so long ends.
    """
    described: dict[str, Any] = {
        "title": "latentsync-trt",
        "summary": "Lip-syncs videos to speech recordings.",
        "version": __version__,
        "exception_handlers": dict.fromkeys(HANDLED, on_error),
        "responses": {
            status: {"model": Problem, "description": "What is wrong"}
            for status in ("4XX", "5XX", 422)
        },
    }
    # The page of the description is served from here: scripts of other hosts could use the key that
    # people enter there.
    if files_only:
        app = FastAPI(openapi_url=None, **described)
    else:
        app = FastAPIOffline(redoc_url=None, **described)
    for page in app.routes:
        if isinstance(page, APIRoute) and page.methods:  # those of the description
            page.methods.add("HEAD")
    allowed = [Depends(guard(key, own_hosts))]
    app.include_router(_files(service), dependencies=allowed)
    if not files_only:
        app.add_route("/", lambda _: RedirectResponse("docs"), include_in_schema=False)
        app.include_router(_jobs(service, stall_s), dependencies=allowed)
        app.include_router(_monitoring(service, allowed))
        app.add_middleware(LingeringClose, most_bytes=service.limits.most_upload_bytes)
    return app


def readable(router: APIRouter | FastAPI, path: str, **how: Any) -> Callable[[F], F]:
    """Adds a route that answers GET, and HEAD with the same status and headers; `how`: as for
    `APIRouter.get`.
    """

    def add(function: F) -> F:
        router.head(path, **how, include_in_schema=False)(function)
        return router.get(path, **how)(function)

    return add


def guard(key: str | None, own_hosts: bool) -> Callable[..., None]:
    """Returns a dependency that refuses requests without the key or, where there is none, those of
    other sites.
    """

    def check(
        request: Request, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> None:
        if key is None:
            check_origin(request, own_hosts)
        elif not has_key(request, key):
            problem = "wrong" if sent else "missing"
            message = f"key: is {problem}; send it as Authorization: Bearer KEY"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    return check


def has_key(request: HTTPConnection, key: str) -> bool:
    scheme, _, sent = request.headers.get("authorization", "").partition(" ")
    is_key = secrets.compare_digest(sent.strip().encode("latin-1"), key.encode())
    return is_key and scheme.lower() == "bearer"


def check_origin(request: HTTPConnection, own_hosts: bool) -> None:
    """Refuses requests of other sites: without a key, any web page that the user opens could send
    some.

    Behind a proxy, this site is what the proxy says in X-Forwarded-Host, which no web page can set.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        sender = urlsplit(origin or f"//{host}").netloc
    except ValueError as error:
        problem = f"host {host[:80]!r}, origin {str(origin)[:80]!r}: are no addresses"
        raise HTTPException(400, problem) from error
    if own_hosts and not is_loopback(name):
        cure = "send requests to 127.0.0.1 or localhost"
        raise HTTPException(403, f"host {host}: is not this machine; {cure}")
    if sender not in (host, request.headers.get("x-forwarded-host")):
        raise HTTPException(403, f"origin {origin}: is another site; send requests from this one")


def _jobs(service: Service, stall_s: float) -> APIRouter:
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    # Jobs whose files are checked wait in threads of their own, so that no other request does.
    limiter = CapacityLimiter(16)

    @router.post("", status_code=201, openapi_extra={"requestBody": _FORM})
    async def submit(request: Request, response: Response) -> JobStatus:
        """Send `video` and `audio` as files, or `speaker_0`, `speaker_1`, … in place of `audio`.

        `options` is a JSON object with any option of `latentsync-trt sync`, as `{"preset": "fast",
        "report": true}`; options that name files (`mix`, `turns`, `faces`, `c2pa`) are sent as
        files in fields of these names. `label` is a name of your own for the job.
        """
        service.limits.check_size(int(request.headers.get("content-length", "0")))
        with service.intake.receiving() as (job_id, folder):
            form = await _receive(request, folder, service.limits, stall_s)
            await to_thread.run_sync(service.intake.submit, job_id, form, limiter=limiter)
        response.headers["Location"] = str(request.url_for("state", job_id=job_id))
        return await to_thread.run_sync(service.jobs.status, job_id)

    @readable(router, "")
    def newest(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Annotated[int, Query(ge=0, le=_LARGEST_OFFSET)] = 0,
    ) -> list[JobStatus]:
        """The newest jobs first, without their reports."""
        return [replace(each, report=None) for each in service.jobs.newest(limit, offset)]

    @readable(router, "/{job_id}")
    def state(job_id: str) -> JobStatus:
        """State and progress of a job; at its end, its report or its error."""
        return service.jobs.status(job_id)

    @router.post("/{job_id}/cancel", status_code=202)
    def cancel(job_id: str) -> JobStatus:
        """Cancels a job that waits or runs; no error if it is canceled already."""
        return service.jobs.cancel(job_id)

    @router.post("/{job_id}/redo", status_code=201)
    async def redo(
        request: Request,
        response: Response,
        job_id: str,
        options: Annotated[dict[str, Any], Body()],
    ) -> JobStatus:
        """Does a part of a result again, as a new job: its result is that of the former one, but
        for the spans, as in `{"redo": ["12.4:14"], "seed": 7}`. `keep_source` leaves the source
        there; `preset`, `steps`, `guidance`, `face`, `occluders` and `finish` may differ, too.
        """
        again = partial(service.intake.redo, job_id, options)
        new_id = await to_thread.run_sync(again, limiter=limiter)
        response.headers["Location"] = str(request.url_for("state", job_id=new_id))
        return await to_thread.run_sync(service.jobs.status, new_id)

    @router.delete("/{job_id}", status_code=204)
    def delete(job_id: str) -> None:
        """Cancels a job that has not ended, and deletes its files."""
        service.jobs.delete(job_id)

    return router


def _files(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], default_response_class=Response)

    @readable(
        router,
        "/result",
        responses={200: {"content": {each: {"schema": _FILE} for each in _TYPES.values()}}},
    )
    def result(job_id: str) -> FileResponse:
        """The video, or parts of it by Range requests."""
        path, name = service.jobs.result(job_id)
        return FileResponse(path, media_type=_TYPES.get(path.suffix), filename=name)

    @readable(router, "/preview", responses={200: {"content": {"image/jpeg": {"schema": _FILE}}}})
    def preview(job_id: str) -> Response:
        """A small JPEG of the newest frame, about one a second while the job runs."""
        path = service.jobs.folder(job_id) / PREVIEW
        if not path.is_file():
            cure = "ask again when its stage is lip-sync"
            raise HTTPException(404, f"job {job_id}: has no preview yet; {cure}")
        # Read at once: the file may be replaced by one of another size.
        headers = {"Cache-Control": "no-store"}
        return Response(path.read_bytes(), media_type="image/jpeg", headers=headers)

    @readable(router, "/report", responses={200: {"content": {"text/html": {"schema": _FILE}}}})
    def report(job_id: str) -> FileResponse:
        """The page with measures and pictures of the result, if `report` was true in the
        options.
        """
        path = service.jobs.result(job_id)[0].with_name(PAGE)
        if not path.is_file():
            raise NotNow(f'job {job_id}: has no page; send "report": true in its options')
        headers = {"Content-Security-Policy": "sandbox"}
        return FileResponse(path, media_type="text/html", headers=headers)

    return router


def _monitoring(service: Service, allowed: list[Any]) -> APIRouter:
    router = APIRouter(tags=["service"])

    @readable(router, "/healthz")
    def health() -> JSONResponse:
        """200 when a worker is ready or at work, else 503 with the reason; needs no key."""
        problem = service.problem()
        if problem:
            return JSONResponse({"error": problem}, 503)
        return JSONResponse({"status": "ready"})

    @readable(router, "/metrics", dependencies=allowed)
    def metrics() -> Response:
        """What the service has done since it started, and what it does now, for Prometheus."""
        return Response(_figures(service), media_type=CONTENT_TYPE_LATEST)

    return router


def _figures(service: Service) -> bytes:
    """Returns the figures of a service in the format of Prometheus."""
    registry = CollectorRegistry()
    totals = service.events.totals

    def add(
        kind: type[Total | Gauge], name: str, text: str, values: Iterable[str], counts: Counter[Any]
    ) -> None:
        label = "kind" if name == "failures" else "state"
        family = kind(f"latentsync_{name}", text, [label], registry=registry)
        for value in values:
            family.labels(value).inc(counts[value])

    jobs = Counter(service.jobs.counts())
    workers = Counter(each.state for each in service.events.workers())
    ends = ("done", "failed", "canceled")
    Total("latentsync_frames", "Frames written.", registry=registry).inc(totals["frames"])
    add(Total, "jobs_ended", "Jobs by state at their end.", ends, totals)
    add(Total, "failures", "Lost workers and failed jobs.", ("input", "worker", "run"), totals)
    add(Gauge, "jobs", "Jobs that are kept.", get_args(State), jobs)
    add(Gauge, "workers", "Workers.", get_args(WorkerStateName), workers)
    return generate_latest(registry)


async def on_error(_: Request, error: Exception) -> JSONResponse:
    """Returns the answer to an error of `HANDLED`."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    message = str(error)
    headers = dict[str, str]()
    if isinstance(error, StarletteHTTPException):
        status = error.status_code
        message = error.detail
        headers = dict(error.headers or {})
    elif isinstance(error, _INVALID):
        first = error.errors()[0]
        status = 422
        message = f"{first['loc'][-1]}: {first['msg']}"
        if first["type"] == "json_invalid":
            message = "body: is not JSON; send an object, as the page /docs describes it"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        status = 507
        message = FULL
    elif status == 500:
        _log.error("request failed", exc_info=error)
        if not isinstance(error, LatentSyncError):
            message = "service: internal error; its log says more"
    if status in (429, 503):
        headers["Retry-After"] = str(RETRY_S)
    return JSONResponse({"error": message}, status, headers)


async def _receive(request: Request, folder: Path, limits: Limits, stall_s: float) -> Form:
    """Reads a multipart form, whose files go to `folder` when all have arrived; raises
    `InputError`.
    """
    received_bytes = 0
    began_s = time.monotonic()

    async def receive() -> Any:
        nonlocal received_bytes
        left_s = stall_s + received_bytes / _LEAST_BYTES_PER_S - (time.monotonic() - began_s)
        message = await asyncio.wait_for(request.receive(), min(stall_s, max(left_s, 0.0)))
        received_bytes += len(message.get("body", b""))
        limits.check_size(received_bytes)
        return message

    form = Form({}, {})
    try:
        async with Request(request.scope, receive).form(max_part_size=_MOST_TEXT_BYTES) as sent:
            for name, value in sent.multi_items():
                await to_thread.run_sync(_take, form, name, value, folder)
    except TimeoutError as error:
        least = f"less than {_LEAST_BYTES_PER_S // 1000} kB/s on the whole"
        slow = f"nothing arrived for {stall_s:g} seconds, or {least}"
        raise InputError(f"request: {slow}; send it again over a faster connection") from error
    except StarletteHTTPException as error:
        cure = "let a library or curl -F write it"
        raise InputError(f"request: is not a valid form: {error.detail}; {cure}") from error
    return form


def _take(form: Form, name: str, value: Any, folder: Path) -> None:
    """Adds a field to a form, and a file to `folder`."""
    if name in form.files or name in form.texts:
        raise InputError(f"{name}: is given twice; send it once")
    if isinstance(value, str) and name in _TEXT_FIELDS:
        form.texts[name] = value
        return
    if isinstance(value, str) or not (name in _FILE_FIELDS or SPEAKER.fullmatch(name)):
        files = ", ".join((*_FILE_FIELDS, "speaker_0", "speaker_1", "…"))
        cure = f"send {' and '.join(_TEXT_FIELDS)} as text, and as files {files}"
        raise InputError(f"{name[:40]}: is no field, or is sent in the wrong way; {cure}")
    if not value.filename:  # a browser's field in which no file was chosen
        return
    sent_as = PureWindowsPath(value.filename)
    suffix = sent_as.suffix.lower()
    if not _FILE_SUFFIX.fullmatch(suffix):
        suffix = ""
    path = folder / f"{name}{suffix}"
    form.files[name] = path
    form.names[name] = printable(sent_as.name)[:_LONGEST_FILE_NAME]
    with path.open("xb") as copy:
        shutil.copyfileobj(value.file, copy)
