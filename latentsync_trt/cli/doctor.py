"""`latentsync-trt doctor`: what this machine has, what is missing, and the line that installs it.

What imports onnxruntime is imported in functions: an onnxruntime that does not load is a finding, too.
"""

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
from latentsync_trt.errors import BundleError, EngineBuildError, OutOfMemory, OutputError
from latentsync_trt.runtime.providers import gpu
from latentsync_trt.runtime.providers.messages import INSTALL_LINES, PLUGIN_ABSENT, REINSTALL_ORT

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
    findings = [finding for part in (_system, _packages, _runtime, _codecs, _bundles) for finding in part()]
    if as_json:
        click.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        section = ""
        for finding in findings:
            if finding.section != section:
                section = finding.section
                click.secho(section, bold=True)
            mark, color = _MARKS[finding.level]
            click.secho(f"  {mark} {finding.text}", fg=color)
            if finding.cure:
                click.echo(f"      → {finding.cure}")
    if any(finding.level == "problem" for finding in findings):
        raise SystemExit(1)


def _system() -> Iterator[Finding]:
    yield Finding("system", "info", f"latentsync-trt {__version__}, Python {platform.python_version()}")
    yield Finding("system", "info", f"{platform.platform()}, {os.cpu_count()} CPU threads")


def _packages() -> Iterator[Finding]:
    builds = [name for name in ("onnxruntime-gpu", "onnxruntime") if _version(name)]
    for name in (*(builds or ["onnxruntime-gpu"]), *_PACKAGES):
        version = _version(name)
        if version:
            yield Finding("packages", "ok", f"{name} {version}")
        else:
            yield Finding("packages", "problem", f"{name} is not installed", "pip install latentsync-trt")
    if len(builds) > 1:
        text = "onnxruntime and onnxruntime-gpu overwrite each other's files"
        yield Finding("packages", "problem", text, REINSTALL_ORT)
    absent = ", ".join(name for name in _EXPORT_PACKAGES if not _version(name))
    yield (
        Finding("packages", "missing", f"export: {absent} not installed", 'pip install "latentsync-trt[export]"')
        if absent
        else Finding("packages", "ok", f"export: torch {_version('torch')}, onnx {_version('onnx')}")
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _runtime() -> Iterator[Finding]:
    """Everything from the driver to the engine cache."""
    try:
        from latentsync_trt.runtime.providers import diagnose  # noqa: F401
    except ImportError as error:
        yield Finding("packages", "problem", f"onnxruntime does not load: {error}", REINSTALL_ORT)
        return
    yield from driver()
    yield from shared_libraries()
    tried = list(providers())
    yield from tried
    if any(finding.level == "ok" and finding.text.startswith("tensorrt ") for finding in tried):
        yield builder()
    yield from engines()


def driver() -> Iterator[Finding]:
    """The NVIDIA driver and each GPU."""
    from latentsync_trt.runtime.providers import diagnose

    obstacle, supported = diagnose.driver_obstacle(), gpu.driver_cuda()
    if obstacle is not None:
        yield Finding("gpu", "missing" if supported is None else "problem", obstacle.text, obstacle.cure)
        return
    version = gpu.driver_version() or "of unknown version"
    yield Finding("gpu", "ok", f"NVIDIA driver {version}, supports CUDA up to {'.'.join(map(str, supported or ()))}")
    if not gpu.gpus():
        yield Finding("gpu", "missing", "the driver shows no GPU", "run nvidia-smi; look at $CUDA_VISIBLE_DEVICES")
    for device in gpu.gpus():
        free = gpu.free_memory_bytes(device.index)
        memory = f"{_gb(device.memory_bytes)} memory" + ("" if free is None else f", {_gb(free)} free")
        yield Finding("gpu", "ok", f"{device}, {memory}")


def shared_libraries() -> Iterator[Finding]:
    """What onnxruntime was built for, and CUDA, cuDNN, TensorRT and the TensorRT-RTX plug-in."""
    from latentsync_trt.runtime.providers import diagnose, libraries

    obstacle = diagnose.build_obstacle("cuda")
    if obstacle is not None:
        yield Finding("libraries", "missing", obstacle.text, obstacle.cure)
        return
    needed = f"CUDA {libraries.CUDA_MAJOR} and TensorRT {libraries.TENSORRT_MAJOR}"
    yield Finding("libraries", "info", f"onnxruntime {libraries.onnxruntime_version()} is built for {needed}")
    for name in ("cuda", "tensorrt"):
        obstacle = diagnose.library_obstacle(name)
        if obstacle is not None:
            yield Finding("libraries", "missing", f"{name}: {obstacle.text}", obstacle.cure)
        elif name == "cuda":
            yield Finding("libraries", "ok", f"CUDA {libraries.cuda_version()}, cuDNN {libraries.cudnn_version()}")
        else:
            yield Finding("libraries", "ok", f"TensorRT {libraries.tensorrt_version()}")
    plugin = libraries.rtx_version()
    if plugin == libraries.UNKNOWN:
        yield Finding("libraries", "missing", PLUGIN_ABSENT, INSTALL_LINES["rtx"])
    else:
        yield Finding("libraries", "ok", f"TensorRT-RTX plug-in {plugin}")


def providers() -> Iterator[Finding]:
    """Each provider, tried on the first GPU, and the one that `--provider auto` takes."""
    from latentsync_trt.runtime.providers import diagnose, select

    obstacles = {name: diagnose.examine(name) for name in select.PREFERENCE}
    for name, obstacle in obstacles.items():
        if obstacle is None:
            yield Finding("providers", "ok", f"{name} runs (a trial session used it)")
        else:
            level: Level = "problem" if name == "cpu" else "missing"
            yield Finding("providers", level, f"{name}: {obstacle.text}", obstacle.cure)
    chosen = next((name for name, obstacle in obstacles.items() if obstacle is None), None)
    if chosen:
        yield Finding("providers", "info", f"--provider auto takes {chosen}")


def builder() -> Finding:
    """TensorRT's builder, tried on the first GPU."""
    from latentsync_trt.runtime.providers import diagnose, libraries

    loaded = libraries.tensorrt_version()
    try:
        answer = diagnose.try_builder(gpu.gpus()[0])
    except (EngineBuildError, OutOfMemory) as error:
        return Finding("engines", "problem", f"TensorRT {loaded} builds no engine", str(error))
    if not answer.accepted:
        cure = INSTALL_LINES["tensorrt"] + " --force-reinstall"
        return Finding("engines", "problem", f"TensorRT {loaded} builds no engine: {answer.reason}", cure)
    if not answer.version.startswith(loaded):
        text = f"Python's tensorrt is {answer.version}, but onnxruntime loads TensorRT {loaded} and its engines only"
        return Finding("engines", "problem", text, "install one TensorRT, or put its folder first on the loader's path")
    text = f"TensorRT {answer.version} builds engines (one node took {answer.seconds:.1f} s)"
    return Finding("engines", "ok", f"{text}; `latentsync-trt selftest` builds and runs whole graphs")


def engines() -> Iterator[Finding]:
    """The engine cache, and the compiler of `latentsync-trt check`."""
    from latentsync_trt.runtime.cache import prune, store

    folder = store.cache_folder().absolute()
    try:
        items = prune.survey(folder)
    except OutputError as error:
        yield Finding("engines", "problem", str(error), f"name another folder in ${store.CACHE_VARIABLE}")
    else:
        useless = [item for item in items if item.state != "ready"]
        size = _gb(prune.total_bytes(items))
        yield Finding("engines", "info", f"cache: {folder} ({len(items) - len(useless)} engines, {size})")
        if useless:
            text = f"{len(useless)} damaged, {_gb(prune.total_bytes(useless))}"
            yield Finding("engines", "missing", text, "latentsync-trt cache prune --stale")
    version, compiler = _version("tensorrt-rtx-cu13"), "check: NVIDIA's compiler for TensorRT-RTX"
    if version:
        yield Finding("engines", "ok", f"{compiler} {version}")
    else:
        yield Finding("engines", "missing", f"{compiler} is not installed", 'pip install "latentsync-trt[check]"')


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def _codecs() -> Iterator[Finding]:
    from latentsync_trt.media.codecs import library_versions, missing_codecs

    versions, missing = library_versions(), missing_codecs()
    yield Finding("media", "ok", f"PyAV {versions['PyAV']}, libavcodec {versions['libavcodec']}")
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
    free = _gb(shutil.disk_usage(existing).free)
    yield Finding("bundles", "info", f"checkpoints: {folder} ({state}; {free} free)")
    exported = exported_bundles()
    if not exported:
        yield Finding("bundles", "missing", "no exported bundle", "latentsync-trt export --model 1.6")
    yield from map(_bundle, (*exported, demo_folder()))


def _bundle(folder: Path) -> Finding:
    from latentsync_trt.bundle.manifest import Bundle

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
