"""Runs many short clips through local workers; prints, as JSON, their throughput and how the memory of each grows.

    python -m scripts.soak [--clips 200] [--workers 1 2] [--bundle demo] [--provider auto] [--preset fast]

Each clip is 1 s of the built-in one, from another moment of the camera's path. Each number of workers runs all clips.
`grows_kb_a_clip`: slope of the memory over the second half of a worker's clips.
"""

import argparse
import json
import os
import time
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from latentsync_trt import __version__
from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.local import LocalWorker
from latentsync_trt.batch.tasks import Event, Failed, Finished, Started, Task, WorkerSettings
from latentsync_trt.batch.workers import make_workers
from latentsync_trt.config import MODEL_FPS, PRESETS, RuntimeOptions, SyncOptions
from latentsync_trt.media.demo_clip import SPEECH, camera_frames_at
from latentsync_trt.media.writer import write_pictures

_SOURCES = 8


def soak(settings: WorkerSettings, count: int, clips: int, options: SyncOptions, folder: Path) -> dict[str, Any]:
    """Runs `clips` clips on `count` workers; returns a row."""
    sources = [folder / f"source-{index}.mp4" for index in range(_SOURCES)]
    for index, path in enumerate(sources):
        write_pictures(path, camera_frames_at(index + Fraction(frame, MODEL_FPS) for frame in range(MODEL_FPS)))
    workers = {worker.name: worker for worker in make_workers(settings, count) if isinstance(worker, LocalWorker)}
    sizes_bytes: dict[str, list[int]] = {name: [] for name in workers}
    times_s, failures = [time.monotonic()], list[str]()

    def take(event: Event) -> None:
        if isinstance(event, Finished):
            sizes_bytes[event.worker].append(psutil.Process(workers[event.worker].pid).memory_info().rss)
        elif isinstance(event, Failed):
            failures.append(event.message)
        if isinstance(event, Started | Finished):
            times_s.append(time.monotonic())

    dispatcher = Dispatcher([*workers.values()], take)
    for index in range(clips):
        video, output = sources[index % _SOURCES], folder / f"out-{index}.mp4"
        dispatcher.submit(Task(str(index), str(video), str(SPEECH), str(output), options))
    dispatcher.wait()
    dispatcher.close()
    done = sum(map(len, sizes_bytes.values()))
    return {
        "workers": count,
        "clips": done,
        "failures": failures,
        "startup_s": round(times_s[1] - times_s[0], 2),
        "clips_per_s": round(done / (times_s[-1] - times_s[1]), 3),
        "rss": {name: summary(sizes) for name, sizes in sizes_bytes.items() if sizes},
        "left_behind": sorted(path.name for path in folder.iterdir() if path.name.startswith(".")),
    }


def summary(sizes_bytes: list[int]) -> dict[str, float]:
    """First, last and largest size, and the growth late in the run."""
    late = sizes_bytes[len(sizes_bytes) // 2 :]
    slope = float(np.polyfit(range(len(late)), late, 1)[0]) if len(late) > 1 else 0.0
    sizes = {"first_mb": sizes_bytes[0], "last_mb": sizes_bytes[-1], "largest_mb": max(sizes_bytes)}
    return {**{name: round(size / 1e6, 1) for name, size in sizes.items()}, "grows_kb_a_clip": round(slope / 1e3, 1)}


def main() -> None:
    """Measures each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bundle", default="demo")
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--device", default="all", help="As of `latentsync-trt batch`.")
    parser.add_argument("--preset", default="fast", choices=[*PRESETS])
    chosen = parser.parse_args()
    settings = WorkerSettings(chosen.bundle, chosen.provider, RuntimeOptions(device=chosen.device))
    options = SyncOptions(preset=chosen.preset, length="video")
    print(json.dumps({"version": __version__, "preset": chosen.preset, "cores": os.cpu_count()}))
    for count in chosen.workers:
        with TemporaryDirectory() as name:
            print(json.dumps(soak(settings, count, chosen.clips, options, Path(name))), flush=True)


if __name__ == "__main__":
    main()
