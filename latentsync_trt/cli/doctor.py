"""`latentsync-trt doctor`: what works here.

What may fail to load is imported in functions, because the failure is a finding.
"""

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import rich_click as click
from rich.filesize import decimal

from latentsync_trt.bundle import find
from latentsync_trt.bundle.machine import setup_command
from latentsync_trt.bundle.manifest import Bundle, manifest_sha256
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import print_json
from latentsync_trt.errors import BundleError, OutputError
from latentsync_trt.files import KEPT_NAME, PREFIX
from latentsync_trt.paths import CACHE_VARIABLE, nearest_existing, path_exists
from latentsync_trt.runtime.providers.table import (
    CPU,
    CUDA,
    GET_DRIVER,
    PROVIDERS,
    REINSTALL_ORT,
    TENSORRT,
    TENSORRT_DOWNLOAD,
)
from latentsync_trt.version import __version__, distribution_version

_LEVEL_MARKS = {
    "ok": ("✓", "green"),
    "missing": ("–", "yellow"),
    "problem": ("✗", "red"),
    "info": (" ", "white"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Literal["ok", "missing", "problem", "info"]
    text: str
    cure: str = ""
    """The command or action that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    as_json: bool = flags.json_option()


@click.command("doctor")
@flags.takes(DoctorRequest)
def doctor(request: DoctorRequest) -> None:
    report = {section: _examine(section) for section in SECTIONS}
    problems = []
    rows = []
    for section, findings in report.items():
        problems += [finding for finding in findings if finding.level == "problem"]
        rows += [{"section": section, **asdict(finding)} for finding in findings]
    verdict = problems[0] if problems else _verdict()
    if request.as_json:
        print_json({"verdict": verdict, "findings": rows}, indent=2)
    else:
        _print_finding(verdict)
        for section, findings in report.items():
            if findings:
                echo(section, bold=True)
            for finding in findings:
                _print_finding(finding, "  ")
    if problems:
        raise SystemExit(1)


def _examine(section: str) -> list[Finding]:
    """Returns the findings of a section; one about itself where it cannot be examined."""
    try:
        return [*SECTIONS[section]()]
    except ImportError as error:
        return [Finding("problem", f"a package does not load: {error}", REINSTALL_ORT)]
    except OutputError as error:
        return [Finding("problem", str(error), f"name another folder in ${CACHE_VARIABLE}")]


def _print_finding(finding: Finding, indent: str = "") -> None:
    mark, color = _LEVEL_MARKS[finding.level]
    echo(f"{indent}{mark} {finding.text}", fg=color)
    if finding.cure:
        echo(f"{indent}    → {finding.cure}")


def _verdict() -> Finding:
    from latentsync_trt.runtime.providers.choice import select_provider

    bundle, why = find.default_bundle()
    sha256 = None
    if bundle is not None:
        folder, _ = find.find_bundle(bundle)
        sha256 = manifest_sha256(folder)
    provider = select_provider(bundle_sha256=sha256).name
    if bundle is None:
        if find.exported_bundles():
            cure = "latentsync-trt setup --use NAME"
        else:
            cure = setup_command()
        return Finding(
            "missing", f"provider {provider} works, but `sync` finds no model: {why}", cure
        )
    return Finding("ok", f"`sync` runs bundle {bundle} ({why}) with provider {provider}")


def _examine_system() -> Iterator[Finding]:
    yield Finding("info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("info", f"{platform.platform()}, {os.cpu_count()} CPU threads")
    from latentsync_trt.bench.rows import library_versions
    from latentsync_trt.runtime.providers.devices import free_memory_bytes, gpus

    devices = gpus()
    if devices and (versions := library_versions()):
        text = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("info", text)
    for device in devices:
        free_bytes = free_memory_bytes(device.index)
        free = "" if free_bytes is None else f", {decimal(free_bytes)} free"
        yield Finding("ok", f"{device}, {decimal(device.memory_bytes)} memory{free}")


def _examine_providers() -> Iterator[Finding]:
    from latentsync_trt.runtime.providers.diagnosis import diagnose_provider, shows_no_gpu

    if all(map(distribution_version, ("onnxruntime-gpu", "onnxruntime"))):
        yield Finding(
            "problem", "onnxruntime and onnxruntime-gpu overwrite each other's files", REINSTALL_ORT
        )
    providers = list(PROVIDERS.values())
    if shows_no_gpu():
        providers = [CPU]
        text = f"{TENSORRT.name} and {CUDA.name} need an NVIDIA GPU, and none is found here"
        yield Finding("info", text, f"if there is one: {GET_DRIVER}")
    for provider in providers:
        obstacle = diagnose_provider(provider)
        if obstacle is None:
            yield Finding("ok", f"{provider.name} runs (a trial session used it)")
            continue
        yield Finding(
            "problem" if provider is CPU else "missing",
            f"{provider.name}: {obstacle.text}",
            obstacle.cure,
        )
        if provider is TENSORRT and provider.install in obstacle.cure:
            yield Finding("info", TENSORRT_DOWNLOAD)


def _examine_engines() -> Iterator[Finding]:
    from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
    from latentsync_trt.runtime.providers.devices import gpus

    if not gpus():  # on the CPU nothing is built
        return
    folder = cache_folder().absolute()
    items = EngineCache(folder).entries()
    yield Finding(
        "info",
        f"cache: {folder} ({len(items)} engines, "
        f"{decimal(sum(item.size_bytes for item in items))})",
    )


def _examine_bundles() -> Iterator[Finding]:
    folder = find.checkpoints_folder().resolve()
    free = decimal(shutil.disk_usage(nearest_existing(folder)).free)
    yield Finding("info", f"checkpoints: {folder} ({free} free)")
    for bundle in (*find.exported_bundles(), find.demo_folder()):
        try:
            manifest = Bundle.load(bundle, verify=False).manifest
        except BundleError as error:
            yield Finding("problem", str(error), "export it again")
            continue
        size_bytes = sum(entry.bytes for entry in manifest.files.values())
        size = f"{size_bytes / 1e6:.0f} MB"
        yield Finding(
            "ok", f"{find.name_of(bundle)}: {find.facts(manifest)}, {manifest.shapes}, {size}"
        )


def _examine_kept_work() -> Iterator[Finding]:
    for place in dict.fromkeys(folder.absolute() for folder in (Path(), find.checkpoints_folder())):
        if not path_exists(place):
            continue
        for parts in sorted(place.glob(f"{PREFIX}*/{KEPT_NAME}")):
            text = f"{parts.parent}: an interrupted run keeps finished parts"
            yield Finding(
                "missing", text, "run the same command with --resume, or delete the folder"
            )


SECTIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "system": _examine_system,
    "providers": _examine_providers,
    "engines": _examine_engines,
    "bundles": _examine_bundles,
    "interrupted runs": _examine_kept_work,
}
