"""`latentsync-trt ui`: lip-sync on a page in the browser."""

from pathlib import Path
from typing import Any

import rich_click as click

from latentsync_trt.cli.options import build
from latentsync_trt.cli.serve import STOPPED, api_key, default_folder, service_options
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import MissingDependency
from latentsync_trt.serve.limits import Limits
from latentsync_trt.stopping import interruption

_PAGE = "Page"


@click.command("ui")
@click.option(
    "--share",
    is_flag=True,
    panel=_PAGE,
    help="Also give the page an address on the Internet for a week, through Gradio's servers.",
)
@service_options(_PAGE, 7860, leave_out=("allow_urls", "allow_private_urls"))
def command(
    host: str,
    port: int,
    no_key: bool,
    share: bool,
    folder: Path | None,
    bundle: str | None,
    provider: str,
    workers: int | None,
    ray: str | None,
    gpus_per_worker: float | None,
    **fields: Any,
) -> None:
    """Lip-sync on a page in the browser: drop a video and speech, follow the job, compare, download.

    If $LATENTSYNC_TRT_API_KEY is set, people log in as "user" with the key as password.
    """
    from latentsync_trt.batch.tasks import WorkerSettings
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import find_bundle
    from latentsync_trt.cli.show import say

    try:
        from latentsync_trt.serve import server
        from latentsync_trt.serve.app import is_loopback
        from latentsync_trt.serve.service import Service
        from latentsync_trt.web.app import page_app, public_address
    except ImportError as error:
        raise MissingDependency(f'ui: needs its extra; pip install "latentsync-trt[ui]" ({error})') from error
    own = is_loopback(host) and not share
    key = api_key("--share" if share else f"--host {host}", no_key, loopback=own)
    limits, place = build(Limits, fields), folder or default_folder("ui")
    settings = WorkerSettings(bundle or str(find_bundle(None)[0]), provider, build(RuntimeOptions, fields))
    handles = make_workers(settings, workers, ray=ray, gpus_per_worker=gpus_per_worker, on_notice=say)
    with interruption(STOPPED):
        listener = server.listen(host, port)
        service = Service(place, handles, limits)
        with page_app(service, place, key, own_hosts=own) as app:
            port = listener.getsockname()[1]
            say(f"http://{f'[{host}]' if ':' in host else host}:{port}: ready; jobs are kept in {place}")
            if share:
                say(f"{public_address(host, port)}: ready, for everyone who knows the key")
            server.run(service, app, listener)
