"""The order of work of an export: load, build, verify, describe, and only then let the bundle appear."""

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx_ir as ir
import torch

from latentsync_trt.bundle.manifest import (
    MANIFEST_NAME,
    DimensionRange,
    FileEntry,
    GraphEntry,
    Manifest,
    TensorEntry,
    sha256_file,
    write_manifest,
)
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import ExportMismatch, InputError, OutputError
from latentsync_trt.export.cuda_graph import take_stored
from latentsync_trt.export.graphs import OPSET, GraphPlan, build_cuda_graph, build_graph
from latentsync_trt.export.options import ExportOptions, Sources, find_sources
from latentsync_trt.export.plans import (
    Networks,
    answer_overflow,
    cuda_obstacles,
    load_networks,
    plan_graphs,
    source_file,
)
from latentsync_trt.export.vae_range import wide_note
from latentsync_trt.export.verify import TOLERANCE, affordable, needed_bytes, open_checked, verify_graph

Progress = Callable[[str, float], None]
"""Called with what is being done and the part of the whole that is done, 0 to 1."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_TOOLS = ("latentsync-trt", "torch", "onnx", "onnx-ir", "onnxscript", "diffusers")
# Shares of an export's time, roughly: a whole U-Net graph takes as long as all the small graphs together.
_WEIGHT = {"denoise_step": 5.0, "denoise_step_unguided": 5.0}
_PROVED_SMALLER = "comparing at {} px takes {:.0f} GB of memory; the same networks were compared at {} px instead"


@dataclass(frozen=True, slots=True)
class _Built:
    """What the writing of the graphs found out."""

    graphs: Mapping[str, GraphEntry]
    ranges: Mapping[str, DimensionRange]


class _Report:
    """Counts finished work for the caller's progress callback."""

    def __init__(self, callback: Progress | None, names: list[str], passes: int) -> None:
        self._callback = callback
        self._total = passes * sum(_WEIGHT.get(name, 1.0) for name in names)
        self._done = 0.0

    def start(self, stage: str) -> None:
        if self._callback is not None:
            self._callback(stage, min(self._done / self._total, 1.0))

    def finish(self, name: str) -> None:
        self._done += _WEIGHT.get(name, 1.0)


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> Path:
    """Exports the checkpoints that `options` name; returns the bundle's folder.

    The bundle appears by rename, complete and verified, or not at all. A bundle that was there before is replaced.

    Raises:
        CheckpointError: a source is missing or cannot be used.
        InputError: the folder to write holds something else, an option does not fit the checkpoint, or there is too
            little memory to verify.
        OutputError: the folder cannot be written.
        ExportMismatch: a graph does not reproduce PyTorch.
    """
    sources = find_sources(options)
    target = options.folder
    _check_target(target)
    proof = affordable(options) if options.verify else None
    if progress is not None:
        progress("loading checkpoints", 0.0)
    networks = load_networks(sources, options, _DTYPES[options.precision])
    if options.precision == "fp16":
        if progress is not None:
            progress("looking for overflow in the VAE", 0.0)
        networks = answer_overflow(networks, sources, options)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
            staged = Path(temporary) / "bundle"
            staged.mkdir()
            _fill(staged, networks, sources, options, proof, progress)
            if target.exists():
                target.rename(Path(temporary) / "replaced")
            staged.rename(target)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error
    if progress is not None:
        progress("done", 1.0)
    return target


def _check_target(target: Path) -> None:
    if target.is_file():
        raise InputError(f"{target}: is a file; --out takes a folder")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_NAME).is_file():
        raise InputError(f"{target}: holds something that is not a bundle; choose another folder for --out")


def _fill(
    folder: Path,
    networks: Networks,
    sources: Sources,
    options: ExportOptions,
    proof: ExportOptions | None,
    progress: Progress | None,
) -> None:
    """Writes graphs, weights and manifest into `folder`; `proof` as in `affordable`, None to skip verification."""
    plans = plan_graphs(networks, options)
    passes = 1 if proof is None else 2 if proof is options else 3
    names = [plan.name for plan in plans] + [plan.name for plan in plans if plan.cuda_module is not None]
    report = _Report(progress, names, passes)
    built = _write_graphs(folder, plans, report)
    unet, whisper = networks.unet, networks.whisper.config
    notes = _notes(networks, options)
    verification: dict[str, float] = {}
    if proof is not None and proof is not options:
        notes += (_PROVED_SMALLER.format(options.resolution_px, needed_bytes(options) / 1e9, proof.resolution_px),)
        for plan in plans:
            open_checked(folder / built.graphs[plan.name].file, plan)
        with tempfile.TemporaryDirectory(prefix="proof-", dir=folder.parent) as smaller:
            _write_graphs(Path(smaller), plan_graphs(networks, proof), report)
            verification = _verify(Path(smaller), networks, sources, proof, report)
    elif proof is not None:
        verification = _verify(folder, networks, sources, proof, report)
    manifest = Manifest(
        name=options.folder.name,
        model=options.model,
        resolution_px=options.resolution_px,
        frames=options.frames,
        precision=options.precision,
        shapes="dynamic" if options.dynamic else "static",
        audio_layers=whisper.layers,
        audio_width=whisper.width,
        opset=OPSET,
        unet=asdict(unet.network.config),
        graphs=built.graphs,
        files=_hash_files(folder),
        ranges=built.ranges,
        sources=_describe_sources(sources),
        tools={tool: importlib.metadata.version(tool) for tool in _TOOLS},
        verification=verification,
        notes=notes,
        attention=options.attention,
    )
    write_manifest(folder, manifest)


