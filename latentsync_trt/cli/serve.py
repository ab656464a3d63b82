"""`latentsync-trt serve` and `ui`: an HTTP service, and a page in the browser."""

import os
import warnings
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import rich_click as click

from latentsync_trt.batch.tasks import WorkerSettings
from latentsync_trt.cli import interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import print_line
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError, MissingDependency
from latentsync_trt.paths import make_folder, user_folder
from latentsync_trt.serve.admission import Limits

_KEY = "LATENTSYNC_TRT_API_KEY"
"""Name of the environment variable with the key that clients must send."""
_MIN_KEY_LENGTH = 16


host_option = partial(flags.command_field, "127.0.0.1", "Address to listen at.")
port_option = partial(
    flags.command_field, help_text="0 takes a free one.", type=click.IntRange(0, 65535)
)
no_key_option = partial(
    flags.command_field, False, f"Let other machines in without a key (${_KEY})."
)
_folder_option = partial(
    flags.command_field,
    None,
    "Folder of jobs, with --ray a shared one.  [default: the user's]",
    folder=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    host: str = host_option(group="Service")
    port: int = port_option(8000, group="Service")
    no_key: bool = no_key_option(group="Service")
    folder: Path | None = _folder_option(group="Service")
    limits: Limits = flags.options_of()
    bundle: str | None = flags.bundle_option()
    provider: str = flags.provider_option()
    workers: int | None = flags.workers_option()
    ray: str | None = flags.ray_option()
    runtime: RuntimeOptions = flags.options_of()


@dataclass(frozen=True, slots=True, kw_only=True)
class UiRequest(ServeRequest):
    host: str = host_option(group="Page")
    port: int = port_option(7860, group="Page")
    no_key: bool = no_key_option(group="Page")
    folder: Path | None = _folder_option(group="Page")


@click.command("serve")
@flags.takes(ServeRequest)
def serve(request: ServeRequest) -> None:
    """/docs of the service describes its requests. Clients send the key of $LATENTSYNC_TRT_API_KEY,
    if it is set.
    """
    _start("serve", request)


@click.command("ui")
@flags.takes(UiRequest)
def ui(request: UiRequest) -> None:
    """If $LATENTSYNC_TRT_API_KEY is set, people log in as "user" with the key as password."""
    with warnings.catch_warnings(action="ignore"):  # of other libraries, which are for developers
        _start("ui", request)


def _start(name: str, request: ServeRequest) -> None:
    """Runs the command `name`, whose extra has the same name, until it is stopped."""
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import find_bundle

    try:
        from latentsync_trt.serve import server
        from latentsync_trt.serve.app import create_app, is_loopback
        from latentsync_trt.serve.service import Service

        if name == "ui":
            from latentsync_trt.web.app import page_app
    except ImportError as error:
        raise MissingDependency(
            f'{name}: needs its extra; pip install "latentsync-trt[{name}]" ({error})'
        ) from error
    is_local = is_loopback(request.host)
    key = api_key(request.host, request.no_key, loopback=is_local)
    if name == "serve":
        server.log_to_stderr()
    folder = request.folder or user_folder("data") / name
    bundle = request.bundle or str(find_bundle(None)[0])
    make_folder(folder)
    settings = WorkerSettings(bundle, request.provider, request.runtime)
    workers = make_workers(settings, request.workers, ray=request.ray, on_notice=print_line)
    with (
        interruption("stopped; jobs that have not ended go on when it is started again"),
        server.listen(request.host, request.port) as listener,
        closing(Service(folder, workers, request.limits)) as service,
    ):
        app: AbstractContextManager[Any]
        if name == "ui":
            on_ray = request.ray is not None
            app = page_app(service, folder, key, own_hosts=is_local, bundle=bundle, one=on_ray)
            ready = ": ready"
        else:
            app = nullcontext(create_app(service, key, own_hosts=is_local))
            ready = "/docs: listening"
        with app as running:
            print_line(f"{page_address(request.host, listener)}{ready}; jobs are kept in {folder}")
            server.run(running, listener, service.check)


def page_address(host: str, listener: socket) -> str:
    port = listener.getsockname()[1]
    if ":" in host:  # IPv6
        host = f"[{host}]"
    return f"http://{host}:{port}"


def api_key(host: str, no_key: bool, *, loopback: bool) -> str | None:
    """Returns the key that clients must send, if any; raises `InputError` if others than this
    machine could come in without.
    """
    key = os.environ.get(_KEY) or None
    if key is not None and len(key) < _MIN_KEY_LENGTH:
        cure = 'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        raise InputError(
            f"${_KEY}: has {len(key)} characters, fewer than "
            f"{_MIN_KEY_LENGTH}, and can be guessed; {cure}"
        )
    if key is not None and no_key:
        raise InputError(f"--no-key: ${_KEY} is set; unset it, or leave --no-key out")
    if key is None and not loopback and not no_key:
        raise InputError(
            f"--host {host}: other machines reach it; set ${_KEY}, or let all in with --no-key"
        )
    return key
