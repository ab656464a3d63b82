"""Live sessions over HTTP and WebRTC, on 127.0.0.1, with pictures that no network painted."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import yaml

aiortc = pytest.importorskip("aiortc", reason="needs the extra live")
websockets = pytest.importorskip("websockets", reason="needs the extra live")

from latentsync_trt.cli.live import live  # noqa: E402
from latentsync_trt.errors import InferenceError  # noqa: E402
from latentsync_trt.live.options import LiveOptions  # noqa: E402
from latentsync_trt.live.session import LiveSession  # noqa: E402
from latentsync_trt.media.audio import read_audio_blocks  # noqa: E402
from latentsync_trt.media.demo_clip import SPEECH  # noqa: E402
from latentsync_trt.media.pictures import picture_info  # noqa: E402
from latentsync_trt.serve.admission import LiveLimits  # noqa: E402
from latentsync_trt.serve.call import MARK, Microphone  # noqa: E402
from latentsync_trt.serve.live import LiveService, live_app  # noqa: E402
from latentsync_trt.serve.server import MOST_MESSAGE_BYTES  # noqa: E402
from tests.conftest import REPOSITORY  # noqa: E402
from tests.live import (  # noqa: E402
    Inline,
    PictureLoop,
    PicturePainter,
    kinds,
    take,
    toy_session,
    until_idle,
    voice,
)
from tests.serving import PATIENCE_S, answering  # noqa: E402

KEY = "a key that no one guesses"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def only_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda *_, **__: ["127.0.0.1"])


def session() -> LiveSession:
    loop = cast(Any, PictureLoop(picture_info(64, 64, rgb=False)))
    painter = cast(Any, PicturePainter(loop))
    return LiveSession(painter, LiveOptions(), executors=(Inline(), Inline()))


@pytest.fixture
def address() -> Iterator[str]:
    service = LiveService(session, LiveLimits(max_sessions=1))
    with answering(live_app(service, KEY)) as found:
        yield found


class Viewer:
    """A browser's side of a call."""

    def __init__(self) -> None:
        self.peer = aiortc.RTCPeerConnection(aiortc.RTCConfiguration(iceServers=[]))
        self.tracks: dict[str, Any] = {}
        self.peer.on("track", lambda track: self.tracks.setdefault(track.kind, track))

    async def offer(self) -> str:
        for kind in ("video", "audio"):
            self.peer.addTransceiver(kind, direction="recvonly")
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return str(self.peer.localDescription.sdp)

    async def take(self, kind: str, count: int) -> list[Any]:
        return [await asyncio.wait_for(self.tracks[kind].recv(), PATIENCE_S) for _ in range(count)]


@asynccontextmanager
async def caller(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=address, timeout=PATIENCE_S, trust_env=False, headers=WITH_KEY
    ) as client:
        yield client


@asynccontextmanager
async def call(address: str) -> AsyncIterator[tuple[Viewer, str, str]]:
    """A viewer who is connected, the answer to the offer, and the address of the WebSocket."""
    viewer = Viewer()
    async with caller(address) as client:
        answer = await client.post("/v1/live", json={"sdp": await viewer.offer()})
        assert answer.status_code == 201, answer.text
        found = answer.json()
        await viewer.peer.setRemoteDescription(aiortc.RTCSessionDescription(found["sdp"], "answer"))
        try:
            yield (
                viewer,
                found["sdp"],
                f"{address.replace('http', 'ws')}/v1/live/{found['id']}/speech",
            )
        finally:
            await viewer.peer.close()
            await client.delete(f"/v1/live/{found['id']}")


async def told(socket: Any) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(await asyncio.wait_for(socket.recv(), PATIENCE_S)))


