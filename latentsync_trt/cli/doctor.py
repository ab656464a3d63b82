"""`latentsync-trt doctor`: what works on this machine, what is missing, and the command that installs it.

Packages that may fail to load are imported in functions, so that the failure becomes a finding.
"""

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import rich_click as click

from latentsync_trt.cli.options import json_option
from latentsync_trt.errors import BundleError, OutputError
from latentsync_trt.remembered import forget
from latentsync_trt.runtime.providers.table import CPU, PROVIDERS, REINSTALL_ORT, TENSORRT, TENSORRT_DOWNLOAD
from latentsync_trt.version import __version__, distribution_version

Level = Literal["ok", "missing", "problem", "info"]

_MARKS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "problem": ("✗", "red"), "info": (" ", "white")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `cure`: the command or action that helps; empty if nothing is wrong."""

    level: Level
    text: str
    cure: str = ""


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say what works here and, for everything missing, the line that installs it."""
    forget()  # what earlier runs found is found again
    report: dict[str, list[Finding]] = {}
    for section, find in SECTIONS.items():
        try:
            report[section] = list(find())
        except ImportError as error:
            report[section] = [Finding("problem", f"a package does not load: {error}", REINSTALL_ORT)]
    report = {section: findings for section, findings in report.items() if findings}
    problems = [finding for findings in report.values() for finding in findings if finding.level == "problem"]
    verdict = problems[0] if problems else _verdict()
    if as_json:
        rows = [{"section": name, **asdict(finding)} for name, findings in report.items() for finding in findings]
        click.echo(json.dumps({"verdict": asdict(verdict), "findings": rows}, indent=2))
    else:
        _show(verdict)
        for section, findings in report.items():
            click.secho(section, bold=True)
            for finding in findings:
                _show(finding, "  ")
    if problems:
        raise SystemExit(1)


def _show(finding: Finding, indent: str = "") -> None:
    mark, color = _MARKS[finding.level]
    click.secho(f"{indent}{mark} {finding.text}", fg=color)
    if finding.cure:
        click.echo(f"{indent}    → {finding.cure}")


def _verdict() -> Finding:
    """What `sync` does here without options."""
    from latentsync_trt.bundle.find import default_bundle, exported_bundles
    from latentsync_trt.runtime.providers.select import select_provider

    provider, bundle = select_provider().name, default_bundle()
    if bundle.name is None:
        cure = "latentsync-trt use NAME" if exported_bundles() else "latentsync-trt setup"
        return Finding("missing", f"provider {provider} works, but `sync` finds no model: {bundle.reason}", cure)
    return Finding("ok", f"`sync` runs bundle {bundle.name} ({bundle.reason}) with provider {provider}")


def _system() -> Iterator[Finding]:
    yield Finding("info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("info", f"{platform.platform()}, {os.cpu_count()} CPU threads")
    from latentsync_trt.bench.rows import library_versions
    from latentsync_trt.runtime.providers import gpu

    if versions := library_versions():
        yield Finding("info", ", ".join(f"{name} {version}" for name, version in versions.items()))
    for device in gpu.gpus():
        free_bytes = gpu.free_memory_bytes(device.index)
        free = "" if free_bytes is None else f", {_gb(free_bytes)} free"
        yield Finding("ok", f"{device}, {_gb(device.memory_bytes)} memory{free}")


def _providers() -> Iterator[Finding]:
    from latentsync_trt.runtime.providers import diagnose

    if all(map(distribution_version, ("onnxruntime-gpu", "onnxruntime"))):
        yield Finding("problem", "onnxruntime and onnxruntime-gpu overwrite each other's files", REINSTALL_ORT)
    for provider in PROVIDERS.values():
        obstacle = diagnose.diagnose_provider(provider)
        if obstacle is None:
            yield Finding("ok", f"{provider.name} runs (a trial session used it)")
            continue
        yield Finding("problem" if provider is CPU else "missing", f"{provider.name}: {obstacle.text}", obstacle.cure)
        if provider is TENSORRT and provider.install in obstacle.cure:
            yield Finding("info", TENSORRT_DOWNLOAD)


def _engines() -> Iterator[Finding]:
    from latentsync_trt.runtime.cache import CACHE_VARIABLE, EngineCache, cache_folder, total_bytes
    from latentsync_trt.runtime.networks.verdict import kept

    folder = cache_folder().absolute()
    try:
        items = EngineCache(folder).entries()
    except OutputError as error:
        yield Finding("problem", str(error), f"name another folder in ${CACHE_VARIABLE}")
    else:
        damaged = [item for item in items if item.state != "ready"]
        size = _gb(total_bytes(items))
        yield Finding("info", f"cache: {folder} ({len(items) - len(damaged)} engines, {size})")
        if damaged:
            text = f"{len(damaged)} damaged, {_gb(total_bytes(damaged))}"
            yield Finding("missing", text, "latentsync-trt cache prune --damaged")
    for verdict in kept(folder):
        cure = "`latentsync-trt setup` measures again; naming the provider uses it all the same"
        yield Finding("missing", f"{verdict}", cure) if verdict.problem else Finding("info", f"{verdict}")


def _bundles() -> Iterator[Finding]:
    from latentsync_trt.bundle import find
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.paths import nearest_existing

    folder = find.checkpoints_folder().resolve()
    free = _gb(shutil.disk_usage(nearest_existing(folder)).free)
    yield Finding("info", f"checkpoints: {folder} ({free} free)")
    for bundle in (*find.exported_bundles(), find.demo_folder()):
        try:
            manifest = Bundle.load(bundle).manifest
        except BundleError as error:
            yield Finding("problem", str(error), "export it again")
            continue
        size = f"{sum(entry.bytes for entry in manifest.files.values()) / 1e6:.0f} MB"
        yield Finding("ok", f"{find.name_of(bundle)}: {find.facts(manifest)}, {manifest.shapes}, {size}")


def _kept_work() -> Iterator[Finding]:
    from latentsync_trt.bundle.find import checkpoints_folder
    from latentsync_trt.files import leftovers

    for place in dict.fromkeys(folder.absolute() for folder in (Path(), checkpoints_folder())):
        for work in leftovers(place, kept=True):
            text = f"{work}: an interrupted run keeps finished parts"
            yield Finding("missing", text, "run the same command with --resume, or delete the folder")


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


SECTIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "system": _system,
    "providers": _providers,
    "engines": _engines,
    "bundles": _bundles,
    "interrupted runs": _kept_work,
}
"""Sections of the report: heading → examination."""
