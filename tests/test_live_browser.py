"""The live page in headless Chromium, which speaks by a fake microphone to a face that no network
paints.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("aiortc", reason="needs the extra live")
from playwright.sync_api import Page, sync_playwright

from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.planner import PlannedFrame
from latentsync_trt.live.session import LiveSession
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH
from latentsync_trt.media.pictures import picture_info
from latentsync_trt.serve.admission import LiveLimits
from latentsync_trt.serve.live import LiveService, live_app
from latentsync_trt.types import Float32Array, Patch, YuvPlanes
from tests.live import PictureLoop, PicturePainter
from tests.serving import answering
from tests.sounds import write_samples

pytestmark = pytest.mark.slow

PATIENCE_MS = 120_000
RATE_HZ = 48_000
LOUD = 0.05
"""Of samples: the sound has begun, for the eye and for the ear."""

_WATCH = """async () => {
  // When the picture turns bright and the sound loud; both are painted and said at the same time.
  const video = document.getElementById("video"), canvas = new OffscreenCanvas(8, 8);
  const draw = canvas.getContext("2d", {willReadFrequently: true}), context = new AudioContext();
  await context.resume();
  const analyser = new AnalyserNode(context, {fftSize: 256}), samples = new Float32Array(256);
  context.createMediaStreamSource(video.srcObject).connect(analyser);
  const seen = {picture: [], sound: []}, last = {picture: 0, sound: 0};
  const note = (kind, on, now) => {
    if (on && now - last[kind] > 400) seen[kind].push(now);
    if (on) last[kind] = now;
  };
  const frame = (_, shown) => {
    draw.drawImage(video, 0, 0, 8, 8);
    note("picture", draw.getImageData(4, 4, 1, 1).data[0] > 130, shown.expectedDisplayTime);
    video.requestVideoFrameCallback(frame);
  };
  video.requestVideoFrameCallback(frame);
  setInterval(() => {
    analyser.getFloatTimeDomainData(samples);
    note("sound", samples.some((value) => Math.abs(value) > 0.05), performance.now());
  }, 4);
  window.seen = seen;
}"""

_FRAMES = """async () => {
  const stats = await window.peer.getStats();
  for (const each of stats.values())
    if (each.type === "inbound-rtp" && each.kind === "video")
      return {frames: each.framesDecoded, at_ms: each.timestamp,
              codec: stats.get(each.codecId).mimeType};
}"""


class LoudPainter(PicturePainter):
    """Paints bright where the sound is loud, from the frame whose beginning is nearest to that."""

    def __init__(self, loop: PictureLoop) -> None:
        super().__init__(loop)
        self._loud = set[int]()
        self._last_half = np.zeros(0, np.float32)

    def latents(
        self, planned: Sequence[PlannedFrame], ahead: Float32Array, check: Callable[[], None]
    ) -> Float32Array:
        for one in planned:
            first, second = np.split(one.spoken.sound, 2)
            if max(np.abs(self._last_half).max(initial=0), np.abs(first).max()) > LOUD:
                self._loud.add(one.position)
            self._last_half = second
        return super().latents(planned, ahead, check)

    def picture(self, position: int, patch: Patch, opacity: float) -> YuvPlanes:
        if position in self._loud:
            return super().picture(position, patch, opacity)
        return self.loop.planes[0]


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda *_, **__: ["127.0.0.1"])
    loop = cast(Any, PictureLoop(picture_info(480, 480, rgb=False)))
    service = LiveService(
        lambda: LiveSession(cast(Any, LoudPainter(loop)), LiveOptions(hop=4)), LiveLimits()
    )
    with answering(live_app(service, None, own_hosts=True)) as found:
        yield found


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    speech = np.concatenate(list(read_audio_blocks(SPEECH, RATE_HZ)))
    # Words with sharp edges between pauses, by which the voice gate begins and ends utterances.
    word = speech[RATE_HZ // 2 : 2 * RATE_HZ]
    pause = np.zeros(2 * RATE_HZ, np.float32)
    microphone = write_samples(
        tmp_path / "microphone.wav", np.concatenate([pause, word, pause, word]), RATE_HZ
    )
    arguments = [
        "--no-sandbox",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
    ]
    arguments += [
        f"--use-file-for-fake-audio-capture={microphone}",
        "--autoplay-policy=no-user-gesture-required",
    ]
    arguments += [
        "--allow-loopback-in-peer-connection",
        "--disable-features=WebRtcHideLocalIpsWithMdns",
    ]
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=browser, args=arguments) as opened,
    ):
        found = opened.new_context(permissions=["microphone"]).new_page()
        found.set_default_timeout(PATIENCE_MS)
        yield found


def test_what_is_said_to_the_page_comes_back_as_a_speaking_face(page: Page, address: str) -> None:
    page.goto(address)
    assert page.locator("figcaption").inner_text() == "AI-generated"
    page.locator("#microphone").check()
    page.get_by_role("button", name="Connect").click()
    page.wait_for_function("() => document.getElementById('state').dataset.state === 'connected'")
    page.wait_for_function("() => document.getElementById('video').videoWidth > 0")
    page.evaluate(_WATCH)
    page.wait_for_function("() => window.seen.picture.length >= 1")
    before = page.evaluate(_FRAMES)
    page.wait_for_function("() => window.seen.picture.length >= 6 && window.seen.sound.length >= 6")
    after = page.evaluate(_FRAMES)
    seen = page.evaluate("() => window.seen")
    rate = 1000 * (after["frames"] - before["frames"]) / (after["at_ms"] - before["at_ms"])
    apart_ms = [
        min((sound - picture for sound in seen["sound"]), key=abs) for picture in seen["picture"]
    ]
    assert after["codec"] == "video/H264"
    assert 23 <= rate <= 27, f"{rate:.1f} frames/s"
    assert abs(median(apart_ms)) <= 40, (
        f"sound after picture: {[round(each) for each in apart_ms]} ms"
    )


def test_the_page_says_why_it_is_not_connected(page: Page, address: str) -> None:
    page.goto(address)
    page.route(
        "**/v1/live",
        lambda route: route.fulfill(status=429, json={"error": "live: no room for another"}),
    )
    page.get_by_role("button", name="Connect").click()
    page.wait_for_function("() => document.getElementById('state').dataset.state === 'failed'")
    assert page.locator("#status").inner_text() == "live: no room for another"
    assert page.get_by_role("button", name="Connect").is_enabled()
