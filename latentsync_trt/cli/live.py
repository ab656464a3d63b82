"""`latentsync-trt live`: a face that speaks while the speech is still being made, on a page in the browser."""

from functools import partial
from typing import Any

import rich_click as click

from latentsync_trt.cli import interruption
from latentsync_trt.cli.options import build, bundle_option, options_from, path_option, provider_option
from latentsync_trt.cli.serve import api_key, url_of
from latentsync_trt.cli.show import say
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import MissingDependency
from latentsync_trt.live.options import LIVE, LiveOptions
from latentsync_trt.serve.admission import LiveLimits

_add = partial(click.option, panel=LIVE, show_default=True)


@click.command("live")
@path_option("--video", required=True, panel=LIVE, help="Idle clip: one face in one shot, up to a minute.")
@_add("--host", default="127.0.0.1", help="Address to listen at.")
@_add("--port", type=click.IntRange(0, 65535), default=8001, help="0 takes a free one.")
@_add("--no-key", is_flag=True, show_default=False, help="Let other machines in without a key.")
@_add("--stun", metavar="URL", help="STUN server, as stun:host:3478.  [default: none is asked]")
@options_from(LiveOptions, leave_out=("wait", "sound_rate_hz"))
@options_from(LiveLimits)
@bundle_option
@provider_option
@options_from(RuntimeOptions)
def live(host: str, port: int, *, no_key: bool, stun: str | None, **fields: Any) -> None:
    """Speech comes by microphone, or through a WebSocket; pictures and sound go out by WebRTC. Clients send the key of
    $LATENTSYNC_TRT_API_KEY, if it is set.
    """
    try:
        from latentsync_trt.serve import server
        from latentsync_trt.serve.app import is_loopback
        from latentsync_trt.serve.live import LiveService, live_app
    except ImportError as error:
        raise MissingDependency(f'live: needs its extra; pip install "latentsync-trt[live]" ({error})') from error
    from latentsync_trt.sync.api import LipSync

    own = is_loopback(host)
    key = api_key(host, no_key, loopback=own)
    options, runtime = build(LiveOptions, fields), build(RuntimeOptions, fields)
    with (
        interruption("stopped"),
        server.listen(host, port) as listener,
        LipSync.from_bundle(fields["bundle"], fields["provider"], runtime, on_notice=say) as lip_sync,
    ):
        # Opened once before the first viewer: the clip is read, the networks are open, and a window is measured.
        first = lip_sync.stream(fields["video"], options)
        loop = first.loop
        first.close()
        service = LiveService(lambda: lip_sync.stream(loop, options), build(LiveLimits, fields), stun)
        say(f"{url_of(host, listener.getsockname()[1])}: ready")
        server.run(live_app(service, key, own_hosts=own), listener)
