"""`latentsync-trt serve` and `ui`: an HTTP service, and a page in the browser."""

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from socket import socket
from typing import Any

import rich_click as click

from latentsync_trt.batch.tasks import WorkerSettings
from latentsync_trt.cli import interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import say
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError, MissingDependency
from latentsync_trt.paths import user_folder
from latentsync_trt.serve.admission import Limits

_KEY = "LATENTSYNC_TRT_API_KEY"


_SHORTEST_KEY = 16


def address_options(panel: str, port: int) -> Callable[[flags.F], flags.F]:
    add = partial(click.option, panel=panel, show_default=True)
    return flags.combined(
        add("--host", default="127.0.0.1", help="Address to listen at."),
        add("--port", type=click.IntRange(0, 65535), default=port, help="0 takes a free one."),
        add(
            "--no-key",
            is_flag=True,
            show_default=False,
            help=f"Let other machines in without a key (${_KEY}).",
        ),
    )


def _service_options(panel: str, port: int) -> Callable[[flags.F], flags.F]:
    """Options of `serve` and `ui`; `panel`: heading of the first ones."""
    return flags.combined(
        address_options(panel, port),
        flags.path_option(
            "--folder",
            folder=True,
            panel=panel,
            help="Folder of jobs, with --ray a shared one.  [default: the user's]",
        ),
        flags.options_from(Limits),
        flags.bundle_option,
        flags.provider_option,
        flags.worker_options,
        flags.options_from(RuntimeOptions),
    )


@click.command("serve")
@_service_options("Service", 8000)
def serve(**fields: Any) -> None:
    """/docs of the service describes its requests. Clients send the key of $LATENTSYNC_TRT_API_KEY,
    if it is set.
    """
    _start("serve", **fields)


@click.command("ui")
@_service_options("Page", 7860)
def ui(**fields: Any) -> None:
    """If $LATENTSYNC_TRT_API_KEY is set, people log in as "user" with the key as password."""
    with warnings.catch_warnings(action="ignore"):  # of other libraries, which are for developers
        _start("ui", **fields)


def _start(
    name: str, *, host: str, port: int, no_key: bool, ray: str | None, **fields: Any
) -> None:
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
    own = is_loopback(host)
    key = api_key(host, no_key, loopback=own)
    if name == "serve":
        server.log_to_stderr()
    limits = flags.build(Limits, fields)
    place = fields["folder"] or user_folder("data") / name
    bundle = fields["bundle"] or str(find_bundle(None)[0])
    settings = WorkerSettings(bundle, fields["provider"], flags.build(RuntimeOptions, fields))
    handles = make_workers(settings, fields["workers"], ray=ray, on_notice=say)
    with (
        interruption("stopped; jobs that have not ended go on when it is started again"),
        server.listen(host, port) as listener,
        closing(Service(place, handles, limits)) as service,
    ):
        app: AbstractContextManager[Any]
        if name == "ui":
            app = page_app(service, place, key, own_hosts=own, bundle=bundle, one=ray is not None)
            ready = ": ready"
        else:
            app = nullcontext(create_app(service, key, own_hosts=own))
            ready = "/docs: listening"
        with app as running:
            say(f"{page_address(host, listener)}{ready}; jobs are kept in {place}")
            server.run(running, listener, service.check)


def page_address(host: str, listener: socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def api_key(host: str, no_key: bool, *, loopback: bool) -> str | None:
    """The key that clients must send, if any; raises `InputError` if others than this machine could
    come in without.
    """
    key = os.environ.get(_KEY) or None
    if key is not None and len(key) < _SHORTEST_KEY:
        cure = 'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        raise InputError(
            f"${_KEY}: has {len(key)} characters, fewer than "
            f"{_SHORTEST_KEY}, and can be guessed; {cure}"
        )
    if key is not None and no_key:
        raise InputError(f"--no-key: ${_KEY} is set; unset it, or leave --no-key out")
    if key is None and not loopback and not no_key:
        raise InputError(
            f"--host {host}: other machines reach it; set ${_KEY}, or let all in with --no-key"
        )
    return key
