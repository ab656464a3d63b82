"""`latentsync-trt setup` on a machine with a GPU and CUDA, where only TensorRT is replaced.

From random weights to the remembered choice; also where TensorRT refuses a graph, and where an engine computes wrong
values.

    python scripts/stand_in_setup_on_gpu.py --out rows.json

Engines run on the CPU, so that `auto` finds TensorRT slower than CUDA where nothing else is wrong.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from latentsync_trt.bench.rows import environment as machine  # noqa: E402
from latentsync_trt.export.export_options import ExportOptions  # noqa: E402
from latentsync_trt.export.exporter import export_bundle  # noqa: E402
from latentsync_trt.media.demo_clip import choose_clip  # noqa: E402
from latentsync_trt.remembered import FOLDER  # noqa: E402
from latentsync_trt.runtime.providers.select import select_provider  # noqa: E402
from tests.narrow import FRAMES, UNET, write_sources  # noqa: E402
from tests.tensorrt_stand_in.build import build, include_folder  # noqa: E402
from tests.tensorrt_stand_in.run import REAL_CUDA, environment  # noqa: E402

WIDE_ENOUGH = replace(UNET, widths=(64, 128))
"""For kernels of the CUDA form."""

CASES: list[dict[str, str]] = [
    {"provider": "auto", "faults": ""},
    {"provider": "auto", "faults": "build_fails_for=denoise_step_cached"},
    {"provider": "auto", "faults": "wrong=denoise_step"},
    {"provider": "tensorrt", "faults": ""},
    {"provider": "tensorrt", "faults": "wrong=denoise_step"},
]


def main() -> None:
    """Runs every case and writes what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ[REAL_CUDA] = "1"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "libraries", include_folder(), real_cuda=True)
        bundle = _exported(folder / "checkpoints")
        clip = choose_clip(None, None, folder)
        rows = []
        for number, case in enumerate(CASES):
            rows.append(_row(case, folder, folder / f"case {number}", clip.video, clip.audio))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
        report = {
            "what": "setup with ONNX Runtime's TensorRT provider on CUDA's own runtime; only TensorRT is stood in for",
            "command": "python scripts/stand_in_setup_on_gpu.py --out FILE",
            **machine((), [select_provider("cuda")]),
            "python": platform.python_version(),
            "bundle": bundle,
            "cases": rows,
        }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _exported(checkpoints: Path) -> str:
    """A bundle of random weights under the name that `setup` looks for; returns that."""
    sources = write_sources(checkpoints / "random", WIDE_ENOUGH)
    made = ExportOptions(
        model="1.5",
        precision="fp16",
        frames=FRAMES,
        unet=sources.unet,
        vae=sources.vae,
        whisper=sources.whisper,
        out=checkpoints / "1.5-256-fp16",
    )
    return export_bundle(made).name


def _row(case: dict[str, str], folder: Path, work: Path, video: Path, audio: Path) -> dict[str, Any]:
    """One `setup` with empty caches, then `sync` and `doctor` after it."""
    work.mkdir()
    checkpoints = work / "checkpoints"
    shutil.copytree(folder / "checkpoints", checkpoints)
    settings = {
        "STAND_IN_FAULTS": case["faults"],
        "STAND_IN_LOG": str(work / "log"),
        "LATENTSYNC_TRT_CACHE_DIR": str(work / "cache"),
        "LATENTSYNC_TRT_CHECKPOINTS": str(checkpoints),
    }
    variables = environment(folder / "libraries", settings)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "latentsync_trt", *words]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=work)

    setup = run("setup", "--model", "1.5", "--provider", case["provider"], "--yes")
    built = (work / "log").read_text(encoding="utf-8").count(" build ")
    lips = ("--video", str(video), "--audio", str(audio), "--end", "0.64", "--steps", "2")
    synced = run("sync", *lips, "--output", str(work / "out.mp4"), "--json")
    doctor = run("doctor", "--json")
    findings = json.loads(doctor.stdout)["findings"]
    return {
        **case,
        "exit_code": setup.returncode,
        "said": [line for line in setup.stderr.splitlines() if "tensorrt" in line or "values" in line],
        "self_test": [line for line in setup.stdout.splitlines() if line.startswith(("PASS", "FAIL", "first", "ref"))],
        "last_line": setup.stdout.splitlines()[-1:],
        "engines_built": built,
        "remembered": [path.name for path in (work / "cache" / FOLDER).glob("*")],
        "doctor": [finding["text"] for finding in findings if "1.5-256-fp16" in finding["text"]],
        "sync_exit_code": synced.returncode,
        "sync_provider": json.loads(synced.stdout)["provider"] if synced.returncode == 0 else synced.stderr[-500:],
        "sync_notices": [line for line in synced.stderr.splitlines() if "tensorrt" in line],
    }


if __name__ == "__main__":
    main()
