"""Hostile uploads: each ends in the response that the table says, within the memory that it says."""

import gzip
import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import av
import httpx
import numpy as np
import psutil
import pytest

from latentsync_trt.child import Child
from latentsync_trt.errors import MediaError
from latentsync_trt.serve import admission
from latentsync_trt.serve.admission import Admissions, Form, Limits, TooLarge
from latentsync_trt.serve.checks import check_forms
from tests.clips import write_face, write_sound
from tests.serving import PretendedWorker, serving

pytestmark = pytest.mark.integration

MOST_S = 5.0
TURNS = b"SPEAKER a 1 0 0.1 <NA> <NA> anna <NA> <NA>"
Files = dict[str, tuple[str, bytes]]


def png(width: int, height: int) -> bytes:
    """A black picture; a hundredth of a bit for each pixel."""
    packer, row = zlib.compressobj(1), bytes(1 + 3 * width)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
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


# What is sent, the status, a part of the message, and the most memory in MB that checking it may take.
ATTACKS: dict[str, tuple[Callable[[Path], Files], int, str, int]] = {
    "tracks of 2 GB of spaces in gzip": (text("faces", 100 * gzip.compress(b" " * 20_000_000)), 422, "faces", 300),
    "tracks of 70 MB of spaces": (text("faces", b" " * 70_000_000), 413, "faces: has more than 64 MB", 300),
    "tracks nested 100,000 times": (text("faces", b"[" * 100_000), 422, "faces", 300),
    "turns of 9 MB of newlines": (text("turns", b"\n" * 9_000_000), 413, "turns: has more than 8 MB", 300),
    "a certificate of 2 MB": (text("c2pa", b"-" * 2_000_000), 413, "c2pa: has more than 1 MB", 300),
    "a picture of 16000 × 16000": (lambda _: {"video": ("a.png", png(16_000, 16_000))}, 415, "36 million pixels", 300),
    "a small picture, then 16000 × 16000": (
        lambda _: {"video": ("a.png", png(64, 64) + png(16_000, 16_000))},
        201,
        "",
        300,
    ),
    "a picture of 8192 × 4352": (lambda _: {"video": ("a.png", png(8192, 4352))}, 201, "", 900),
    "seven seconds without stamps": (
        lambda folder: {"video": ("a.mp4", stream(folder, "a.h264", 7))},
        422,
        "lasts longer than 5 s",
        300,
    ),
    "a clock that begins again": (
        lambda folder: {"video": ("a.mp4", 3 * stream(folder, "a.ts", 3))},
        422,
        "lasts longer than 5 s",
        300,
    ),
    "a playlist": (video("a.m3u8", b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nb.ts\n"), 415, "playlist", 300),
    "a list of files named mp4": (video("a.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n"), 415, "playlist", 300),
    "SVG": (
        video("a.svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="99999" height="99999"/>'),
        415,
        "video",
        300,
    ),
    "offset 10^20": (options(offset=10**20), 422, "offset", 300),
    "offset 1e308": (options(offset=1e308), 422, "offset", 300),
    "start 1e300": (options(start="1e300"), 422, "start", 300),
    "NUL in a speaker": (
        lambda _: {"turns": ("a.rttm", TURNS), **options(speaker=["0=a\0b"])(Path())},
        422,
        "has no such speaker",
        300,
    ),
    "NUL in a path": (options(mix="a\0b"), 422, "mix", 300),
    "options nested 100,000 times": (lambda _: {"options": ("", b"[" * 60_000)}, 422, "options", 300),
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("clip")
    paths = {"video": write_face(folder / "face.mp4", 5), "audio": write_sound(folder / "speech.wav", 0.2)}
    return {name: (path.name, path.read_bytes()) for name, path in paths.items()}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    worker = PretendedWorker()
    worker.go.set()
    with serving(tmp_path_factory.mktemp("service"), worker, max_clip_s=MOST_S) as (opened, _):
        yield opened


class PeakMemory:
    """Watches the children of this process while its block runs: the memory that each takes, and how many they are."""

    def __enter__(self) -> "PeakMemory":
        self.peak_mb, self.most_children, self._ended = 0.0, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            children = psutil.Process().children(recursive=True)
            self.most_children = max(self.most_children, len(children))
            for child in children:
                try:
                    self.peak_mb = max(self.peak_mb, child.memory_info().rss / 1e6)
                except psutil.Error:
                    continue


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_uploads(client: httpx.Client, clip: Files, tmp_path: Path, name: str) -> None:
    make, status, words, most_mb = ATTACKS[name]
    with PeakMemory() as memory:
        answer = client.post("/v1/jobs", files=clip | make(tmp_path))
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert memory.peak_mb < most_mb
    assert client.get("/healthz").is_success


def test_only_four_are_checked_at_once(client: httpx.Client, clip: Files) -> None:
    picture = {"video": ("a.png", png(8192, 4352))}
    with PeakMemory() as memory, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/jobs", files=clip | picture), range(12)))
    assert {answer.status_code for answer in answers} == {201}
    assert memory.most_children == 4


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"_CHILD_BYTES": 1}, TooLarge, "need too much memory"),
        ({"_CHILD_S": 0.0}, TooLarge, "takes more than 0 s"),
        ({"Child": lambda _: Child(cast(Any, len))}, MediaError, "ended with exit code 1"),  # which takes one argument
    ],
)
def test_children_that_must_be_ended_are_replaced(
    clip: Files, tmp_path: Path, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    files = {name: tmp_path / sent for name, (sent, _) in clip.items()}
    for name, path in files.items():
        path.write_bytes(clip[name][1])
    before = psutil.Process().children()
    with closing(Admissions(check_forms)) as admissions:
        for _ in range(6):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=words):
                for name, value in changed.items():
                    patch.setattr(admission, name, value)
                admissions.admit("a", Form(dict(files), {}), tmp_path, Limits())
        assert admissions.admit("a", Form(files, {}), tmp_path, Limits()).video == str(files["video"])
    assert psutil.Process().children() == before
