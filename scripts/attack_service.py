"""Attacks a service of its own on this machine; prints, as JSON, what it answered, and the memory that it took.

    python -m scripts.attack_service [--bundle demo] [--provider cpu] [--only uploads posts kills connects]

`peak_mb`: the most that the server, one process that checks files, and the worker have taken at any moment.
"""

import argparse
import gzip
import io
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
import wave
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import httpx
import numpy as np
import psutil

from latentsync_trt import __version__
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.media.audio import SPEECH_RATE_HZ, read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, camera_frames_at
from latentsync_trt.media.writer import write_pictures

KEY = {"LATENTSYNC_TRT_API_KEY": "a key for this measurement"}
FRAMES = 5
Files = dict[str, tuple[str, bytes]]


def black_png(width_px: int, height_px: int) -> bytes:
    """A picture of about a thousandth of its decoded size."""
    packer, row = zlib.compressobj(1), bytes(1 + 3 * width_px)
    pixels = b"".join(packer.compress(row) for _ in range(height_px)) + packer.flush()
    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    )


def speech(seconds: float) -> bytes:
    """The beginning of the built-in sentence, as WAV."""
    samples, data = np.concatenate([*read_audio_blocks(SPEECH)])[: round(seconds * SPEECH_RATE_HZ)], io.BytesIO()
    with wave.open(data, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(SPEECH_RATE_HZ)
        sound.writeframes((samples * 32767).astype("<i2").tobytes())
    return data.getvalue()


class Attacked:
    """The command `serve` in a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._words = ["-m", "latentsync_trt", "serve", "--port", "0", "--folder", str(folder / "service"), *words]
        self._log, self.peak_mb = folder / "log.txt", Counter[str]()
        threading.Thread(target=self._watch, daemon=True).start()
        self.start()

    def start(self) -> None:
        with self._log.open("w") as log:
            self.process = psutil.Popen([sys.executable, *self._words], stderr=log, env={**os.environ, **KEY})
        while not (ready := re.search(r"(http://\S+)/docs", self._log.read_text())):
            time.sleep(0.05)
        headers = {"Authorization": f"Bearer {KEY['LATENTSYNC_TRT_API_KEY']}"}
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.Client(base_url=ready[1], headers=headers, timeout=600, trust_env=False, limits=limits)

    def until_ready(self) -> None:
        while not self.client.get("/healthz").is_success:
            time.sleep(0.1)

    def worker(self) -> psutil.Process | None:
        """The process that paints."""
        return next((child for child, kind in self._processes() if kind == "worker"), None)

    def post(self, files: Files) -> httpx.Response:
        return self.client.post("/v1/jobs", files=files, data={"options": '{"preset": "fast"}'})

    def ended(self, job: str) -> dict[str, Any]:
        while (found := self.client.get(f"/v1/jobs/{job}").json())["state"] in ("waiting", "running"):
            time.sleep(0.2)
        return dict(found)

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """All, by what they do: the worker is the child that was started first."""
        children = sorted(self.process.children(), key=psutil.Process.create_time)
        yield self.process, "server"
        yield from zip(children, ["worker", *len(children) * ["check"]], strict=False)

    def _watch(self) -> None:
        while True:
            time.sleep(0.02)
            with suppress(psutil.Error, AttributeError):  # before it is started, and while it ends
                for each, kind in self._processes():
                    self.peak_mb[kind] = max(self.peak_mb[kind], round(each.memory_info().rss / 1e6))


def uploads(service: Attacked, clip: Files) -> Iterator[dict[str, Any]]:
    """Small requests that would take much memory."""
    face = cv2.resize(next(camera_frames_at([Fraction(0)])), (8192, 4352))
    large = cv2.imencode(".png", face[..., ::-1])[1].tobytes()
    bomb = {"video": ("a.png", black_png(16_000, 16_000))}
    for name, files, count in (
        ("faces: gzip of 2 GB of spaces", {"faces": ("a.gz", 100 * gzip.compress(b" " * 20_000_000))}, 1),
        ("turns: 200 MB of newlines", {"turns": ("a.rttm", b"\n" * 200_000_000)}, 1),
        ("video: PNG of 16000x16000", bomb, 1),
        ("video: PNG of 16000x16000, four at once", bomb, 4),
        ("video: PNG of 8192x4352 with a face", {"video": ("a.png", large), "audio": ("a.wav", speech(0.2))}, 1),
    ):
        service.peak_mb.clear()
        began_s, size_bytes = time.monotonic(), sum(len(data) for _, data in files.values())
        with ThreadPoolExecutor(count) as pool:
            answers = list(pool.map(lambda files: service.post(clip | files), count * [files]))
        answered_s = time.monotonic() - began_s
        found = answers[0].json()
        said = found.get("error") or service.ended(found["id"])["state"]
        statuses = [answer.status_code for answer in answers]
        yield {
            "attack": name,
            "sent_mb": round(size_bytes / 1e6, 1),
            "status": statuses,
            "answer": said,
            "answered_s": round(answered_s, 1),
            "peak_mb": dict(service.peak_mb),
        }


def posts(service: Attacked, clip: Files) -> Iterator[dict[str, Any]]:
    """200 jobs at once, while others ask for the service's health."""
    service.peak_mb.clear()
    slowest_s, over = 0.0, threading.Event()

    def ask() -> None:
        nonlocal slowest_s
        while not over.wait(0.05):
            began_s = time.monotonic()
            service.client.get("/healthz")
            slowest_s = max(slowest_s, time.monotonic() - began_s)

    asking, began_s = threading.Thread(target=ask), time.monotonic()
    asking.start()
    with ThreadPoolExecutor(200) as pool:
        statuses = Counter(answer.status_code for answer in pool.map(service.post, 200 * [clip]))
    seconds = time.monotonic() - began_s
    over.set()
    asking.join()
    listed = service.client.get("/v1/jobs?limit=1000").json()
    states = Counter(job["state"] for job in listed)
    for job in listed:
        service.client.delete(f"/v1/jobs/{job['id']}")
    yield {
        "attack": "200 posts at once",
        "status": dict(statuses),
        "answered_s": round(seconds, 1),
        "slowest_health_s": round(slowest_s, 2),
        "jobs": dict(states),
        "peak_mb": dict(service.peak_mb),
    }


def kills(service: Attacked, clip: Files) -> Iterator[dict[str, Any]]:
    """Server and worker die in turn, ten times each, while jobs run that have not been hit before."""
    jobs = [service.post(clip).json()["id"] for _ in range(24)]
    hit, count = set[str](), Counter[str]()
    while count.total() < 20:
        with suppress(httpx.HTTPError):
            running = [each for each in service.client.get("/v1/jobs").json() if each["state"] == "running"]
            worker = service.worker()
            if not running or worker is None or {each["id"] for each in running} & hit:
                time.sleep(0.02)
                continue
            hit |= {each["id"] for each in running}
            if count.total() % 2:
                worker.send_signal(signal.SIGKILL)
                count["worker"] += 1
            else:
                service.process.send_signal(signal.SIGKILL)
                service.process.wait()
                count["server"] += 1
                service.start()
    ends = [service.ended(job) for job in jobs]
    yield {
        "attack": "20 kills",
        "killed": dict(count),
        "jobs": dict(Counter(end["state"] for end in ends)),
        "attempts": dict(Counter(end["attempts"] for end in ends)),
        "listed": len(service.client.get("/v1/jobs?limit=1000").json()),
    }


def connects(service: Attacked, clip: Files) -> Iterator[dict[str, Any]]:
    """100 connections that send the head of an upload and nothing more."""
    service.until_ready()
    service.peak_mb.clear()
    address, sockets = (service.client.base_url.host, service.client.base_url.port), list[socket.socket]()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY['LATENTSYNC_TRT_API_KEY']}\r\n"
    for _ in range(100):
        sockets.append(socket.create_connection(address))
        sockets[-1].sendall(
            f"{head}Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 9\r\n\r\n".encode()
        )
    time.sleep(1)
    during = service.post(clip)
    began_s = time.monotonic()
    first_s, answers = 0.0, Counter[str]()
    for each in sockets:
        each.settimeout(300)
        answers[each.recv(100).partition(b"\r\n")[0].decode()] += 1
        first_s = first_s or time.monotonic() - began_s
        each.close()
    after = service.post(clip)
    yield {
        "attack": "100 connections that stall",
        "post_meanwhile": during.status_code,
        "answers": dict(answers),
        "ended_s": round(time.monotonic() - began_s, 1),
        "post_afterwards": after.status_code,
        "peak_mb": dict(service.peak_mb),
    }


@contextmanager
def attacked(folder: Path, words: list[str]) -> Iterator[Attacked]:
    service = Attacked(folder, words)
    try:
        service.until_ready()
        yield service
    finally:
        service.process.send_signal(signal.SIGTERM)
        service.process.wait()


def main() -> None:
    """Runs as a script."""
    parser = argparse.ArgumentParser(description="Attacks a service of its own on this machine.")
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--provider", default="cpu")
    parser.add_argument("--only", nargs="*", default=["uploads", "posts", "kills", "connects"])
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        pictures = camera_frames_at(Fraction(frame, MODEL_FPS) for frame in range(FRAMES))
        write_pictures(folder / "clip.mp4", pictures)
        clip = {"video": ("a.mp4", (folder / "clip.mp4").read_bytes()), "audio": ("a.wav", speech(FRAMES / MODEL_FPS))}
        with attacked(folder, ["--bundle", given.bundle, "--provider", given.provider]) as service:
            for attack in (uploads, posts, kills, connects):
                if attack.__name__ in given.only:
                    for row in attack(service, clip):
                        print(row, file=sys.stderr)
                        rows.append(row)
    print(json.dumps({"version": __version__, "cores": os.cpu_count(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
