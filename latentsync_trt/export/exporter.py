"""A whole export: loads checkpoints, writes graphs, verifies them, writes the manifest, then publishes the bundle."""

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx_ir as ir
import torch

from latentsync_trt.bundle.manifest import (
    FULL_STEP,
    REQUIRED_GRAPHS,
    UNGUIDED_GRAPHS,
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
# Relative durations: a whole U-Net graph takes as long as all small graphs together.
_TIME = dict.fromkeys((*REQUIRED_GRAPHS, *UNGUIDED_GRAPHS), 1.0) | {
    FULL_STEP: 5.0,
    step_graph(guided=False, cached=False): 5.0,
}


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> Path:
    """Exports the checkpoints that `options` name; returns the bundle's folder.

    The bundle appears complete and verified, or not at all; it replaces an earlier one.

    Raises:
        CheckpointError: a source is missing or cannot be used.
        InputError: the output folder contains something else, an option does not fit the checkpoint, or memory is too
            small for verification.
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
        _Export(options, sources, networks, proof, progress).write_bundle(staged)
    if progress is not None:
        progress("done", 1.0)
    return options.folder


@dataclass
class _Export:
    """One export. `proof`: options of the graphs to verify (see `verification_options`), None to skip verification."""

    options: ExportOptions
    sources: Sources
    networks: Networks
    proof: ExportOptions | None
    progress: Progress | None
    finished: float = 0.0

    def write_bundle(self, folder: Path) -> None:
        """Writes graphs, weights and manifest into `folder`."""
        options, networks = self.options, self.networks
        plans = plan_graphs(networks, options)
        graphs = self.write_graphs(folder, plans)
        verification = self.verify(folder, plans)
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
            sources={role: _described(path) for role, path in asdict(self.sources).items()},
            tools={tool: importlib.metadata.version(tool) for tool in _TOOLS},
            verification=verification,
            notes=tuple(self.notes()),
            attention=options.attention,
        )
        write_manifest(folder, manifest)

    def write_graphs(self, folder: Path, plans: list[GraphPlan]) -> dict[str, GraphEntry]:
        """Writes the graphs into `folder`, in both forms if they have both."""
        graphs: dict[str, GraphEntry] = {}
        for network in dict.fromkeys(plan.network for plan in plans):
            with WeightsFile(folder / f"{network}.weights") as weights:
                for plan in (plan for plan in plans if plan.network == network):
                    self.start("exporting", plan)
                    entry = _save(build_graph(plan), folder / f"{plan.name}.onnx", weights)
                    if plan.cuda_module is not None:
                        model = build_cuda_graph(plan, plan.cuda_module)
                        cuda = _save(model, folder / f"{plan.name}.cuda.onnx", weights)
                        if (cuda.inputs, cuda.outputs) != (entry.inputs, entry.outputs):
                            raise ExportMismatch(f"{cuda.file}: its inputs and outputs are not those of {entry.file}")
                        entry = replace(entry, forms={"cuda": cuda.file})
                    graphs[plan.name] = entry
        return graphs

    def verify(self, folder: Path, plans: list[GraphPlan]) -> dict[str, float]:
        """Compares the graphs with float32 PyTorch; returns the largest relative difference of each."""
        if self.proof is None:
            return {}
        if self.proof is self.options:
            return self.compare(folder)
        for plan in plans:
            open_checked(folder / f"{plan.name}.onnx", plan)
        with tempfile.TemporaryDirectory(prefix="proof-", dir=folder.parent) as smaller:
            self.write_graphs(Path(smaller), plan_graphs(self.networks, self.proof))
            return self.compare(Path(smaller))

    def compare(self, folder: Path) -> dict[str, float]:
        """Compares the graphs in `folder`, which were exported with `proof`."""
        proof = self.proof or self.options
        truth = self.networks if proof.precision == "fp32" else load_networks(self.sources, proof, torch.float32)
        found: dict[str, float] = {}
        for plan in plan_graphs(truth, proof):
            self.start("verifying", plan)
            found[plan.name] = verify_graph(folder / f"{plan.name}.onnx", plan, TOLERANCE[proof.precision])
        return found

    def notes(self) -> Iterator[str]:
        """Notes for the users of this bundle."""
        networks, options = self.networks, self.options
        if networks.unet.unused_tensors:
            yield f"{networks.unet.unused_tensors} tensors of the U-Net's file were not used"
        if networks.wide:
            yield wide_note(networks.wide)
        if options.cuda_form:
            for network, reason in cuda_obstacles(networks, options).items():
                yield f"{network}: no graphs in the CUDA form, as {reason}"
        if self.proof is not None and self.proof is not options:
            yield (
                f"comparing at {options.resolution_px} px takes {needed_bytes(options) / 1e9:.0f} GB of memory; "
                f"the same networks were compared at {self.proof.resolution_px} px instead"
            )

    def start(self, stage: str, plan: GraphPlan) -> None:
        """Reports the start of a stage for a graph."""
        passes = 1 if self.proof is None else 2 if self.proof is self.options else 3
        if self.progress is not None:
            self.progress(f"{stage} {plan.name}", min(self.finished / (passes * sum(_TIME.values())), 1.0))
        self.finished += _TIME[plan.name]


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
    """Name and hash of a source: of the file itself, or of the largest file in a VAE's folder."""
    files = [source] if source.is_file() else [path for path in source.iterdir() if path.is_file()]
    weights = max(files, key=lambda path: path.stat().st_size)
    return {"name": source.name, "sha256": sha256_file(weights)}
