"""The page in a real browser, from upload to download, with the built-in model."""

import base64
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import pytest

from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.media.demo_clip import SPEECH, portrait
from tests.clips import decoded, read_audio, write_face, write_sound, write_video
from tests.people import together
from tests.sounds import write_samples
from tests.test_previews import KINDS, write_kind

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if find_spec("gradio") is None:
    pytest.skip("needs the extra ui", allow_module_level=True)
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

pytestmark = pytest.mark.slow

PATIENCE_S = 200.0
FRAMES = 25
LONG = 128
"""Frames of the built-in clip, which is certainly being worked on when the test acts."""
FIRST = 280
SECOND = 820
"""Where the two people's faces are, in pixels from the left."""
KEY = "a key for this test only"
PHONE_PX = 390
LIGHT = "rgb(250, 250, 250)"
DARK = "rgb(19, 19, 22)"
DESK_PX = 1280
MOST_STOPS = 150
"""Of the keyboard, on its way around the page."""

expect.set_options(timeout=PATIENCE_S * 1000)

OTHER_HOSTS = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@dataclass(frozen=True)
class Server:
    """A page that runs at `address`; `log`: all that its process printed."""

    address: str
    log: Path


@dataclass
class Visitor:
    """Someone with a browser of their own, who has opened the page; `problems`: errors in the
    console.
    """

    page: Page
    problems: list[str] = field(default_factory=list)

    def part(self, name: str) -> Locator:
        return self.page.locator(f"#{name}")

    def upload(self, video: Path, speech: Path, faces: int = 1) -> None:
        for name, path in (("video", video), ("speech", speech)):
            clear = self.part(name).get_by_role("button", name="Clear")
            if clear.count():
                clear.first.click()
            self.part(name).locator("input[type=file]").first.set_input_files(path)
        self.ready(faces)

    def ready(self, faces: int = 1) -> None:
        self.part("video").locator("video").wait_for()
        self.part("speech").get_by_role("button", name="Play").first.wait_for()
        self.part("faces").locator("img").nth(faces - 1).wait_for()

    def begin(self, *, preview: bool = False) -> None:
        self.part("start").click()
        self.part("cancel").wait_for()
        if preview:
            self.part("preview").locator("img").wait_for()

    def finish(self) -> None:
        self.part("download").wait_for()

    def fetch(self, folder: Path) -> Path:
        with self.page.expect_download() as started:
            self.part("download").click()
        target = folder / started.value.suggested_filename
        started.value.save_as(target)
        return target

    def jobs(self) -> list[str]:
        return self.part("history").locator("label").all_inner_texts()

    def leave(self) -> None:
        self.page.context.close()
        assert not self.problems


