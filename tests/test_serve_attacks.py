"""Hostile uploads: each ends in the response that the table says, within the memory that it
says.
"""

import gzip
import json
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import psutil
import pytest

from latentsync_trt.serve import checks
from latentsync_trt.serve.admission import Limits, TooLarge
from latentsync_trt.serve.checks import Pool, TimeLimit
from tests.clips import write_face, write_sound
from tests.serving import PretendedWorker, kill_new_children, serving, until, upload_of

pytestmark = pytest.mark.integration

MOST_S = 5.0
LARGEST = "a picture of 8192 × 4352"
MOST_MB = 300
"""The one upload that may take more memory, 900 MB."""
TURNS = b"SPEAKER a 1 0 0.1 <NA> <NA> anna <NA> <NA>"
Files = dict[str, tuple[str, bytes]]


def png(width: int, height: int) -> bytes:
    """A black picture; a hundredth of a bit for each pixel."""
    packer = zlib.compressobj(9, wbits=-15)
    strip = bytes(64 * (1 + 3 * width))
    strips = height // 64
    packed = packer.compress(strip) + packer.flush(zlib.Z_FULL_FLUSH)  # which all strips repeat
    checksum = struct.pack(">HH", len(strip) * strips % 65521, 1)
    pixels = b"\x78\x01" + strips * packed + packer.flush() + checksum
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def stream(folder: Path, name: str, seconds: float) -> bytes:
    """A video without faces, 25 frames/s."""
    path = folder / name
    with av.open(path, "w") as output:
        video = output.add_stream("libx264", rate=25)
        video.width = video.height = 64
        for _ in range(round(25 * seconds)):
            output.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))))
        output.mux(video.encode(None))
    return path.read_bytes()


def video(name: str, data: bytes) -> Callable[[Path], Files]:
    return lambda _: {"video": (name, data)}


def text(name: str, data: bytes) -> Callable[[Path], Files]:
    return lambda _: {name: (f"{name}.json", data)}


def options(**values: Any) -> Callable[[Path], Files]:
    return lambda _: {"options": ("", json.dumps(values).encode())}


