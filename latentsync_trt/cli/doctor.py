"""`latentsync-trt doctor`: what this machine has, what is missing, and the line that installs it."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from latentsync_trt import __version__

Level = Literal["ok", "missing", "problem", "info"]
_MARKS: dict[Level, str] = {"ok": "✓", "missing": "–", "problem": "✗", "info": " "}
_STYLES: dict[Level, str] = {"ok": "green", "missing": "yellow", "problem": "red", "info": "white"}
_RUN_PACKAGES = ("numpy", "opencv-python-headless", "librosa", "av", "click", "rich")
_EXPORT_PACKAGES = ("torch", "diffusers", "onnx", "onnxscript", "safetensors")
_NVIDIA_SMI_FIELDS = "name,driver_version,memory.total,compute_cap"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination. `cure` is what to run; empty where nothing is wrong."""

    section: str
    level: Level
    text: str
    cure: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(as_json: bool) -> None:
    """Say what works here and, for everything missing, the line that installs it."""
    findings = [*_system(), *_packages(), *_providers(), *_codecs(), *_folders(), *_bundles()]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _show(findings)
    if any(finding.level == "problem" for finding in findings):
        raise SystemExit(1)


def _show(findings: list[Finding]) -> None:
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            click.echo(click.style(section, bold=True))
        click.echo("  " + click.style(f"{_MARKS[finding.level]} {finding.text}", fg=_STYLES[finding.level]))
        if finding.cure:
            click.echo(f"      → {finding.cure}")


def _system() -> Iterator[Finding]:
    yield Finding("system", "info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("system", "info", f"{platform.platform()}, {os.cpu_count()} CPU threads")
    smi = shutil.which("nvidia-smi")
    if smi is None:
        yield Finding("system", "missing", "no NVIDIA driver (nvidia-smi not found): graphs run on the CPU")
        return
    query = [smi, f"--query-gpu={_NVIDIA_SMI_FIELDS}", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last_words = (answer.stdout + answer.stderr).strip().splitlines() or ["no answer"]
        yield Finding("system", "problem", f"nvidia-smi: {last_words[-1]}", "reinstall the NVIDIA driver")
        return
    for index, line in enumerate(answer.stdout.strip().splitlines()):
        name, driver, memory, capability = (part.strip() for part in line.split(","))
        yield Finding("system", "ok", f"GPU {index}: {name}, {memory}, compute {capability}, driver {driver}")


def _packages() -> Iterator[Finding]:
    runtime = next((name for name in ("onnxruntime-gpu", "onnxruntime") if _version(name)), "onnxruntime-gpu")
    for name in (runtime, *_RUN_PACKAGES):
        version = _version(name)
        if version:
            yield Finding("packages", "ok", f"{name} {version}")
        else:
            yield Finding("packages", "problem", f"{name} is not installed", "pip install latentsync-trt")
    if _version("onnxruntime-gpu") and _version("onnxruntime"):
        yield Finding(
            "packages",
            "problem",
            "onnxruntime and onnxruntime-gpu overwrite each other's files",
            "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu",
        )
    absent = [name for name in _EXPORT_PACKAGES if not _version(name)]
    if absent:
        cure = 'pip install "latentsync-trt[export]"'
        yield Finding("packages", "missing", f"export: {', '.join(absent)} not installed", cure)
    else:
        yield Finding("packages", "ok", f"export: torch {_version('torch')}, onnx {_version('onnx')}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _providers() -> Iterator[Finding]:
    from latentsync_trt.runtime.providers import PREFERENCE, why_unavailable

    for name in PREFERENCE:
        reason = why_unavailable(name)
        if reason is None:
            yield Finding("providers", "ok", f"{name} runs (a session was made with it)")
        else:
            text, _, cure = reason.rpartition("; ")
            yield Finding("providers", "problem" if name == "cpu" else "missing", f"{name}: {text or cure}", cure)


def _codecs() -> Iterator[Finding]:
    from latentsync_trt.media.support import library_versions, missing_codecs

    versions = library_versions()
    yield Finding("media", "ok", f"PyAV {versions['PyAV']}, libavcodec {versions['libavcodec']}")
    missing = missing_codecs()
    if missing:
        cure = "pip install --force-reinstall --only-binary=:all: av"
        yield Finding("media", "problem", f"FFmpeg lacks {', '.join(missing)}", cure)
    else:
        yield Finding("media", "ok", "every codec that is needed is there")


def _folders() -> Iterator[Finding]:
    from latentsync_trt.bundle import checkpoints_folder

    folder = checkpoints_folder()
    state = "found" if folder.is_dir() else "not there yet"
    yield Finding("folders", "info", f"checkpoints: {folder.resolve()} ({state}; {_free(folder)} free)")


def _free(folder: Path) -> str:
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    return f"{shutil.disk_usage(place).free / 1e9:.1f} GB"


def _bundles() -> Iterator[Finding]:
    from latentsync_trt.bundle import Bundle, demo_folder, exported_bundles
    from latentsync_trt.errors import BundleError

    folders = [*exported_bundles(), demo_folder()]
    if len(folders) == 1:
        yield Finding("bundles", "missing", "no exported bundle", "latentsync-trt export --model 1.6")
    for folder in folders:
        try:
            manifest = Bundle.load(folder).manifest
        except BundleError as error:
            yield Finding("bundles", "problem", str(error), "export it again")
            continue
        text = f"{folder.name}: {manifest.name}, {manifest.resolution_px} px, {manifest.precision}, {manifest.shapes}"
        yield Finding("bundles", "ok", f"{text}, {sum(entry.bytes for entry in manifest.files.values()) / 1e6:.0f} MB")
