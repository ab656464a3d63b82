"""The page of `latentsync-trt ui` as a process, and people who look at it in a headless Chromium."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

PATIENCE_S = 200.0
_OTHER_HOSTS = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@dataclass(frozen=True)
class Server:
    """A page that runs at `address`; `log`: all that its process printed."""

    address: str
    log: Path


@contextmanager
def served_page(folder: Path, *words: str) -> Iterator[Server]:
    """`latentsync-trt ui` with these options, its files in `folder`, until the block ends."""
    log = folder / "log.txt"
    command = [sys.executable, "-m", "latentsync_trt", "ui", "--port", "0", "--folder", str(folder / "ui"), *words]
    with log.open("w") as target, subprocess.Popen(command, stdout=target, stderr=target) as process:
        try:
            end_s = time.monotonic() + PATIENCE_S
            while not (ready := re.search(r"^(http://\S+): ready", log.read_text(), re.MULTILINE)):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end_s, log.read_text()
                time.sleep(0.1)
            yield Server(ready[1], log)
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser that finds no other machine, and calls that an error; skips the test where there is none."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", _OTHER_HOSTS])
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Someone with a browser of their own, who has opened the page; `problems`: errors in the console."""

    page: Page
    problems: list[str] = field(default_factory=list)

    def part(self, name: str) -> Locator:
        """What has this id."""
        return self.page.locator(f"#{name}")

    def upload(self, video: Path, speech: Path, faces: int = 1) -> None:
        """Gives both files, and waits until the page has them and shows so many faces."""
        for name, path in (("video", video), ("speech", speech)):
            self.part(name).locator("input[type=file]").first.set_input_files(path)
        self.ready(faces)

    def ready(self, faces: int = 1) -> None:
        """Waits until the page has both files and shows so many faces."""
        self.part("video").locator("video").wait_for()
        self.part("speech").get_by_role("button", name="Play").first.wait_for()
        self.part("faces").locator("img").nth(faces - 1).wait_for()

    def begin(self, *, preview: bool = False) -> None:
        """Starts a job, and waits until it is shown, or also its first frame."""
        self.part("start").click()
        self.part("cancel").wait_for()
        if preview:
            self.part("preview").locator("img").wait_for()

    def finish(self) -> str:
        """Waits for a result; returns its address."""
        self.part("download").locator("a").wait_for()
        return str(self.page.evaluate("document.querySelector('#download a').href"))

    def fetch(self, folder: Path) -> Path:
        """Downloads the result as people do."""
        with self.page.expect_download() as started:
            self.part("download").locator("a").click()
        target = folder / started.value.suggested_filename
        started.value.save_as(target)
        return target

    def jobs(self) -> list[str]:
        """What the history shows."""
        return self.part("history").locator("label").all_inner_texts()

    def leave(self) -> None:
        """Closes the browser; there were no errors."""
        self.page.context.close()
        assert not self.problems


def visit(browser: Browser, server: Server, **settings: Any) -> Visitor:
    """A new visitor; `settings`: of the browser's context."""
    context = browser.new_context(accept_downloads=True, **settings)
    context.set_default_timeout(PATIENCE_S * 1000)
    visitor = Visitor(context.new_page())
    visitor.page.on("console", lambda said: visitor.problems.append(said.text) if said.type == "error" else None)
    visitor.page.on("pageerror", lambda error: visitor.problems.append(str(error)))
    visitor.page.goto(server.address)
    visitor.part("start").wait_for()
    return visitor
