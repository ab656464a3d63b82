"""`latentsync-trt doctor`: what this machine has, what is missing, and the line that installs it."""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import rich_click as click

from latentsync_trt import __version__
from latentsync_trt.cli.findings import Finding, Level

_MARKS: dict[Level, str] = {"ok": "✓", "missing": "–", "problem": "✗", "info": " "}
_STYLES: dict[Level, str] = {"ok": "green", "missing": "yellow", "problem": "red", "info": "white"}
_RUN_PACKAGES = (
    "numpy",
    "opencv-python-headless",
    "librosa",
    "av",
    "click",
    "rich",
    "filelock",
    "platformdirs",
    "nvidia-ml-py",
)
_REINSTALL_LINE = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
_EXPORT_PACKAGES = ("torch", "diffusers", "onnx", "onnxscript", "safetensors")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(as_json: bool) -> None:
    """Say what works here and, for everything missing, the line that installs it."""
    findings = [
        *_system(),
        *_packages(),
        *_runtime(),
        *_codecs(),
        *_folders(),
        *_bundles(),
    ]
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
            _REINSTALL_LINE,
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


def _runtime() -> Iterator[Finding]:
    try:
        from latentsync_trt.cli import doctor_gpu
    except ImportError as error:
        yield Finding("packages", "problem", f"onnxruntime does not load: {error}", _REINSTALL_LINE)
        return
    yield from doctor_gpu.driver()
    yield from doctor_gpu.shared_libraries()
    yield from doctor_gpu.providers()
    yield from doctor_gpu.builder()
    yield from doctor_gpu.engines()


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
    from latentsync_trt.bundle.find import checkpoints_folder

    folder = checkpoints_folder()
    state = "found" if folder.is_dir() else "not there yet"
    yield Finding("folders", "info", f"checkpoints: {folder.resolve()} ({state}; {_free(folder)} free)")


def _free(folder: Path) -> str:
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    return f"{shutil.disk_usage(place).free / 1e9:.1f} GB"


def _bundles() -> Iterator[Finding]:
    from latentsync_trt.bundle.find import demo_folder, exported_bundles
    from latentsync_trt.bundle.manifest import Bundle
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
        forms = sorted({"portable", *(form for entry in manifest.graphs.values() for form in entry.forms)})
        text = (
            f"{folder.name}: {manifest.name}, {manifest.resolution_px} px, {manifest.precision}, {manifest.shapes}, "
            f"{' and '.join(reversed(forms))} form"
        )
        yield Finding("bundles", "ok", f"{text}, {sum(entry.bytes for entry in manifest.files.values()) / 1e6:.0f} MB")
