"""An export from start to end: load, write graphs, verify, write the manifest, and only then let the bundle appear."""

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

import onnx_ir as ir
import torch

from latentsync_trt.bundle.manifest import (
    FULL_STEP,
    FileEntry,
    GraphEntry,
    Manifest,
    TensorEntry,
    sha256_file,
    step_graph,
    write_manifest,
)
from latentsync_trt.bundle.staging import check_target, staged_bundle
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export.graphs import OPSET, GraphPlan, build_cuda_graph, build_graph
from latentsync_trt.export.options import ExportOptions, Sources, find_sources
from latentsync_trt.export.plans import Networks, cuda_obstacles, load_networks, plan_graphs
from latentsync_trt.export.vae_overflow import wide_note
from latentsync_trt.export.verify import TOLERANCE, needed_bytes, open_checked, verification_options, verify_graph

Progress = Callable[[str, float], None]
"""Called with the current stage and the completed fraction of the export, 0 to 1."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_TOOLS = ("latentsync-trt", "torch", "onnx", "onnx-ir", "onnxscript", "diffusers")
# Relative times: a whole U-Net graph takes as long as all the small graphs together.
_TIME = {FULL_STEP: 5.0, step_graph(guided=False, cached=False): 5.0}


class _Stages:
    """Reports graph by graph to the caller's progress callback."""

    def __init__(self, callback: Progress | None, names: Iterable[str]) -> None:
        self._callback = callback
        self._total = sum(_TIME.get(name, 1.0) for name in names)
        self._started = 0.0

    def start(self, stage: str, name: str) -> None:
        if self._callback is not None:
            self._callback(f"{stage} {name}", self._started / self._total)
        self._started += _TIME.get(name, 1.0)


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> Path:
    """Exports the checkpoints that `options` name; returns the bundle's folder.

    The bundle appears complete and verified, or not at all, and replaces an earlier one.

    Raises:
        CheckpointError: a source is missing or cannot be used.
        InputError: the folder to write contains something else, an option does not fit the checkpoint, or there is too
            little memory to verify.
        OutputError: the folder cannot be written.
        ExportMismatch: a graph does not reproduce PyTorch.
    """
    check_target(options.folder)
    sources = find_sources(options)
    proof = verification_options(options) if options.verify else None
    if progress is not None:
        progress("loading checkpoints", 0.0)
    networks = load_networks(sources, options, _DTYPES[options.precision])
    with staged_bundle(options.folder) as staged:
        _write_bundle(staged, networks, sources, options, proof, progress)
    if progress is not None:
        progress("done", 1.0)
    return options.folder


def _write_bundle(
    folder: Path,
    networks: Networks,
    sources: Sources,
    options: ExportOptions,
    proof: ExportOptions | None,
    progress: Progress | None,
) -> None:
    """Writes graphs, weights and manifest into `folder`, verified as `proof`; None skips verification."""
    plans = plan_graphs(networks, options)
    names = [plan.name for plan in plans]
    passes = 1 if proof is None else 2 if proof is options else 3
    stages = _Stages(progress, [*passes * names, *(plan.name for plan in plans if plan.cuda_module is not None)])
    graphs = _write_graphs(folder, plans, stages)
    notes = _notes(networks, options)
    verification: dict[str, float] = {}
    if proof is options:
        verification = _verify(folder, networks, sources, options, stages)
    elif proof is not None:
        notes.append(
            f"comparing at {options.resolution_px} px takes {needed_bytes(options) / 1e9:.0f} GB of memory; "
            f"the same networks were compared at {proof.resolution_px} px instead"
        )
        for plan in plans:
            open_checked(folder / graphs[plan.name].file, plan)
        with tempfile.TemporaryDirectory(prefix="proof-", dir=folder.parent) as smaller:
            _write_graphs(Path(smaller), plan_graphs(networks, proof), stages)
            verification = _verify(Path(smaller), networks, sources, proof, stages)
    manifest = Manifest(
        name=options.folder.name,
        model=options.model,
        resolution_px=options.resolution_px,
        frames=options.frames,
        precision=options.precision,
        shapes="dynamic" if options.dynamic else "static",
        audio_layers=networks.whisper.config.layers,
        audio_width=networks.whisper.config.width,
        opset=OPSET,
        unet=asdict(networks.unet.network.config),
        graphs=graphs,
        files={path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in sorted(folder.iterdir())},
        ranges={name: allowed for plan in plans for name, allowed in plan.ranges.items()},
        sources={role: _described(path) for role, path in asdict(sources).items()},
        tools={tool: importlib.metadata.version(tool) for tool in _TOOLS},
        verification=verification,
        notes=tuple(notes),
        attention=options.attention,
    )
    write_manifest(folder, manifest)


