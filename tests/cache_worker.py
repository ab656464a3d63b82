"""Asks an engine cache for one engine, as a process of its own: `python -m tests.cache_worker CACHE SIGNALS MODE`.

MODE "race-N": a build ends when N other processes wait for it. MODE "hang": a build never ends. Files in SIGNALS say
which process builds and which wait; the result is printed as JSON.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.store import EngineCache

PATIENCE_S = 60.0

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


def engine_key(**changes: Any) -> EngineKey:
    """A key that differs from `KEY` in `changes`."""
    return replace(KEY, **changes)


def write_engine(folder: Path, content: bytes = b"engine") -> None:
    """Builds what a provider might: two files, one of them in a folder."""
    (folder / "engine.bin").write_bytes(content)
    (folder / "context").mkdir()
    (folder / "context" / "timing.bin").write_bytes(bytes(1000))


def never(folder: Path) -> None:
    """A build that must not be."""
    raise AssertionError("built again")


def until(condition: Any) -> None:
    """Waits for `condition()`; a deadlock ends the process."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.02)


def main(cache: Path, signals: Path, mode: str) -> None:
    """Obtains the engine of `KEY` and prints what came of it."""
    notices: list[str] = []

    def on_notice(text: str) -> None:
        notices.append(text)
        (signals / f"waits-{os.getpid()}").touch()

    def build(folder: Path) -> None:
        (folder / "engine.bin").write_bytes(b"half of it")
        (signals / f"builds-{os.getpid()}").touch()
        others = int(mode.removeprefix("race-")) if mode != "hang" else sys.maxsize
        until(lambda: len(list(signals.glob("waits-*"))) >= others)
        (folder / "engine.bin").write_bytes(b"all of it")

    engine = EngineCache(cache, on_notice).obtain(KEY, build)
    answer = {"folder": engine.folder.name, "built": engine.built, "notices": notices}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
