"""`latentsync-trt live`: a face that speaks, on a page in the browser."""

from contextlib import closing
from typing import Any

import rich_click as click

from latentsync_trt.cli import interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.serve import address_options, api_key, page_address
from latentsync_trt.cli.show import say
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import MissingDependency
from latentsync_trt.live.options import LIVE, LiveOptions
from latentsync_trt.serve.admission import LiveLimits


@click.command("live")
@flags.path_option(
    "--video", required=True, panel=LIVE, help="Idle clip: one face in one shot, up to a minute."
)
@address_options(LIVE, 8001)
@click.option(
    "--stun",
    metavar="URL",
    panel=LIVE,
    help="STUN server, as stun:host:3478.  [default: none is asked]",
)
@flags.options_from(LiveOptions, leave_out=("sound_rate_hz",))
@flags.options_from(LiveLimits)
@flags.bundle_option
@flags.provider_option
@flags.options_from(RuntimeOptions)
def live(host: str, port: int, *, no_key: bool, stun: str | None, **fields: Any) -> None:
    """Speech comes by microphone or WebSocket; pictures and sound go by WebRTC. Clients send a key,
    as for `serve`.
    """
    try:
        from latentsync_trt.serve import server
        from latentsync_trt.serve.app import is_loopback
        from latentsync_trt.serve.live import LiveService, live_app
    except ImportError as error:
        raise MissingDependency(
            f'live: needs its extra; pip install "latentsync-trt[live]" ({error})'
        ) from error
    from latentsync_trt.sync.api import LipSync

    own = is_loopback(host)
    key = api_key(host, no_key, loopback=own)
    options = flags.build(LiveOptions, fields)
    runtime = flags.build(RuntimeOptions, fields)
    say("opening the networks, then measuring for a few seconds how fast they paint")
    with (
        interruption("stopped"),
        server.listen(host, port) as listener,
        LipSync.from_bundle(
            fields["bundle"], fields["provider"], runtime, on_notice=say
        ) as lip_sync,
    ):
        # Opened once before the first viewer: the clip is read, the networks are open, and a window
        # is measured.
        with closing(lip_sync.stream(fields["video"], options)) as first:
            loop = first.loop
        service = LiveService(
            lambda: lip_sync.stream(loop, options), flags.build(LiveLimits, fields), stun
        )
        say(f"{page_address(host, listener)}: ready")
        server.run(live_app(service, key, own_hosts=own), listener)
