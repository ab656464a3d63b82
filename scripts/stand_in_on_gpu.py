"""On a machine with a GPU and CUDA, but without TensorRT: only TensorRT is replaced.

    python scripts/stand_in_on_gpu.py --bundle BUNDLE --out rows.json

Streams, device buffers, bindings and recorded graphs are CUDA's own; engines run on the CPU between
copies. Results are compared with the CPU provider's. Seconds are those of the stand-in and are not
TensorRT's.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.tensorrt_stand_in.build import build, include_folder  # noqa: E402
from tests.tensorrt_stand_in.run import REAL_CUDA, environment  # noqa: E402

SETTINGS: list[dict[str, Any]] = [
    {"repeat": 2},
    {"cached": False, "faces": False},
    {"guidance": 1.0, "faces": False},
    {"unguided_too": True, "faces": False},
    {"cuda_graph": False, "faces": False},
    {"low_memory": True},
]


def main() -> None:
    """Runs it and writes what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ[REAL_CUDA] = "1"
    with tempfile.TemporaryDirectory() as folder:
        libraries = Path(folder) / "libraries"
        build(libraries, include_folder(), real_cuda=True)
        settings = {
            "STAND_IN_LOG": f"{folder}/log",
            "LATENTSYNC_TRT_CACHE_DIR": f"{folder}/engines",
        }
        variables = environment(libraries, settings)
        scenario = {"bundle": str(arguments.bundle.resolve()), "settings": SETTINGS}
        command = ["-m", "tests.tensorrt_stand_in.scenarios", "pictures", json.dumps(scenario)]
        done = subprocess.run(
            [sys.executable, *command], env=variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        rows = {
            "command": " ".join(
                ["python scripts/stand_in_on_gpu.py", "--bundle", arguments.bundle.name]
            ),
            "python": platform.python_version(),
            "settings": SETTINGS,
            "answers": json.loads(done.stdout.splitlines()[-1]),
            "log": _counts(Path(folder) / "log"),
        }
    arguments.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def _counts(log: Path) -> dict[str, int]:
    """How often each thing was done."""
    words = [line.split()[1] for line in log.read_text(encoding="utf-8").splitlines()]
    return {word: words.count(word) for word in sorted(set(words))}


if __name__ == "__main__":
    main()
