"""Painting throughput of one clip on one GPU and on several: JSON rows.

python scripts/several_gpus.py --bundle B --clip V --audio A [--devices "0;0,1"] [--presets fast,balanced] [--json F]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pynvml

from latentsync_trt import LipSync, RuntimeOptions, SyncOptions, SyncReport
from latentsync_trt.sync.paint import Painter
from latentsync_trt.sync.threads import tune_process

RATES = "windows_per_s", "steady_windows_per_s", "frames_per_s"
STEADY = 0.15, 0.85
"""The part of the painting time that `steady_windows_per_s` is measured in."""


def main() -> None:
    """Each setting of `--device` runs in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bundle", "clip", "audio"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--devices", default="0;0,1", help="settings of --device, with ; between")
    parser.add_argument("--presets", default="fast,balanced")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        for row in measured(arguments):
            print("ROW " + json.dumps(row), flush=True)
        return
    rows = []
    for devices in arguments.devices.split(";"):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", devices]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    result = {"command": " ".join(sys.argv), **machine(), "rows": rows, "ratios": ratios(rows)}
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row's rates over those of the first row with its preset."""
    first: dict[str, dict[str, Any]] = {}
    return [
        {"preset": row["preset"], "devices": row["devices"]}
        | {name: round(row[name] / first.setdefault(row["preset"], row)[name], 3) for name in RATES}
        for row in rows
    ]


def machine() -> dict[str, Any]:
    """Versions and hardware."""
    import onnxruntime

    pynvml.nvmlInit()
    gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return {
        "measured_at": str(date.today()),  # noqa: DTZ011 -- the day of the person who measures
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "gpus": [str(pynvml.nvmlDeviceGetName(gpu)) for gpu in gpus],
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "cpu_threads": os.cpu_count(),
    }


class Watch(threading.Thread):
    """Samples GPU memory and use, and the memory of this process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        pynvml.nvmlInit()
        self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self.process, self.ended = psutil.Process(), threading.Event()
        self.rss, self.memory = 0, [0] * len(self.gpus)
        self.use: list[list[tuple[float, int]]] = [[] for _ in self.gpus]

    def run(self) -> None:
        """Until `stop`."""
        while not self.ended.wait(0.2):
            self.rss = max(self.rss, self.process.memory_info().rss)
            for index, gpu in enumerate(self.gpus):
                self.memory[index] = max(self.memory[index], pynvml.nvmlDeviceGetMemoryInfo(gpu).used)
                self.use[index].append((time.perf_counter(), pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu))

    def stop(self) -> None:
        """Ends the thread."""
        self.ended.set()
        self.join()


def cpu_seconds() -> float:
    """Of this process and its children."""
    own = psutil.Process()
    times = [process.cpu_times() for process in [own, *own.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def measured(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each preset, with networks opened and warmed up before."""
    tune_process()
    painted: list[tuple[float, float, int]] = []
    usual = Painter._paint

    def timed(self: Painter, device: Any, batch: Any) -> Any:
        start_s = time.perf_counter()
        result = usual(self, device, batch)
        painted.append((start_s, time.perf_counter(), len(batch[0])))
        return result

    Painter._paint = timed  # type: ignore[method-assign]
    with LipSync.from_bundle(arguments.bundle, arguments.provider, RuntimeOptions(device=arguments.one)) as lip_sync:
        for preset in arguments.presets.split(","):
            options = SyncOptions(preset=preset)
            lip_sync.warm_up(options)
            painted.clear()
            watch, before_s = Watch(), cpu_seconds()
            watch.start()
            with tempfile.TemporaryDirectory() as folder:
                report = lip_sync.sync(arguments.clip, arguments.audio, Path(folder) / "out.mp4", options)
            spent_s = cpu_seconds() - before_s
            watch.stop()
            yield {
                "preset": preset,
                "devices": arguments.one,
                **row(report, painted, watch),
                "cpu_core_s": round(spent_s),
            }


def row(report: SyncReport, painted: list[tuple[float, float, int]], watch: Watch) -> dict[str, Any]:
    """What is kept of a run."""
    first, last = min(start for start, _, _ in painted), max(end for _, end, _ in painted)
    low, high = (first + share * (last - first) for share in STEADY)
    steady = sum(max(0.0, min(end, high) - max(start, low)) / (end - start) * count for start, end, count in painted)
    inside = [[use for at, use in samples if low <= at <= high] for samples in watch.use]
    return {
        "frames": report.frames,
        "windows": report.windows,
        "windows_per_s": round(report.windows / (last - first), 4),
        "steady_windows_per_s": round(steady / (high - low), 4),
        "frames_per_s": round(report.frames_per_s, 2),
        "wall_s": round(report.wall_s, 2),
        "devices_used": [
            {"name": device.name, "windows": device.windows, "busy_s": round(device.busy_s, 2), "error": device.error}
            for device in report.devices
        ],
        "gpu_use_percent": [round(sum(samples) / len(samples), 1) if samples else None for samples in inside],
        "stage_ms_per_frame": {
            stage.stage: round(1000 * stage.busy_s / stage.frames, 2) for stage in report.stages if stage.frames
        },
        "peak_rss_gb": round(watch.rss / 1e9, 2),
        "peak_gpu_memory_gb": [round(used / 1e9, 2) for used in watch.memory],
        "notices": list(report.notices),
    }


if __name__ == "__main__":
    main()