NESTED = {
    "turns": ("a.rttm", TURNS),
    "options": ("", b'{"speaker": ' + b"[" * 700 + b"]" * 700 + b"}"),
}
# What is sent, the status, and a part of the message.
ATTACKS: dict[str, tuple[Callable[[Path], Files], int, str]] = {
    "tracks of 2 GB of spaces in gzip": (
        text("faces", 100 * gzip.compress(b" " * 20_000_000)),
        422,
        "faces",
    ),
    "tracks of 70 MB of spaces": (
        text("faces", b" " * 70_000_000),
        413,
        "faces: has more than 64 MB",
    ),
    "tracks nested 100,000 times": (text("faces", b"[" * 100_000), 422, "faces"),
    "a picture of 16000 × 16000": (
        lambda _: {"video": ("a.png", png(16_000, 16_000))},
        415,
        "36 million pixels",
    ),
    "a small picture, then a large one": (
        lambda _: {"video": ("a.png", png(64, 64) + png(16_000, 16_000))},
        201,
        "",
    ),
    LARGEST: (lambda _: {"video": ("a.png", png(8192, 4352))}, 201, ""),
    "seven seconds without stamps": (
        lambda at: {"video": ("a.mp4", stream(at, "a.h264", 7))},
        422,
        "longer than 5 s",
    ),
    "a clock that begins again": (
        lambda at: {"video": ("a.mp4", 3 * stream(at, "a.ts", 3))},
        422,
        "longer than 5 s",
    ),
    "SVG": (
        video("a.svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="99999" height="99999"/>'),
        415,
        "video",
    ),
    "offset 1e308": (options(offset=1e308), 422, "offset"),
    "NUL in a path": (options(mix="a\0b"), 422, "mix"),
    "an option of 700 lists within lists": (lambda _: NESTED, 422, "nested"),
    "options nested 100,000 times": (lambda _: {"options": ("", b"[" * 60_000)}, 422, "options"),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("clip")
    return upload_of(write_face(folder / "face.mp4", 5), write_sound(folder / "speech.wav", 0.2))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    worker = PretendedWorker()
    worker.go.set()
    with serving(tmp_path_factory.mktemp("service"), worker, checks=None, max_clip_s=MOST_S) as (
        opened,
        _,
    ):
        yield opened


class PeakMemory:
    """Watches the children of this process while its block runs: the memory of each, and how many
    are new.
    """

    def __enter__(self) -> "PeakMemory":
        self.peak_mb = 0.0
        self.most_children = 0
        self._ended = threading.Event()
        self._known = {child.pid for child in psutil.Process().children(recursive=True)}
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            count = 0
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    count += child.pid not in self._known
                    self.peak_mb = max(self.peak_mb, child.memory_info().rss / 1e6)
            self.most_children = max(self.most_children, count)


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_uploads(client: httpx.Client, clip: Files, tmp_path: Path, name: str) -> None:
    make, status, words = ATTACKS[name]
    with PeakMemory() as memory:
        answer = client.post("/v1/jobs", files=clip | make(tmp_path))
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert memory.peak_mb < (900 if name == LARGEST else MOST_MB)
    assert client.get("/healthz").is_success


def test_no_more_are_checked_at_once_than_the_pool_takes(clip: Files, tmp_path: Path) -> None:
    picture = {"video": ("a.png", png(2048, 1088))}
    running = serving(tmp_path, PretendedWorker(), checks=Pool("check", 2, 1.5e9, 120.0))
    memory = PeakMemory()
    with running as (client, _), memory, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/jobs", files=clip | picture), range(4)))
    assert {answer.status_code for answer in answers} == {201}
    assert memory.most_children == 2


@pytest.mark.parametrize(
    ("most_bytes", "most_s", "words"),
    [(1.0, 60.0, "GB of memory, the most here"), (1e9, 0.0, "takes more than 0 s")],
)
def test_a_check_that_reaches_a_limit_ends(most_bytes: float, most_s: float, words: str) -> None:
    before = psutil.Process().children()
    pool = Pool("check", 1, most_bytes, most_s)
    for _ in range(2):  # of one place
        with pytest.raises(TooLarge, match=words):
            pool.call(time.sleep, 600)
    assert psutil.Process().children() == before
    pool.close()


def sleep_longer_than_told(tell: Callable[[Any], None]) -> None:
    tell(TimeLimit(0.1))
    time.sleep(60)


def test_a_search_has_limits_and_one_that_nobody_wants_leaves_the_queue(
    clip: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = tmp_path / "face.mp4"
    video.write_bytes(clip["video"][1])
    told = list[Any]()
    checks.check_search(video, Limits(), told.append)
    assert 60 < told[0].seconds < 61  # of 0.2 s
    monkeypatch.setattr(checks, "_MOST_SEARCHED_PIXELS", 1000.0)
    with pytest.raises(TooLarge, match="1000 are the most"):
        checks.check_search(video, Limits(), told.append)

    began = threading.Event()

    def leave(_: object) -> None:
        raise InterruptedError

    pool = Pool("search", 1, 1.5e9, 60.0)
    with closing(pool), ThreadPoolExecutor() as threads:
        first = threads.submit(pool.call, sleep_longer_than_told, watch=lambda _: began.set())
        assert began.wait(60)
        with pytest.raises(InterruptedError):
            pool.call(time.sleep, 0, watch=leave)
        with pytest.raises(TooLarge, match=r"more than 0\.1 s"):
            first.result()


def test_a_check_whose_process_is_killed(clip: Files, tmp_path: Path) -> None:
    known = {child.pid for child in psutil.Process().children()}
    with (
        serving(tmp_path, PretendedWorker(), checks=None) as (client, _),
        ThreadPoolExecutor() as pool,
    ):
        for deaths, status in ((2, 503), (1, 201)):
            sent = pool.submit(client.post, "/v1/jobs", files=clip)
            kill_new_children(deaths, known)
            answer = sent.result()
            assert answer.status_code == status, answer.text


def test_the_65th_upload_at_once_is_refused(clip: Files, tmp_path: Path) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: multipart/form-data; boundary=x\r\n"
    with serving(tmp_path, PretendedWorker()) as (client, _):
        with ExitStack() as opened:
            for _ in range(64):
                stalled = socket.create_connection((client.base_url.host, client.base_url.port))
                opened.enter_context(stalled).sendall(head + b"Content-Length: 99\r\n\r\n")
            until(lambda: len(list((tmp_path / "jobs").glob("*/inputs"))) == 64)
            refused = client.post("/v1/jobs", files=clip)
            assert (refused.status_code, "uploads: 64 arrive already" in refused.text) == (
                429,
                True,
            )
            assert int(refused.headers["Retry-After"]) > 0
            assert client.get("/healthz").is_success
        until(lambda: client.post("/v1/jobs", files=clip).status_code == 201)
