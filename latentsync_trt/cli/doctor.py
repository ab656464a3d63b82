"""`latentsync-trt doctor`: what this machine has, what is missing, and the command that installs it.

Packages that may fail to load are imported in functions, so that the failure becomes a finding.
"""

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import rich_click as click

from latentsync_trt import __version__
from latentsync_trt.errors import BundleError, EngineBuildError, OutOfMemory, OutputError
from latentsync_trt.remembered import forget
from latentsync_trt.runtime.providers.messages import (
    PLUGIN_ABSENT,
    REINSTALL_ORT,
    TENSORRT_DOWNLOAD,
    Obstacle,
)
from latentsync_trt.runtime.providers.table import CPU, CUDA, PROVIDERS, RTX, TENSORRT
from latentsync_trt.version import distribution_version

Level = Literal["ok", "missing", "problem", "info"]

_MARKS = {"ok": ("✓", "green"), "missing": ("–", "yellow"), "problem": ("✗", "red"), "info": (" ", "white")}
_PACKAGES = (
    *("numpy", "opencv-python-headless", "av", "click", "rich", "rich-click", "filelock", "platformdirs"),
    *("psutil", "nvidia-ml-py", "jinja2", "matplotlib"),
)
_EXTRAS = {
    "export": ("torch", "diffusers", "librosa", "onnx", "onnx-ir", "onnxscript", "safetensors", "huggingface-hub"),
    "ui": ("gradio", "prometheus-client", "python-multipart"),
    "serve": ("fastapi", "prometheus-client", "python-multipart", "uvicorn"),
    "cluster": ("ray", "fsspec", "aiohttp", "s3fs", "gcsfs"),
}
"""Packages that each extra installs; the version of the first is shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `cure`: the command or action that helps; empty if nothing is wrong."""

    level: Level
    text: str
    cure: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(as_json: bool) -> None:
    """Say what works here and, for everything missing, the line that installs it."""
    forget()  # what earlier runs found is found again
    report: dict[str, list[Finding]] = {}
    for section, find in SECTIONS.items():
        try:
            report[section] = list(find())
        except ImportError as error:
            report[section] = [Finding("problem", f"a package does not load: {error}", REINSTALL_ORT)]
    if as_json:
        rows = [{"section": name, **asdict(finding)} for name, findings in report.items() for finding in findings]
        click.echo(json.dumps({"findings": rows}, indent=2))
    else:
        for section, findings in report.items():
            click.secho(section, bold=True)
            for finding in findings:
                mark, color = _MARKS[finding.level]
                click.secho(f"  {mark} {finding.text}", fg=color)
                if finding.cure:
                    click.echo(f"      → {finding.cure}")
    if any(finding.level == "problem" for findings in report.values() for finding in findings):
        raise SystemExit(1)