def _notes(networks: Networks, options: ExportOptions) -> list[str]:
    """What the user should know of these networks."""
    notes = []
    if networks.unet.unused_tensors:
        notes.append(f"{networks.unet.unused_tensors} tensors of the U-Net's file were not used")
    if networks.wide:
        notes.append(wide_note(networks.wide))
    obstacles = cuda_obstacles(networks, options) if options.cuda_form else {}
    return notes + [f"{network}: no graphs in the CUDA form, as {reason}" for network, reason in obstacles.items()]


def _verify(
    folder: Path, networks: Networks, sources: Sources, options: ExportOptions, stages: _Stages
) -> dict[str, float]:
    """Compares the graphs in `folder` with float32 PyTorch; returns the largest relative difference of each."""
    truth = networks if options.precision == "fp32" else load_networks(sources, options, torch.float32)
    found: dict[str, float] = {}
    for plan in plan_graphs(truth, options):
        stages.start("verifying", plan.name)
        found[plan.name] = verify_graph(folder / f"{plan.name}.onnx", plan, TOLERANCE[options.precision])
    return found


def _write_graphs(folder: Path, plans: list[GraphPlan], stages: _Stages) -> dict[str, GraphEntry]:
    graphs: dict[str, GraphEntry] = {}
    for network in dict.fromkeys(plan.network for plan in plans):
        with WeightsFile(folder / f"{network}.weights") as weights:
            for plan in (plan for plan in plans if plan.network == network):
                stages.start("exporting", plan.name)
                entry = _save(build_graph(plan), folder / f"{plan.name}.onnx", weights)
                if plan.cuda_module is not None:
                    stages.start("exporting for CUDA", plan.name)
                    model = build_cuda_graph(plan, plan.cuda_module)
                    cuda = _save(model, folder / f"{plan.name}.cuda.onnx", weights)
                    if (cuda.inputs, cuda.outputs) != (entry.inputs, entry.outputs):
                        raise ExportMismatch(f"{cuda.file}: its inputs and outputs are not those of {entry.file}")
                    entry = replace(entry, forms={"cuda": cuda.file})
                graphs[plan.name] = entry
    return graphs


def _save(model: ir.Model, path: Path, weights: WeightsFile) -> GraphEntry:
    weights.move_out(model)
    ir.save(model, path)
    inputs, outputs = (tuple(map(_tensor, values)) for values in (model.graph.inputs, model.graph.outputs))
    return GraphEntry(path.name, weights.path.name, inputs, outputs)


def _tensor(value: ir.Value) -> TensorEntry:
    if value.name is None or value.dtype is None or value.shape is None:
        raise ExportMismatch(f"the exporter left name, type or shape of {value} open")
    shape = tuple(dimension if isinstance(dimension, int) else str(dimension) for dimension in value.shape)
    return TensorEntry(value.name, value.dtype.numpy().name, shape)


def _described(source: Path) -> dict[str, str]:
    """Name and hash of a source: the file itself, or the largest of a VAE's folder."""
    files = [source] if source.is_file() else [path for path in source.iterdir() if path.is_file()]
    weights = max(files, key=lambda path: path.stat().st_size)
    return {"name": source.name, "sha256": sha256_file(weights)}
