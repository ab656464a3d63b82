"""The rows of a bench, with the machine and the bundle, and their JSON file."""

import hashlib
import json
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from latentsync_trt.bundle.manifest import Manifest
from latentsync_trt.measure.page import write_file
from latentsync_trt.measures import SyncNetMeasure
from latentsync_trt.runtime.providers import devices, libraries
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measurement."""

    scenario: str
    case: str
    """The graph or clip."""
    provider: str | None
    preset: str | None
    time: Mapping[str, float]
    """How long a run takes, see `Setting.row`."""
    frames: int = 0
    """Video frames of one run, if it has any."""
    memory: Mapping[str, int | None] = field(default_factory=dict)
    """See `Setting.memory`."""
    syncnet: SyncNetMeasure | None = None
    """How the lips of the finished clip follow the speech."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a run by stage; the stages of a clip overlap."""
    engines_ms: Mapping[str, float] = field(default_factory=dict)
    """Mean time of a run of each graph."""
    start_up_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of building and opening before the first run."""
    notes: tuple[str, ...] = ()


def write_rows(
    path: Path, facts: Mapping[str, str], bundle: Mapping[str, Any], rows: Iterable[BenchRow]
) -> None:
    """Writes the rows, below the `environment` and facts of the bundle. Raises `OutputError`."""
    content = {"environment": facts, "bundle": bundle, "rows": [asdict(row) for row in rows]}
    write_file(path, to_json("bench", 4, content) + "\n")


def to_json(command: str, version: int, content: Mapping[str, Any]) -> str:
    """Returns what a `command` found, as JSON of this `version` of its format; null for NaN and
    infinity.
    """
    named = {"kind": f"latentsync-trt {command}", "format": version, **content}
    return json.dumps(
        json.loads(json.dumps(named), parse_constant=lambda _: None), indent=1, ensure_ascii=False
    )


def environment(command: Iterable[str], providers: Iterable[str], device: int) -> dict[str, str]:
    """Returns names and versions as text, without what identifies the user and what is not
    known.
    """
    gpu = next((gpu for gpu in devices.gpus() if gpu.index == device), None)
    named = {
        "command": without_paths(shlex.join(command)),
        "providers": ", ".join(dict.fromkeys(providers)),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "latentsync_trt": __version__,
        "python": platform.python_version(),
        "onnxruntime": libraries.onnxruntime_version(),
        **library_versions(),
        "gpu": gpu and gpu.name,
        "compute_capability": gpu and gpu.compute_capability,
        "gpu_memory_gb": gpu and f"{gpu.memory_bytes / 1e9:.0f}",
        "cpu": _cpu_name(),
        "cpu_cores": str(usable_cores()),
        "memory_gb": f"{psutil.virtual_memory().total / 1e9:.0f}",
        "system": platform.platform(),
    }
    return {name: value for name, value in named.items() if value}


def library_versions() -> dict[str, str]:
    """Returns the versions of what computes on a GPU, as far as they are known."""
    versions = {
        "tensorrt": libraries.tensorrt_version(),
        "cuda": libraries.cuda_version(),
        "cudnn": libraries.cudnn_version(),
        "driver": devices.driver_version(),
    }
    return {name: text for name, text in versions.items() if text and text != libraries.UNKNOWN}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        name = re.search(r"(?m)^model name\s*:\s*(.+?)\s*$", info.read_text("utf-8"))
        if name is not None:
            return name[1]
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    if hasattr(psutil.Process, "cpu_affinity"):
        return len(psutil.Process().cpu_affinity())
    return os.cpu_count() or 1


def bundle_facts(manifest: Manifest, resolution_px: int | None = None) -> dict[str, Any]:
    """Returns what a bundle is that runs at `resolution_px`, or at its own; `sha256` is over all
    graphs and weights.
    """
    networks = sorted(name for name in manifest.files if name.endswith((".onnx", ".weights")))
    hashes = " ".join(manifest.files[name].sha256 for name in networks)
    digest = hashlib.sha256(hashes.encode())
    return {
        "name": without_paths(manifest.name),
        "resolution_px": resolution_px or manifest.resolution_px,
        "frames": manifest.frames,
        "precision": manifest.precision,
        "shapes": manifest.shapes,
        "sha256": digest.hexdigest(),
        "size_bytes": sum(entry.bytes for entry in manifest.files.values()),
    }