def visit(browser: Browser, server: Server, **settings: Any) -> Visitor:
    """A new visitor; `settings`: of the browser's context."""
    context = browser.new_context(accept_downloads=True, **settings)
    context.set_default_timeout(PATIENCE_S * 1000)
    visitor = Visitor(context.new_page())
    visitor.page.on(
        "console", lambda said: visitor.problems.append(said.text) if said.type == "error" else None
    )
    visitor.page.on("pageerror", lambda error: visitor.problems.append(str(error)))
    visitor.page.goto(server.address)
    visitor.part("start").wait_for()
    return visitor


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """short.mp4 with one person, two.mp4 with two, speech.wav."""
    folder = tmp_path_factory.mktemp("clips")
    write_face(folder / "short.mp4", FRAMES)
    write_video(folder / "two.mp4", together([FIRST] * FRAMES, [SECOND] * FRAMES))
    write_samples(
        folder / "speech.wav", read_audio(SPEECH)[: FRAMES * SPEECH_RATE_HZ // 25], SPEECH_RATE_HZ
    )
    return folder


@contextmanager
def started(folder: Path, **variables: str) -> Iterator[Server]:
    """The command `ui`, with these variables of its environment."""
    log = folder / "log.txt"
    words = ["--port", "0", "--folder", str(folder / "ui"), "--bundle", "demo"]
    command = [sys.executable, "-m", "latentsync_trt", "ui", *words, "--provider", "cpu"]
    environment = {**os.environ, **variables}
    with (
        log.open("w") as target,
        subprocess.Popen(command, stdout=target, stderr=target, env=environment) as process,
    ):
        try:
            end_s = time.monotonic() + PATIENCE_S
            while not (ready := re.search(r"^(http://\S+): ready", log.read_text(), re.MULTILINE)):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end_s, log.read_text()
                time.sleep(0.1)
            yield Server(ready[1], log)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("page")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser that finds no other machine, and calls that an error; skips the test where
    there is none.
    """
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", OTHER_HOSTS]
        )
        yield browser
        browser.close()


@pytest.fixture
def visitor(browser: Browser, server: Server) -> Iterator[Visitor]:
    """Someone at a desk. After the test: no errors, no requests to other machines, no traceback in
    the log.
    """
    opened = visit(browser, server)
    yield opened
    opened.leave()
    assert "Traceback" not in server.log.read_text()


def press(target: Locator, key: str = "Enter") -> None:
    """Reaches a control by Tab, as people without a mouse do, and presses a key."""
    page = target.page
    target.wait_for(state="attached")
    for _ in range(MOST_STOPS):
        if target.evaluate("part => part.contains(document.activeElement)"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press(key)


@pytest.mark.parametrize("act", [Locator.click, press], ids=["mouse", "keyboard"])
def test_the_whole_way(
    browser: Browser, server: Server, clips: Path, tmp_path: Path, act: Callable[[Locator], None]
) -> None:
    visitor = visit(browser, server, viewport={"width": DESK_PX, "height": 900})
    page = visitor.page
    part = visitor.part
    assert page.title() == "latentsync-trt"
    expect(page.locator("body")).to_have_css("background-color", LIGHT)
    expect(part("start")).to_be_disabled()
    visitor.upload(clips / "two.mp4", clips / "speech.wav", faces=2)
    part("option-report").locator("input").check()
    act(part("faces").get_by_role("button").nth(0))
    expect(part("demo-note")).to_contain_text("will be a smear")
    act(part("more").locator("button").first)
    expect(part("option-face").locator("input, textarea").first).to_have_value("index:0")
    preset = part("preset").get_by_label("Draft")
    if act is press:
        press(preset, "Space")  # Gradio's radio buttons are no group: each is reached by Tab
    else:
        act(part("preset").get_by_text("Draft", exact=True))
    expect(preset).to_be_checked()
    act(part("start"))
    act(part("anyway"))
    part("cancel").wait_for()
    part("preview").locator("img").wait_for()
    expect(part("progress").locator(".stage")).to_be_in_viewport()
    visitor.finish()
    expect(part("progress").locator(".verdict")).to_contain_text("another face than the demo's")
    result = visitor.fetch(tmp_path)
    assert len(decoded(result)) == FRAMES
    assert len(read_audio(result)) / SPEECH_RATE_HZ == pytest.approx(FRAMES / 25, abs=0.1)
    with page.context.expect_page() as opened:
        part("report").click()
    assert "<svg" in opened.value.content()
    opened.value.close()
    page.wait_for_function(
        "['before', 'after'].every((id) => document.getElementById(id).videoWidth)"
    )
    slider = part("wipe")
    shown = part("wipe").input_value()
    if act is press:
        slider.press("ArrowRight")
    else:
        slider.click(position={"x": 60, "y": 60})
    expect(slider).not_to_have_value(shown)
    page.reload()
    visitor.finish()
    assert re.fullmatch(r"two.mp4 · draft · [\d:]+ · done", visitor.jobs()[0])
    visitor.ready(faces=2)
    expect(preset).to_be_checked()
    expect(part("option-report").locator("input")).to_be_checked()
    act(part("again"))
    visitor.ready(faces=2)
    expect(preset).to_be_checked()
    expect(part("demo-note")).to_contain_text("will be a smear")
    page.once("dialog", lambda asked: asked.dismiss())
    act(part("delete"))
    expect(part("delete")).not_to_have_attribute("aria-busy", "true")
    assert len(visitor.jobs()) == 1
    page.once("dialog", lambda asked: asked.accept())
    act(part("delete"))
    expect(part("progress")).to_contain_text("Your result appears here")
    expect(part("history")).to_be_hidden()
    visitor.leave()


def test_the_second_face_on_a_dark_phone(browser: Browser, server: Server, clips: Path) -> None:
    visitor = visit(
        browser, server, viewport={"width": PHONE_PX, "height": 844}, color_scheme="dark"
    )
    expect(visitor.page.locator("body")).to_have_css("background-color", DARK)
    visitor.part("more").locator("button").first.click()
    visitor.upload(clips / "two.mp4", clips / "speech.wav", faces=2)
    visitor.part("faces").locator("img").nth(1).click()
    expect(visitor.part("option-face").locator("input, textarea").first).to_have_value("index:1")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == PHONE_PX
    visitor.begin()
    expect(visitor.part("progress").locator(".stage")).to_be_in_viewport()
    visitor.finish()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == PHONE_PX
    assert visitor.page.evaluate("document.getElementById('after').offsetWidth") > 0.8 * PHONE_PX
    visitor.leave()


def test_the_built_in_clip_then_a_reload_a_cancel_and_another(
    visitor: Visitor, clips: Path
) -> None:
    expect(visitor.part("demo-note")).to_contain_text("built-in demo model")
    press(visitor.part("demo"))
    visitor.ready()
    expect(visitor.part("demo")).to_be_hidden()
    visitor.begin(preview=True)
    visitor.page.reload()
    visitor.part("cancel").wait_for()
    expect(visitor.part("progress").locator("progress")).to_have_attribute("max", str(LONG))
    visitor.part("cancel").click()
    expect(visitor.part("progress")).to_contain_text(re.compile("Canceling|Canceled"))
    expect(visitor.part("progress")).to_contain_text("Canceled")
    assert not visitor.part("download").count()
    visitor.upload(clips / "short.mp4", clips / "speech.wav")
    visitor.begin()
    visitor.finish()
    assert [text.rpartition(" ")[2] for text in visitor.jobs()] == ["done", "canceled"]
    visitor.part("compare").locator(".play").click()
    for player in ("before", "after"):
        visitor.page.wait_for_function(f"document.getElementById('{player}').currentTime > 0")


def test_times_of_the_timeline_are_reached_by_mouse_and_keyboard(
    visitor: Visitor, clips: Path
) -> None:
    page = visitor.page
    visitor.upload(clips / "short.mp4", clips / "speech.wav")
    visitor.begin()
    visitor.finish()
    players = ["before", "after"]

    def are_at(time_s: float) -> None:
        page.wait_for_function(
            "([names, time_s]) => names.every((name) => Math.abs("
            "document.getElementById(name).currentTime - time_s) < 0.02)",
            arg=[players, time_s],
        )

    page.wait_for_function(f"{players}.every((id) => document.getElementById(id).videoWidth)")
    painted = visitor.part("compare").locator(".painted .track")
    width = painted.evaluate("track => track.clientWidth")
    painted.click(position={"x": width // 2, "y": 8})
    are_at(FRAMES / 25 / 2)
    press(painted, "Home")
    are_at(0)
    expect(painted).to_have_attribute("aria-valuetext", re.compile("person 0"))
    visitor.part("compare").locator(".times summary").click()
    spoken = visitor.part("compare").locator(".times button").first
    press(spoken)
    are_at(float(spoken.get_attribute("data-start") or "nan"))
    page.reload()
    painted.wait_for()


def test_a_part_is_dragged_done_again_and_undone(
    browser: Browser, server: Server, clips: Path
) -> None:
    """On a phone; a second tab shows the new result, too, and a reload keeps it."""
    visitor = visit(browser, server, viewport={"width": PHONE_PX, "height": 844})
    page = visitor.page
    visitor.upload(clips / "short.mp4", clips / "speech.wav")
    visitor.begin()
    visitor.finish()
    track = visitor.part("compare").locator(".painted .track")
    track.scroll_into_view_if_needed()
    box = track.bounding_box() or {}
    down = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], down)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], down, steps=5)
    page.mouse.up()
    starts_s = float(visitor.part("redo-from").locator("input").input_value())
    ends_s = float(visitor.part("redo-until").locator("input").input_value())
    assert (starts_s, ends_s) == (pytest.approx(0.2, abs=0.02), pytest.approx(0.6, abs=0.02))
    press(track, "Home")
    page.keyboard.press("Enter")
    expect(visitor.part("redo-from").locator("input")).to_have_value("0.00")
    expect(visitor.part("redo-until").locator("input")).to_have_value("1.00")
    visitor.part("redo-until").locator("input").fill("0.5")
    visitor.part("redo-begin").click()
    first = visitor.part("history").locator("label").first
    expect(first).to_contain_text(re.compile("0–0.5 s again .* done"))
    assert len(visitor.jobs()) == 1
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE_PX
    tab = page.context.new_page()
    tab.goto(server.address)
    expect(tab.locator("#history label")).to_contain_text("0–0.5 s again")
    page.reload()
    visitor.part("undo").click()
    expect(first).not_to_contain_text("again")
    expect(visitor.part("undo")).to_be_hidden()
    visitor.finish()
    assert len(visitor.jobs()) == 1
    visitor.leave()


def test_two_people_speak_their_own_words(browser: Browser, server: Server, clips: Path) -> None:
    visitor = visit(browser, server)
    part = visitor.part
    part("video").locator("input[type=file]").first.set_input_files(clips / "two.mp4")
    part("faces").locator("img").nth(1).wait_for()
    expect(part("start")).to_be_disabled()
    for number in (0, 1):
        part("faces").get_by_role("button").nth(number).click()
        speech = part("person-speech")
        expect(speech).to_contain_text(f"Speech of person {number} alone")
        speech.locator("input[type=file]").first.set_input_files(clips / "speech.wav")
        expect(part("voices-note")).to_contain_text(f"Person {number}: speech.wav")
    visitor.page.reload()
    part("faces").locator("img").nth(1).wait_for()
    expect(part("voices-note")).to_contain_text("Person 1: speech.wav")
    part("preset").get_by_text("Draft", exact=True).click()
    expect(part("start")).to_be_enabled()
    part("start").click()
    visitor.finish()
    expect(part("compare")).to_contain_text("Painted, person 1")
    visitor.leave()


def test_a_mask_is_painted_with_the_mouse(browser: Browser, server: Server, clips: Path) -> None:
    """And is kept when the page is loaded again."""
    visitor = visit(browser, server)
    page = visitor.page
    visitor.upload(clips / "short.mp4", clips / "speech.wav")
    press(visitor.part("keep").locator("button").first)
    canvas = visitor.part("keep-editor").locator("canvas").first
    canvas.wait_for()
    expect(visitor.part("keep-note")).to_contain_text("Paint over")
    page.wait_for_timeout(1000)  # the picture is drawn
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box() or {}
    across = box["x"] + box["width"] / 2
    down = box["y"] + box["height"] / 2
    page.mouse.move(across - 20, down)
    page.mouse.down()
    page.mouse.move(across + 20, down, steps=5)
    page.mouse.up()
    expect(visitor.part("keep-editor").get_by_role("button", name="Undo")).to_be_enabled()
    visitor.part("keep-painted").click()
    expect(visitor.part("keep-note")).to_contain_text("It is kept")
    page.reload()
    visitor.ready()
    visitor.part("more").locator("button").first.click()
    expect(visitor.part("option-keep_mask")).to_contain_text("painted mask")
    visitor.begin()
    visitor.finish()
    visitor.leave()


def drop(visitor: Visitor, path: Path, kind: str) -> None:
    """Drops a file on the field for videos."""
    data = base64.b64encode(path.read_bytes()).decode()
    visitor.page.evaluate(
        """([data, name, type]) => {
            const bytes = Uint8Array.from(atob(data), (each) => each.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], name, {type}));
            const event = new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer});
            document.querySelector("#video .upload-container button").dispatchEvent(event);
        }""",
        [data, path.name, kind],
    )


def test_a_text_and_a_photo_are_dropped(visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no video")
    drop(visitor, tmp_path / "notes.txt", "text/plain")
    expect(visitor.part("video-error")).to_contain_text("notes.txt: is not a readable media file")
    expect(visitor.part("start")).to_be_disabled()
    cv2.imwrite(str(tmp_path / "photo.png"), portrait()[..., ::-1])
    drop(visitor, tmp_path / "photo.png", "image/png")
    visitor.part("faces").locator("img").first.wait_for()
    visitor.page.wait_for_function("document.querySelector('#video video')?.videoWidth > 0")


def test_what_the_browser_cannot_play_has_previews_and_a_timeline(
    visitor: Visitor, tmp_path: Path
) -> None:
    clip = write_kind(tmp_path / "Aunt Emma.avi", *KINDS["old.avi"])
    visitor.part("video").locator("input[type=file]").first.set_input_files(clip)
    visitor.part("timeline").locator(".cut").wait_for()
    visitor.part("speech").locator("input[type=file]").first.set_input_files(
        write_sound(tmp_path / "a.wav", 0.4)
    )
    visitor.ready()
    for _ in range(10):
        visitor.part("timeline").locator(".from").press("ArrowRight")
    start = visitor.part("option-start").locator("input, textarea").first
    expect(start).to_have_value("0.10")
    start.fill("0.2")
    expect(visitor.part("timeline").locator("output")).to_contain_text("0:00.20 – 0:00.4")
    visitor.begin()
    visitor.finish()
    for player in ("before", "after"):
        visitor.page.wait_for_function(f"document.getElementById('{player}')?.videoWidth > 0")
    assert visitor.fetch(tmp_path).name == "Aunt Emma-synced.mp4"


def test_another_site_cannot_use_a_login(browser: Browser, tmp_path: Path) -> None:
    """Another port is another origin, to which browsers send the same cookies."""
    other = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    wrong = {
        "ALL_PROXY": "socks5://127.0.0.1:9",
        "no_proxy": "fe80::/10",
        "SSL_CERT_FILE": "gone.pem",
    }
    with started(tmp_path, LATENTSYNC_TRT_API_KEY=KEY, **wrong) as server:
        page = browser.new_context().new_page()
        page.goto(server.address)
        login = f"""async () => (await fetch("/login", {{method: "POST", body: new URLSearchParams(
            {{username: "user", password: "{KEY}"}})}})).status"""
        asks = """async ([address, method]) => {
            const body = method === "POST" ? new FormData() : undefined;
            try { return (await fetch(address, {method, body, credentials: "include"})).status; }
            catch (error) { return 0; }
        }"""
        assert page.evaluate(login) == 200
        assert page.evaluate(asks, [f"{server.address}/config", "GET"]) == 200
        page.goto(f"http://127.0.0.1:{other.server_port}")
        for path, method in (
            ("config", "GET"),
            ("gradio_api/upload", "POST"),
            ("gradio_api/call/sync", "POST"),
        ):
            assert page.evaluate(asks, [f"{server.address}/{path}", method]) == 0
        page.context.close()
    other.shutdown()
    other.server_close()
