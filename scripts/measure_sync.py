"""Lip-syncs a clip and writes a row of what it took: time per stage and engine, device and host memory at their peak.

    python scripts/measure_sync.py BUNDLE VIDEO AUDIO [--provider cuda] [--low-memory] [--steps 20] [--json FILE]

One process, one run: start it twice to see a cold and a warm engine cache ($LATENTSYNC_TRT_CACHE_DIR).
"""

import argparse
import json
import platform
import resource
import shlex
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import onnxruntime
import pynvml

from latentsync_trt import LipSync, SyncOptions, __version__
from latentsync_trt.bundle import read_manifest
from latentsync_trt.config import RuntimeOptions

POLL_S = 0.01


class DeviceMemory:
    """The most memory that GPU 0 had in use, beyond what was in use at the start; 0 without a GPU."""

    def __init__(self) -> None:
        self.name, self.driver, self.peak_bytes = "none", "none", 0
        self._stopped = threading.Event()
        try:
            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError:
            return
        self.name, self.driver = pynvml.nvmlDeviceGetName(self._gpu), pynvml.nvmlSystemGetDriverVersion()
        self._start_bytes = self._used_bytes()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _used_bytes(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._gpu).used)

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_S):
            self.peak_bytes = max(self.peak_bytes, self._used_bytes() - self._start_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("video", type=Path)
    parser.add_argument("audio", type=Path)
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--low-memory", action="store_true")
    parser.add_argument("--cuda-graph", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cache-interval", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    memory = DeviceMemory()
    start_s = time.perf_counter()
    runtime = RuntimeOptions(low_memory=arguments.low_memory, cuda_graph=arguments.cuda_graph or None)
    options = SyncOptions(steps=arguments.steps, cache_interval=arguments.cache_interval)
    with (
        tempfile.TemporaryDirectory() as folder,
        LipSync.from_bundle(arguments.bundle, arguments.provider, runtime, on_notice=print) as lip_sync,
    ):
        report = lip_sync.sync(arguments.video, arguments.audio, Path(folder) / "out.mp4", options)
        total_s = time.perf_counter() - start_s
    memory.stop()
    manifest = read_manifest(arguments.bundle)
    row = {
        "command": shlex.join(["python", *sys.argv]),
        "latentsync_trt": __version__,
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "gpu": memory.name,
        "driver": memory.driver,
        "resolution_px": manifest.resolution_px,
        "precision": manifest.precision,
        "shapes": manifest.shapes,
        "provider": report.provider,
        "low_memory": arguments.low_memory,
        "frames": report.frames,
        "start_to_end_s": round(total_s, 2),
        "frames_per_s": round(report.frames / report.wall_s, 2),
        "peak_device_gb": round(memory.peak_bytes / 1e9, 2),
        "peak_host_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        "stages": {stage.stage: round(stage.busy_s, 2) for stage in report.stages},
        "engines": [
            {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(engine).items()}
            for engine in report.engines
        ],
        "notices": report.notices,
    }
    print(json.dumps(row, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
    main()
