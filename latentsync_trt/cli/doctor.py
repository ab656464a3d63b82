"""`latentsync-trt doctor`: what this machine has, what is missing, and the line that installs it."""

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import rich_click as click

from latentsync_trt import __version__
from latentsync_trt.bundle.find import checkpoints_folder, demo_folder, exported_bundles
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError, EngineBuildError, OutOfMemory, OutputError

Level = Literal["ok", "missing", "problem", "info"]

_MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "missing": ("–", "yellow"),
    "problem": ("✗", "red"),
    "info": (" ", "white"),
}
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
    sections = (_system, _packages, _runtime, _codecs, _bundles)
    findings = [finding for section in sections for finding in section()]
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
        mark, color = _MARKS[finding.level]
        click.secho(f"  {mark} {finding.text}", fg=color)
        if finding.cure:
            click.echo(f"      → {finding.cure}")


def _system() -> Iterator[Finding]:
    yield Finding("system", "info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("system", "info", f"{platform.platform()}, {os.cpu_count()} CPU threads")


def _packages() -> Iterator[Finding]:
    builds = [name for name in ("onnxruntime-gpu", "onnxruntime") if _version(name)]
    for name in (*(builds or ["onnxruntime-gpu"]), *_PACKAGES):
        yield _found("packages", f"{name} {_version(name)}", _version(name), "problem", name, "pip install latentsync-trt")
