"""`latentsync-trt serve`: lip-sync as an HTTP service."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import (
    F,
    LocalPath,
    build,
    bundle_option,
    options_from,
    provider_option,
    worker_options,
)
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import InputError, MissingDependency
from latentsync_trt.serve.admission import Limits
from latentsync_trt.stopping import interruption

if TYPE_CHECKING:
    from latentsync_trt.batch.tasks import WorkerHandle

KEY = "LATENTSYNC_TRT_API_KEY"
STOPPED = "stopped; jobs that have not ended go on when it is started again"


def service_options(panel: str, port: int, *, leave_out: tuple[str, ...] = ()) -> Callable[[F], F]:
    """A decorator that adds what a service can be told; `panel`: heading of the first ones. `leave_out`: limits."""
    options = (
        click.option("--host", default="127.0.0.1", show_default=True, panel=panel, help="Address to listen at."),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            default=port,
            show_default=True,
            panel=panel,
            help="0 takes a free one.",
        ),
        click.option("--no-key", is_flag=True, panel=panel, help=f"Let other machines in without a key (${KEY})."),
        click.option(
            "--folder",
            type=LocalPath(folder=True),
            panel=panel,
            help="Folder of jobs; with --ray, one that all machines share.  [default: in the user's data folder]",
        ),
        options_from(Limits, leave_out=leave_out),
        bundle_option,
        provider_option,
        worker_options,
        options_from(RuntimeOptions),
    )

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.command("serve")
@service_options("Service", 8000)
def command(host: str, port: int, no_key: bool, ray: str | None, **fields: Any) -> None:
    """Lip-sync as an HTTP service: send video and speech, follow the job, fetch the result.

    /docs of the service describes its requests. Clients send the key of $LATENTSYNC_TRT_API_KEY, if it is set.
    """
    from latentsync_trt.cli.show import say

    try:
        from latentsync_trt.serve import server
        from latentsync_trt.serve.app import create_app, is_loopback
        from latentsync_trt.serve.service import Service
    except ImportError as error:
        raise MissingDependency(f'serve: needs its extra; pip install "latentsync-trt[serve]" ({error})') from error
    if ray is not None and port == 0:
        raise InputError("--port 0: cannot be used with --ray; give a number")
    key = api_key(f"--host {host}", no_key, loopback=is_loopback(host))
    place, limits, make_handles = prepare("serve", fields)
    handles = make_handles(ray=ray, on_notice=say)
    with interruption(STOPPED):
        if ray is not None:
            # Not a closure: the replica gets a copy, and workers cannot be copied.
            again = partial(make_handles, count=len(handles), ray="auto")
            ready = f"{url_of(host, port)}/docs: ready; jobs are kept in {place}"
            server.run_on_ray(again, place.absolute(), limits, key, (host, port), lambda: say(ready))
        else:
            listener = server.listen(host, port)
            service = Service(place, handles, limits)
            say(f"{url_of(host, listener.getsockname()[1])}/docs: listening; jobs are kept in {place}")
            server.run(service, create_app(service, key, own_hosts=is_loopback(host)), listener)


def prepare(name: str, fields: dict[str, Any]) -> "tuple[Path, Limits, Callable[..., list[WorkerHandle]]]":
    """The folder of the command `name`, its limits, and what makes its workers, from the values of `service_options`.

    Raises:
        LatentSyncError: there is no such bundle, or no default one.
        click.UsageError: an option is outside its limits.
    """
    import platformdirs

    from latentsync_trt.batch.tasks import WorkerSettings
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import find_bundle

    limits = build(Limits, fields)
    folder = fields["folder"] or platformdirs.user_data_path("latentsync-trt", appauthor=False) / name
    bundle = fields["bundle"] or str(find_bundle(None)[0])
    settings = WorkerSettings(bundle, fields["provider"], build(RuntimeOptions, fields))
    counts = {"count": fields["workers"], "gpus_per_worker": fields["gpus_per_worker"]}
    return folder, limits, partial(make_workers, settings, **counts)


def url_of(host: str, port: int) -> str:
    """The address of what listens there."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def api_key(flag: str, no_key: bool, *, loopback: bool) -> str | None:
    """The key that clients must send, if any; raises `InputError` if others than this machine could come in without."""
    key = os.environ.get(KEY) or None
    if key is not None and no_key:
        raise InputError(f"--no-key: ${KEY} is set; unset it, or leave --no-key out")
    if key is None and not loopback and not no_key:
        raise InputError(f"{flag}: other machines reach it; set ${KEY}, or let all in with --no-key")
    return key
