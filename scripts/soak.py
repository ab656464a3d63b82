"""Runs many short clips through local workers; prints their throughput, and the memory of each after every clip.

    python -m scripts.soak [--clips 200] [--workers 1 2] [--bundle demo] [--provider auto] [--preset fast] [--json FILE]

Each clip is 1 s of the built-in one, from another moment of the camera's path. Each number of workers runs all clips.
`grows_kb_a_clip`: slope of the memory over the second half of a worker's clips.
"""

import argparse
import json
import os
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from latentsync_trt import __version__
from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.local import LocalWorker
from latentsync_trt.batch.tasks import Event, Failed, Finished, Started, Task, WorkerSettings, WorkerState
from latentsync_trt.batch.workers import make_workers
from latentsync_trt.config import MODEL_FPS, PRESETS, RuntimeOptions, SyncOptions
from latentsync_trt.media.demo_clip import SPEECH, camera_frames_at
from latentsync_trt.media.writer import write_pictures

_SOURCES = 8
_MB = 1e6


class Watch:
    """Collects what happens: memory by worker, and the time from when all workers are ready to the last clip."""

    def __init__(self, workers: list[LocalWorker]) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._ready = 0
        self._start_s = time.monotonic()
        self.rss_bytes: dict[str, list[int]] = {worker.name: [] for worker in workers}
        self.failures: list[str] = []
        self.startup_s, self.clips_s = 0.0, 0.0

    def take(self, event: Event) -> None:
        """Called by the dispatcher."""
        if isinstance(event, Started) and not self.startup_s:
            self.startup_s = time.monotonic() - self._start_s
        elif isinstance(event, Finished):
            process = psutil.Process(self._workers[event.worker].pid)
            self.rss_bytes[event.worker].append(process.memory_info().rss)
            self.clips_s = time.monotonic() - self._start_s - self.startup_s
        elif isinstance(event, Failed):
            self.failures.append(event.message)
        elif isinstance(event, WorkerState) and event.state == "lost":
            self.failures.append(event.detail)


def write_sources(folder: Path) -> list[Path]:
    """Clips of 1 s, from several moments of the camera's path."""
    made = []
    for index in range(_SOURCES):
        made.append(folder / f"source-{index}.mp4")
        write_pictures(made[-1], camera_frames_at(index + Fraction(frame, MODEL_FPS) for frame in range(MODEL_FPS)))
    return made


def soak(settings: WorkerSettings, count: int, clips: int, options: SyncOptions, folder: Path) -> dict[str, Any]:
    """Runs `clips` clips on `count` workers; returns a row."""
    sources = write_sources(folder)
    workers = make_workers(settings, count)
    watch = Watch([worker for worker in workers if isinstance(worker, LocalWorker)])
    dispatcher = Dispatcher(workers, watch.take)
    for index in range(clips):
        output = folder / f"out-{index}.mp4"
        dispatcher.submit(Task(str(index), str(sources[index % _SOURCES]), str(SPEECH), str(output), options))
    dispatcher.wait()
    dispatcher.close()
    done = sum(len(sizes) for sizes in watch.rss_bytes.values())
    return {
        "workers": count,
        "clips": done,
        "failures": watch.failures,
        "startup_s": round(watch.startup_s, 2),
        "clips_per_s": round(done / watch.clips_s, 3) if watch.clips_s else None,
        "rss_mb": {name: summary(sizes) for name, sizes in watch.rss_bytes.items() if sizes},
        "left_behind": sorted(path.name for path in folder.iterdir() if path.name.startswith(".")),
    }


def summary(sizes: list[int]) -> dict[str, Any]:
    """First, median, last and largest in MB, and the growth late in the run."""
    late = sizes[len(sizes) // 2 :]
    slope = float(np.polyfit(range(len(late)), late, 1)[0]) / 1e3 if len(late) > 1 else 0.0
    first, median, last, largest = (
        round(size / _MB, 1) for size in (sizes[0], np.median(sizes), sizes[-1], max(sizes))
    )
    return {"first": first, "median": median, "last": last, "max": largest, "grows_kb_a_clip": round(slope, 1)}


def main() -> None:
    """Measures each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--device", default="all", help="As of `latentsync-trt batch`.")
    parser.add_argument("--preset", default="fast", choices=[*PRESETS])
    parser.add_argument("--json", type=Path, help="File for the rows.")
    chosen = parser.parse_args()
    settings = WorkerSettings(chosen.bundle, chosen.provider, RuntimeOptions(device=chosen.device))
    options = replace(SyncOptions(length="video"), preset=chosen.preset)
    found: dict[str, Any] = {"version": __version__, "preset": chosen.preset, "cores": os.cpu_count(), "rows": []}
    for count in chosen.workers:
        with TemporaryDirectory() as name:
            found["rows"].append(soak(settings, count, chosen.clips, options, Path(name)))
        print(json.dumps(found["rows"][-1]), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
