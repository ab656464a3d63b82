"""Asks an engine cache for one engine, as a process of its own: `python -m tests.cache_worker CACHE
SIGNALS MODE`.

MODE "N": a build ends when N other processes wait for it. Files in SIGNALS say which process builds
and which wait; the result is printed as JSON.

MODE "kill ACTION", where processes can be forked: "build", "build again" or "remove" an engine in
CACHE/0, CACHE/1, …, killed before its first step that changes the disk, its second, …; prints their
number as JSON, of which the last is not killed.
"""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.entries import EngineKey

PATIENCE_S = 600.0

KEY = EngineKey(
    bundle="demo",
    graph="denoise_step",
    graph_sha256="ab" * 32,
    provider="tensorrt",
    options={"trt_builder_optimization_level": "3"},
    precision="fp16",
    profile={"windows": (1, 2, 4), "height": (64, 64, 64)},
    versions={"onnxruntime": "1.31.1", "tensorrt": "10.14.1"},
    gpu="NVIDIA GeForce RTX 4090",
    compute_capability="8.9",
)


def write_engine(folder: Path, content: bytes = b"engine") -> None:
    """Builds what a provider might: two files, one of them in a folder."""
    (folder / "engine.bin").write_bytes(content)
    (folder / "context").mkdir()
    (folder / "context" / "timing.bin").write_bytes(bytes(1000))


def never(folder: Path) -> None:
    raise AssertionError("built again")


def until(condition: Any) -> None:
    """Waits for `condition()`; a deadlock ends the process."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.02)


_CHANGES = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "os.utime",
    "shutil.rmtree",
)
"""Names of Python's audit events."""


def killed(cache: Path, action: str) -> int:
    """Does `action` again and again, killed one step later each time; returns how often."""

    def build(content: bytes) -> Callable[[Path], None]:
        return lambda folder: (folder / "engine.bin").write_bytes(content) and None

    def act(folder: Path, last: int) -> None:
        engines = EngineCache(folder, lambda text: None)
        old = None if action == "build" else engines.obtain(KEY, build(b"old"))
        if old is not None and action == "build again":
            (old.folder / "engine.bin").unlink()
        steps = itertools.count()

        def step(event: str, arguments: Any) -> None:
            if event in _CHANGES and next(steps) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(step)
        if action == "remove":
            assert old is not None
            assert not engines.remove(old)
        else:
            engines.obtain(KEY, build(b"new"))

    for last in itertools.count():
        child = os.fork()
        if not child:
            act(cache / f"{last}", last)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return last + 1
    raise AssertionError


def main(cache: Path, signals: Path, mode: str) -> None:
    """Obtains the engine of `KEY` and prints what came of it."""
    if mode.startswith("kill "):
        json.dump({"steps": killed(cache, mode.removeprefix("kill "))}, sys.stdout)
        return
    notices: list[str] = []

    def on_notice(text: str) -> None:
        notices.append(text)
        if "waiting" in text:
            (signals / f"waits-{os.getpid()}").touch()

    def build(folder: Path) -> None:
        (folder / "engine.bin").write_bytes(b"half of it")
        (signals / f"builds-{os.getpid()}").touch()
        until(lambda: len(list(signals.glob("waits-*"))) >= int(mode))
        (folder / "engine.bin").write_bytes(b"all of it")

    engine = EngineCache(cache, on_notice).obtain(KEY, build)
    answer = {"folder": engine.folder.name, "built": engine.built, "notices": notices}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