def test_speech_goes_in_by_websocket_and_comes_out_by_webrtc(address: str) -> None:
    async def converse() -> None:
        async with call(address) as (viewer, sdp, url):
            assert "H264" in sdp.split("m=video")[1].split("VP8")[0]
            assert f"s={MARK}" in sdp and "stun" not in sdp
            await viewer.take("video", 3)
            sounds = asyncio.create_task(viewer.take("audio", 100))
            pictures = asyncio.create_task(viewer.take("video", 50))
            async with websockets.connect(f"{url}?rate=16000", proxy=None) as socket:
                await socket.send((voice(0.4) * 32767).astype(np.int16).tobytes())
                assert 0.3 < (await told(socket))["seconds"] < 0.6
                await socket.send('{"type": "end"}')
                assert await told(socket) == {"type": "ended"}
                assert await told(socket) == {"type": "finished", "utterance": 1}
                await socket.send(b"odd")
                assert "odd number of bytes" in (await told(socket))["error"]
                await socket.send('{"type": "clear_buffer"}')
                assert await told(socket) == {"type": "stopped", "heard_s": 0.0}
                await socket.send('{"type": "dance"}')
                assert "none of end, stop" in (await told(socket))["error"]
            heard = np.concatenate([frame.to_ndarray().reshape(-1) for frame in await sounds])
            levels = [frame.to_ndarray(format="gray").mean() for frame in await pictures]
            assert np.abs(heard).max() > 1000
            assert max(levels) > min(levels) + 50  # painted pictures are brighter

    asyncio.run(converse())


async def opens(url: str, **others: Any) -> int:
    """The status with which a WebSocket is answered; it is closed again."""
    try:
        async with websockets.connect(url, proxy=None, **others):
            return 101
    except websockets.InvalidStatus as refused:
        return int(refused.response.status_code)


def test_a_websocket_needs_the_key_or_the_page(address: str) -> None:
    async def converse() -> None:
        async with call(address) as (_, _, url):
            elsewhere = "https://elsewhere.example"
            for headers, origin, status in (
                ({}, elsewhere, 403),
                ({"Authorization": "Bearer wrong"}, elsewhere, 403),
                (WITH_KEY, elsewhere, 101),
                ({}, None, 101),
                ({}, address, 101),
            ):
                assert await opens(url, additional_headers=headers, origin=origin) == status

    asyncio.run(converse())


def test_websockets_of_a_session_are_bounded_and_end_with_it(address: str) -> None:
    async def converse() -> None:
        async with AsyncExitStack() as opened:
            async with call(address) as (_, _, url):
                connect = partial(websockets.connect, url, proxy=None, compression=None)
                for rate in ("abc", "7999"):
                    with pytest.raises(websockets.InvalidStatus) as refused:
                        await websockets.connect(f"{url}?rate={rate}", proxy=None)
                    assert refused.value.response.status_code == 422
                    assert json.loads(refused.value.response.body)["error"].startswith("rate: ")
                sockets = [await opened.enter_async_context(connect()) for _ in range(4)]
                assert await opens(url) == 429
                for text in ("[" * 60_000, '{"type": 5}'):
                    await sockets[0].send(text)
                    assert (await told(sockets[0]))["error"].startswith("message: is not JSON as")
                await sockets[1].send(bytes(MOST_MESSAGE_BYTES))
                assert (await told(sockets[1]))["busy"]
                with pytest.raises(websockets.ConnectionClosedError, match="too big"):
                    await sockets[1].send(bytes(MOST_MESSAGE_BYTES + 2))
                    await told(sockets[1])
                while await opens(url) != 101:  # in its place
                    await asyncio.sleep(0.05)
            with pytest.raises(websockets.ConnectionClosedOK):
                await told(sockets[0])

    asyncio.run(converse())


def test_a_second_viewer_is_refused_and_admitted_when_the_first_has_left(address: str) -> None:
    async def converse() -> None:
        async with call(address), caller(address) as client:
            second = Viewer()
            refused = await client.post("/v1/live", json={"sdp": await second.offer()})
            await second.peer.close()
            assert (refused.status_code, "--max-sessions" in refused.json()["error"]) == (429, True)
            assert "latentsync_live_sessions 1.0" in (await client.get("/metrics")).text
        async with call(address):
            pass

    asyncio.run(converse())


