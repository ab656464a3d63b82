"""`latentsync-trt ui`: lip-sync on a page in the browser."""

from contextlib import closing
from typing import Any

import rich_click as click

from latentsync_trt.cli.serve import STOPPED, api_key, prepare, service_options, url_of
from latentsync_trt.errors import MissingDependency
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
def command(host: str, port: int, no_key: bool, share: bool, ray: str | None, **fields: Any) -> None:
    """Lip-sync on a page in the browser: drop a video and speech, follow the job, compare, download.

    If $LATENTSYNC_TRT_API_KEY is set, people log in as "user" with the key as password.
    """
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
    place, limits, make_handles = prepare("ui", fields)
    handles = make_handles(ray=ray, on_notice=say)
    with interruption(STOPPED), server.listen(host, port) as listener:
        port = listener.getsockname()[1]
        with (
            closing(Service(place, handles, limits)) as service,
            page_app(service, place, key, own_hosts=own) as app,
        ):
            public = public_address(host, port) if share else ""
            say(f"{url_of(host, port)}: ready; jobs are kept in {place}")
            if public:
                say(f"{public}: ready, for everyone who knows the key")
            server.run(service, app, listener)
