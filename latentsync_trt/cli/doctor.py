"""`latentsync-trt doctor`: what this machine has, what is missing, and the line that installs it."""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import rich_click as click

from latentsync_trt import __version__

Level = Literal["ok", "missing", "problem", "info"]

_MARKS: dict[Level, str] = {"ok": "✓", "missing": "–", "problem": "✗", "info": " "}
_COLORS: dict[Level, str] = {"ok": "green", "missing": "yellow", "problem": "red", "info": "white"}
_PACKAGES = (
    *("numpy", "opencv-python-headless", "librosa", "av", "click", "rich", "rich-click", "filelock", "platformdirs"),
    *("psutil", "nvidia-ml-py", "jinja2", "matplotlib"),
)
_EXPORT_PACKAGES = ("torch", "diffusers", "onnx", "onnxscript", "safetensors")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `cure` is what to run or to do; empty where nothing is wrong."""

    section: str
    level: Level
    text: str
    cure: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(as_json: bool) -> None:
    """Say what works here and, for everything missing, the line that installs it."""
    findings = [*_system(), *_packages(), *_runtime(), *_codecs(), *_bundles()]
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
            click.secho(section, bold=True)
        click.secho(f"  {_MARKS[finding.level]} {finding.text}", fg=_COLORS[finding.level])
        if finding.cure:
            click.echo(f"      → {finding.cure}")


def _system() -> Iterator[Finding]:
    yield Finding("system", "info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("system", "info", f"{platform.platform()}, {os.cpu_count()} CPU threads")


def _packages() -> Iterator[Finding]:
    runtime = next((name for name in ("onnxruntime-gpu", "onnxruntime") if _version(name)), "onnxruntime-gpu")
    for name in (runtime, *_PACKAGES):
        version = _version(name)
        if version:
            yield Finding("packages", "ok", f"{name} {version}")
        else:
            yield Finding("packages", "problem", f"{name} is not installed", "pip install latentsync-trt")
    if _version("onnxruntime-gpu") and _version("onnxruntime"):
        yield _reinstall("onnxruntime and onnxruntime-gpu overwrite each other's files")
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


def _reinstall(problem: str) -> Finding:
    from latentsync_trt.runtime.providers.messages import REINSTALL_ORT

    return Finding("packages", "problem", problem, REINSTALL_ORT)


def _runtime() -> Iterator[Finding]:
    try:
        from latentsync_trt.cli import doctor_gpu
    except ImportError as error:
        yield _reinstall(f"onnxruntime does not load: {error}")
    else:
        yield from doctor_gpu.findings()


def _codecs() -> Iterator[Finding]:
    from latentsync_trt.media.codecs import library_versions, missing_codecs

    versions = library_versions()
    yield Finding("media", "ok", f"PyAV {versions['PyAV']}, libavcodec {versions['libavcodec']}")
    missing = missing_codecs()
    if missing:
        cure = "pip install --force-reinstall --only-binary=:all: av"
        yield Finding("media", "problem", f"FFmpeg lacks {', '.join(missing)}", cure)
    else:
        yield Finding("media", "ok", "FFmpeg has all required codecs")


def _bundles() -> Iterator[Finding]:
    from latentsync_trt.bundle.find import checkpoints_folder, demo_folder, exported_bundles

    folder = checkpoints_folder().resolve()
    state = "found" if folder.is_dir() else "does not exist yet"
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free_gb = shutil.disk_usage(existing).free / 1e9
    yield Finding("bundles", "info", f"checkpoints: {folder} ({state}; {free_gb:.1f} GB free)")
    exported = exported_bundles()
    if not exported:
        yield Finding("bundles", "missing", "no exported bundle", "latentsync-trt export --model 1.6")
    yield from map(_bundle, (*exported, demo_folder()))


def _bundle(folder: Path) -> Finding:
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.errors import BundleError

    try:
        manifest = Bundle.load(folder).manifest
    except BundleError as error:
        return Finding("bundles", "problem", str(error), "export it again")
    forms = sorted({"portable", *(form for entry in manifest.graphs.values() for form in entry.forms)}, reverse=True)
    size_mb = sum(entry.bytes for entry in manifest.files.values()) / 1e6
    text = (
        f"{folder.name}: {manifest.name}, {manifest.resolution_px} px, {manifest.precision}, {manifest.shapes}, "
        f"{' and '.join(forms)} form, {size_mb:.0f} MB"
    )
    return Finding("bundles", "ok", text)