def test_a_session_that_fails_frees_its_place(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> LiveSession:
        opened = session()
        cast(Any, opened)._painter.error = InferenceError("denoise_step: no memory")
        opened.say(voice(0.4), 16_000)
        opened.end()
        return opened

    async def converse(address: str, service: LiveService) -> None:
        async with call(address):
            while service.calls:
                await asyncio.sleep(0.05)
        async with call(address):
            pass

    service = LiveService(failing, LiveLimits(max_sessions=1))
    with answering(live_app(service, KEY)) as address:
        asyncio.run(asyncio.wait_for(converse(address, service), PATIENCE_S))
    assert "no memory" in caplog.text


def test_only_who_has_the_key_comes_in(address: str) -> None:
    with httpx.Client(base_url=address, timeout=PATIENCE_S, trust_env=False) as client:
        assert client.post("/v1/live", json={"sdp": ""}).status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/healthz").status_code == client.head("/healthz").status_code == 200
        page = client.get("/")
        assert "AI-generated" in page.text
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        assert client.get("/live.js").status_code == 200
        client.headers.update(WITH_KEY)
        offers = b'{"sdp": "nonsense"}', b"[" * 60_000, b'{"sdp": 5}', b"\xff"
        for offer in offers:
            assert client.post("/v1/live", content=offer).status_code == 422, offer[:10]
        assert client.post("/v1/live", content=bytes(70_000)).status_code == 413
        assert client.delete("/v1/live/unknown").status_code == 404
    service = LiveService(session, LiveLimits())
    with answering(live_app(service, None, own_hosts=True)) as open_address:
        headers = {"Origin": "https://elsewhere.example"}
        assert (
            httpx.post(
                f"{open_address}/v1/live", json={"sdp": ""}, headers=headers, trust_env=False
            ).status_code
            == 403
        )


@pytest.mark.parametrize("gain", [1, 0.001])
def test_a_microphone_says_what_is_speech_and_ends_utterances_in_pauses(gain: float) -> None:
    """Also a quiet one."""
    speech = np.concatenate(list(read_audio_blocks(SPEECH, 48_000)))
    pause = np.zeros(2 * 48_000, np.float32)
    sound = np.float32(gain) * np.concatenate([pause, speech, pause, speech[:96_000], pause])
    with toy_session() as opened:
        microphone = Microphone(opened, 48_000)
        frames = []
        for start in range(0, len(sound), 960):
            microphone.hear(sound[start : start + 960])
            frames += take(opened, 1) if start % 1920 else []
        frames += until_idle(opened)
    given = kinds(frames)
    first = given.index("s")
    last = given.rindex("s")
    assert 40 < first < 70  # the first pause lasts 50 frames
    assert last < len(given) - 20  # 0.6 s of the last pause were waited for
    assert given.count("s") < 25 * (len(sound) / 48_000 - 3)
    assert [frame.utterance for frame in frames if frame.ends] == [1, 2]


def test_the_manifest_starts_a_command_of_this_package_and_scales_by_a_metric_it_has(
    address: str, tmp_path: Path
) -> None:
    manifests = yaml.safe_load_all((REPOSITORY / "docs" / "live.yaml").read_text(encoding="utf-8"))
    deployment, service, scaler = (each["spec"] for each in manifests)
    (container,) = deployment["template"]["spec"]["containers"]
    (tmp_path / "idle.mp4").touch()
    name, *words = (word.replace("/data", str(tmp_path)) for word in container["args"])
    with live.make_context(name, words) as context:
        assert context.params["max_sessions"] > int(
            scaler["metrics"][0]["pods"]["target"]["averageValue"]
        )
    assert service["sessionAffinity"] == "ClientIP"
    shown = httpx.get(f"{address}/metrics", headers=WITH_KEY, trust_env=False).text
    assert f"{scaler['metrics'][0]['pods']['metric']['name']} 0.0" in shown
