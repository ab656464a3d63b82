"""`latentsync-trt live`: a face that speaks, on a page in the browser."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import rich_click as click

from latentsync_trt.cli import interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.serve import (
    api_key,
    host_option,
    no_key_option,
    page_address,
    port_option,
)
from latentsync_trt.cli.show import print_line
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import MissingDependency
from latentsync_trt.live.options import LIVE, LiveOptions
from latentsync_trt.serve.admission import LiveLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    video: Path = flags.command_field(
        None, "Idle clip: one face in one shot, up to a minute.", group=LIVE, required=True
    )
    host: str = host_option(group=LIVE)
    port: int = port_option(8001, group=LIVE)
    no_key: bool = no_key_option(group=LIVE)
    stun: str | None = flags.command_field(
        None,
        "STUN server, as stun:host:3478.  [default: none is asked]",
        group=LIVE,
        metavar="URL",
    )
    live: LiveOptions = flags.options_of(leave_out=("sound_rate_hz",))
    limits: LiveLimits = flags.options_of()
    bundle: str | None = flags.bundle_option()
    provider: str = flags.provider_option()
    runtime: RuntimeOptions = flags.options_of()


@click.command("live")
@flags.takes(LiveRequest)
def live(request: LiveRequest) -> None:
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
    from latentsync_trt.live.session import LiveSession
    from latentsync_trt.sync.api import LipSync

    is_local = is_loopback(request.host)
    key = api_key(request.host, request.no_key, loopback=is_local)
    print_line("opening the networks, then measuring for a few seconds how fast they paint")
    with (
        interruption("stopped"),
        server.listen(request.host, request.port) as listener,
        LipSync.from_bundle(
            request.bundle, request.provider, request.runtime, on_notice=print_line
        ) as lip_sync,
    ):
        # Opened once before the first viewer: the clip is read, the networks are open, and a window
        # is measured.
        with closing(lip_sync.stream(request.video, request.live)) as first:
            loop = first.loop

        def open_session() -> LiveSession:
            return lip_sync.stream(loop, request.live)

        service = LiveService(open_session, request.limits, request.stun)
        print_line(f"{page_address(request.host, listener)}: ready")
        server.run(live_app(service, key, own_hosts=is_local), listener)