def _system() -> Iterator[Finding]:
    yield Finding("info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("info", f"{platform.platform()}, {os.cpu_count()} CPU threads")


def _packages() -> Iterator[Finding]:
    builds = [name for name in ("onnxruntime-gpu", "onnxruntime") if distribution_version(name)]
    for name in (*(builds or ["onnxruntime-gpu"]), *_PACKAGES):
        version = distribution_version(name)
        absent = None if version else Obstacle(f"{name} is not installed", "pip install latentsync-trt")
        yield _found(f"{name} {version}", absent, "problem")
    if len(builds) > 1:
        yield Finding("problem", "onnxruntime and onnxruntime-gpu overwrite each other's files", REINSTALL_ORT)
    for extra, packages in _EXTRAS.items():
        names = ", ".join(name for name in packages if not distribution_version(name))
        absent = (
            Obstacle(f"{extra}: {names} not installed", f'pip install "latentsync-trt[{extra}]"') if names else None
        )
        yield _found(f"{extra}: {packages[0]} {distribution_version(packages[0])}", absent)


def _driver() -> Iterator[Finding]:
    from latentsync_trt.runtime.providers import diagnose, gpu

    supported = gpu.driver_cuda()
    version = f"NVIDIA driver {gpu.driver_version() or 'of unknown version'}"
    text = f"{version}, supports CUDA up to {'.'.join(map(str, supported or ()))}"
    obstacle = diagnose.driver_obstacle()
    yield _found(text, obstacle, "missing" if supported is None else "problem")
    if obstacle is None and not gpu.gpus():
        yield Finding("missing", "the driver shows no GPU", "run nvidia-smi; look at $CUDA_VISIBLE_DEVICES")
    for device in gpu.gpus():
        free = gpu.free_memory_bytes(device.index)
        memory = f"{_gb(device.memory_bytes)} memory" + ("" if free is None else f", {_gb(free)} free")
        yield Finding("ok", f"{device}, {memory}")


def _libraries() -> Iterator[Finding]:
    from latentsync_trt.runtime.providers import diagnose, libraries

    obstacle = diagnose.build_obstacle(CUDA)
    if obstacle is not None:
        yield _found("", obstacle)
        return
    needed = f"CUDA {libraries.CUDA_MAJOR} and TensorRT {libraries.TENSORRT_MAJOR}"
    yield Finding("info", f"onnxruntime {libraries.onnxruntime_version()} is built for {needed}")
    versions = {
        CUDA: f"CUDA {libraries.cuda_version()}, cuDNN {libraries.cudnn_version()}",
        TENSORRT: f"TensorRT {libraries.tensorrt_version()}",
    }
    for provider, text in versions.items():
        obstacle = diagnose.library_obstacle(provider)
        yield _found(text, obstacle, name=provider.name)
    if obstacle is not None and TENSORRT.install in obstacle.cure:
        yield Finding("info", TENSORRT_DOWNLOAD)
    plugin = libraries.rtx_version()
    absent = Obstacle(PLUGIN_ABSENT, RTX.install) if plugin == libraries.UNKNOWN else None
    yield _found(f"TensorRT-RTX plug-in {plugin}", absent)


def _providers() -> Iterator[Finding]:
    from latentsync_trt.runtime.providers import diagnose

    obstacles = {name: diagnose.diagnose_provider(provider) for name, provider in PROVIDERS.items()}
    for name, obstacle in obstacles.items():
        level: Level = "problem" if name == CPU.name else "missing"
        yield _found(f"{name} runs (a trial session used it)", obstacle, level, name=name)
    working = [name for name, obstacle in obstacles.items() if obstacle is None]
    if working:
        yield Finding("info", f"--provider auto takes {working[0]}")
    if TENSORRT.name in working:
        yield _builder()


def _builder() -> Finding:
    """TensorRT's builder, tested on the first GPU."""
    from latentsync_trt.runtime.providers import diagnose, gpu, libraries

    loaded = libraries.tensorrt_version()
    try:
        answer = diagnose.try_builder(gpu.gpus()[0])
    except (EngineBuildError, OutOfMemory) as error:
        return Finding("problem", f"TensorRT {loaded} builds no engine", str(error))
    if not answer.accepted:
        cure = TENSORRT.install + " --force-reinstall"
        return Finding("problem", f"TensorRT {loaded} builds no engine: {answer.reason}", cure)
    if not answer.version.startswith(loaded):
        text = f"Python's tensorrt is {answer.version}, but onnxruntime loads TensorRT {loaded} and its engines only"
        return Finding("problem", text, "install one TensorRT, or put its folder first on the loader's path")
    text = f"TensorRT {answer.version} builds engines (one node took {answer.seconds:.1f} s)"
    return Finding("ok", f"{text}; `latentsync-trt selftest` builds and runs whole graphs")


def _engines() -> Iterator[Finding]:
    from latentsync_trt.runtime.cache import prune, store
    from latentsync_trt.runtime.networks.verdict import kept

    folder = store.cache_folder().absolute()
    try:
        items = prune.survey(folder)
    except OutputError as error:
        yield Finding("problem", str(error), f"name another folder in ${store.CACHE_VARIABLE}")
    else:
        damaged = [item for item in items if item.state != "ready"]
        size = _gb(prune.total_bytes(items))
        yield Finding("info", f"cache: {folder} ({len(items) - len(damaged)} engines, {size})")
        if damaged:
            text = f"{len(damaged)} damaged, {_gb(prune.total_bytes(damaged))}"
            yield Finding("missing", text, "latentsync-trt cache prune --stale")
    for verdict in kept(folder):
        used = "" if verdict.problem else "; --provider auto uses it"
        cure = (
            "`latentsync-trt setup` measures again; naming the provider uses it all the same" if verdict.problem else ""
        )
        yield Finding("missing" if verdict.problem else "info", f"{verdict}{used}", cure)
    version, compiler = distribution_version("tensorrt-rtx-cu13"), "check: NVIDIA's compiler for TensorRT-RTX"
    absent = None if version else Obstacle(f"{compiler} is not installed", 'pip install "latentsync-trt[check]"')
    yield _found(f"{compiler} {version}", absent)


def _codecs() -> Iterator[Finding]:
    from latentsync_trt.media.codecs import library_versions, missing_codecs

    versions, missing = library_versions(), ", ".join(missing_codecs())
    yield Finding("ok", f"PyAV {versions['PyAV']}, libavcodec {versions['libavcodec']}")
    cure = "pip install --force-reinstall --only-binary=:all: av"
    yield _found("FFmpeg has all required codecs", Obstacle(f"FFmpeg lacks {missing}", cure) if missing else None)


def _bundles() -> Iterator[Finding]:
    from latentsync_trt.bundle import find
    from latentsync_trt.bundle.manifest import Bundle
    from latentsync_trt.paths import nearest_existing

    folder = find.checkpoints_folder().resolve()
    existing = nearest_existing(folder)
    state = "found" if folder == existing else "does not exist yet"
    yield Finding("info", f"checkpoints: {folder} ({state}; {_gb(shutil.disk_usage(existing).free)} free)")
    exported = find.exported_bundles()
    default = find.default_bundle()
    if default.name is not None:
        yield Finding("ok", f"without --bundle, {default.name} runs: it is {default.reason}")
    elif exported:
        yield Finding("missing", f"without --bundle, none runs: {default.reason}", "latentsync-trt use NAME")
    else:
        yield Finding("missing", "no exported bundle", "latentsync-trt setup")
    for bundle in (*exported, find.demo_folder()):
        try:
            manifest = Bundle.load(bundle).manifest
        except BundleError as error:
            yield Finding("problem", str(error), "export it again")
            continue
        size = f"{sum(entry.bytes for entry in manifest.files.values()) / 1e6:.0f} MB"
        yield Finding("ok", f"{find.name_of(bundle)}: {find.facts(manifest)}, {manifest.shapes}, {size}")


def _found(text: str, obstacle: Obstacle | None, level: Level = "missing", *, name: str = "") -> Finding:
    """The finding `text`, or the obstacle to it, prefixed with `name`."""
    if obstacle is None:
        return Finding("ok", text)
    return Finding(level, f"{name}: {obstacle.text}" if name else obstacle.text, obstacle.cure)


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _leftovers() -> Iterator[Finding]:
    from latentsync_trt.bundle.find import checkpoints_folder
    from latentsync_trt.runtime.cache.store import EngineCache, cache_folder
    from latentsync_trt.temporary import leftovers

    wanted = Path(), checkpoints_folder(), cache_folder(), Path(tempfile.gettempdir())
    places = dict.fromkeys(place.absolute() for place in wanted)
    found = [leftover for place in places for leftover in leftovers(place)]
    for leftover in found:
        text = f"{leftover.path}: a run that was killed left {_gb(leftover.size_bytes)}"
        yield Finding("missing", text, "delete it, as the next run that writes there does")
    kept = [work for place in places for work in leftovers(place, kept=True)]
    for work in kept:
        text = f"{work.path}: an interrupted run keeps {_gb(work.size_bytes)} of finished parts"
        yield Finding("missing", text, "run the same command with --resume, or delete the folder")
    unfinished = list(EngineCache(cache_folder()).leftovers())
    for path in unfinished:
        text = f"{path}: a build that was killed left it"
        yield Finding("missing", text, "latentsync-trt cache prune --stale, or the next build, deletes it")
    if not found and not unfinished and not kept:
        yield Finding("ok", "none here, below checkpoints/, in the engine cache or among the system's temporary files")


SECTIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "system": _system,
    "packages": _packages,
    "gpu": _driver,
    "libraries": _libraries,
    "providers": _providers,
    "engines": _engines,
    "media": _codecs,
    "bundles": _bundles,
    "leftovers": _leftovers,
}
"""Sections of the report: heading → examination."""