def _notes(networks: Networks, options: ExportOptions) -> tuple[str, ...]:
    """What is particular about these networks."""
    notes: tuple[str, ...] = ()
    if networks.unet.unused_tensors:
        notes += (f"{networks.unet.unused_tensors} tensors of the U-Net's file were not used",)
    if networks.wide:
        notes += (wide_note(networks.wide),)
    if options.cuda_form:
        notes += tuple(
            f"{network}: no graphs in the CUDA form, as {reason}"
            for network, reason in cuda_obstacles(networks, options).items()
        )
    return notes


def _verify(
    folder: Path, networks: Networks, sources: Sources, options: ExportOptions, report: _Report
) -> dict[str, float]:
    """Compares the graphs in `folder` with float32 PyTorch; returns the largest relative difference of each."""
    truth = networks if options.precision == "fp32" else load_networks(sources, options, torch.float32)
    found: dict[str, float] = {}
    for plan in plan_graphs(truth, options):
        report.start(f"verifying {plan.name}")
        found[plan.name] = verify_graph(folder / f"{plan.name}.onnx", plan, TOLERANCE[options.precision])
        report.finish(plan.name)
    return found


def _write_graphs(folder: Path, plans: list[GraphPlan], report: _Report) -> _Built:
    graphs: dict[str, GraphEntry] = {}
    ranges: dict[str, DimensionRange] = {}
    for network in dict.fromkeys(plan.network for plan in plans):
        with WeightsFile(folder / f"{network}.weights") as weights:
            for plan in (plan for plan in plans if plan.network == network):
                report.start(f"exporting {plan.name}")
                entry = _save(build_graph(plan), folder / f"{plan.name}.onnx", weights)
                report.finish(plan.name)
                if plan.cuda_module is not None:
                    report.start(f"exporting {plan.name} for CUDA")
                    entry = _with_cuda_form(entry, build_cuda_graph(plan, plan.cuda_module), folder, weights)
                    report.finish(plan.name)
                graphs[plan.name] = entry
                ranges.update(plan.ranges)
    return _Built(graphs, ranges)


def _with_cuda_form(entry: GraphEntry, model: ir.Model, folder: Path, weights: WeightsFile) -> GraphEntry:
    """The entry with the CUDA form, which is written; raises `ExportMismatch` if it is used otherwise."""
    take_stored(model, weights)
    path = folder / f"{Path(entry.file).stem}.cuda.onnx"
    made = _save(model, path, weights)
    if (made.inputs, made.outputs) != (entry.inputs, entry.outputs):
        raise ExportMismatch(f"{path.name}: its inputs and outputs are not those of {entry.file}")
    return replace(entry, forms={"cuda": path.name})


def _save(model: ir.Model, path: Path, weights: WeightsFile) -> GraphEntry:
    weights.move_out(model)
    ir.save(model, path)
    return GraphEntry(path.name, weights.path.name, _tensors(model.graph.inputs), _tensors(model.graph.outputs))


def _tensors(values: Iterable[ir.Value]) -> tuple[TensorEntry, ...]:
    return tuple(_tensor(value) for value in values)


def _tensor(value: ir.Value) -> TensorEntry:
    if value.name is None or value.dtype is None or value.shape is None:
        raise ExportMismatch(f"the exporter left name, type or shape of {value} open")
    shape = tuple(dimension if isinstance(dimension, int) else str(dimension) for dimension in value.shape)
    return TensorEntry(value.name, value.dtype.numpy().name, shape)


def _hash_files(folder: Path) -> dict[str, FileEntry]:
    return {path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in sorted(folder.iterdir())}


def _describe_sources(sources: Sources) -> dict[str, dict[str, str]]:
    return {role: {"name": path.name, "sha256": sha256_file(source_file(path))} for role, path in sources.items()}
