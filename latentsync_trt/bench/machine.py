"""The machine and the versions of a measurement, without anything that identifies the user."""

import hashlib
import os
import platform
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from latentsync_trt import __version__
from latentsync_trt.bench.rows import BundleFacts
from latentsync_trt.bundle.manifest import Manifest
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.providers.gpu import Gpu, driver_version
from latentsync_trt.runtime.providers.libraries import (
    UNKNOWN,
    cuda_version,
    cudnn_version,
    onnxruntime_version,
    tensorrt_version,
)
from latentsync_trt.runtime.providers.select import Selection

_CPU_INFO = Path("/proc/cpuinfo")


def environment(command: Iterable[str], selections: Sequence[Selection]) -> dict[str, str]:
    """Names and versions as text; unknown ones are left out."""
    gpu = next((selection.gpu for selection in selections if selection.gpu), None)
    named = {
        "command": without_paths(shlex.join(command)),
        "providers": ", ".join(selection.name for selection in selections),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "latentsync_trt": __version__,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime_version(),
        **({**library_versions(), **gpu_facts(gpu)} if gpu else {}),
        "cpu": cpu_name(),
        "cpu_cores": str(usable_cores()),
        "memory_gb": f"{psutil.virtual_memory().total / 1e9:.0f}",
        "system": f"{platform.system()} {platform.machine()}",
    }
    return {name: value for name, value in named.items() if value and value != UNKNOWN}


def bundle_facts(manifest: Manifest) -> BundleFacts:
    """The bundle as rows describe it."""
    networks = sorted(name for name in manifest.files if name.endswith((".onnx", ".weights")))
    digest = hashlib.sha256(" ".join(manifest.files[name].sha256 for name in networks).encode())
    name, shapes = without_paths(manifest.name), manifest.shapes
    return BundleFacts(name, manifest.resolution_px, manifest.frames, manifest.precision, shapes, digest.hexdigest())


def library_versions() -> dict[str, str | None]:
    """Versions of what GPU providers need besides ONNX Runtime, `UNKNOWN` or None for what is missing."""
    return {
        "tensorrt": tensorrt_version(),
        "cuda": cuda_version(),
        "cudnn": cudnn_version(),
        "driver": driver_version(),
    }


def gpu_facts(gpu: Gpu) -> dict[str, str]:
    """Name, generation and memory."""
    return {
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "gpu_memory_gb": f"{gpu.memory_bytes / 1e9:.0f}",
    }


def cpu_name() -> str:
    """The processor's name."""
    if _CPU_INFO.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1
