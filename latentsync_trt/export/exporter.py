"""A whole export: loads checkpoints, writes graphs, verifies them, writes the manifest, then publishes the bundle."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from latentsync_trt.audio.mel import computed_filters, write_filters
from latentsync_trt.bundle.manifest import (
    FULL_STEP,
    REQUIRED_GRAPHS,
    UNGUIDED_GRAPHS,
    FileEntry,
    GraphEntry,
    Manifest,
    check_target,
    sha256_file,
    step_graph,
    tool_versions,
    write_manifest,
)
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export.graphs import OPSET, GraphPlan, build_cuda_graph, build_graph, save_graph
from latentsync_trt.export.options import EXTRA, TOOLS, ExportOptions, check_model, find_sources
from latentsync_trt.export.plans import Networks, cuda_obstacles, load_networks, plan_graphs
from latentsync_trt.export.proof import Proof
from latentsync_trt.export.published import origin
from latentsync_trt.export.verify import needed_bytes, verification_options
from latentsync_trt.files import published_folder

Progress = Callable[[str, float], None]
"""Called with the current stage and the completed fraction of the export, 0 to 1."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
# Relative durations: a whole U-Net graph takes as long as all small graphs together.
_TIME = dict.fromkeys((*REQUIRED_GRAPHS, *UNGUIDED_GRAPHS), 1.0) | {
    FULL_STEP: 5.0,
    step_graph(guided=False, cached=False): 5.0,
}


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> Path:
    """Exports the checkpoints that `options` name; returns the bundle's folder.

    The bundle appears complete and verified, or not at all; it replaces an earlier one.

    Raises:
        MissingDependency: a package of the extra "export" is not installed.
        CheckpointError: a source is missing or cannot be used.
        InputError: the output folder contains something else, an option does not fit the checkpoint, or memory is too
            small for verification.
        OutputError: the folder cannot be written.
        ExportMismatch: a graph does not reproduce PyTorch.
    """
    tools = tool_versions(TOOLS, extra=EXTRA)
    check_target(options.folder)
    sources = find_sources(options)
    proven = verification_options(options) if options.verify else None
    report = progress or (lambda *_: None)
    report("loading checkpoints", 0.0)
    networks = load_networks(sources, options, _DTYPES[options.precision])
    described = {role: _described(path, options.model) for role, path in asdict(sources).items()}
    check_model(options, sources.unet, described["unet"].get("origin", ""))
    smaller = None if proven is options else proven
    proof = Proof(options, sources, networks, smaller) if options.verify else None
    with published_folder(options.folder) as staged:
        _Export(options, described, networks, proof, report, tools).write_bundle(staged)
    report("done", 1.0)
    return options.folder


@dataclass
class _Export:
    """One export. `proof`: how graphs are verified, None to skip verification. `tools`: name → version.

    `verification`: graph → its largest error so far found.
    """

    options: ExportOptions
    sources: dict[str, dict[str, str]]
    networks: Networks
    proof: Proof | None
    progress: Progress
    tools: dict[str, str]
    finished: float = 0.0
    verification: dict[str, float] = field(default_factory=dict)

    def write_bundle(self, folder: Path) -> None:
        """Writes graphs, weights and manifest into `folder`."""
        options, networks = self.options, self.networks
        plans = plan_graphs(networks, options)
        graphs = self.write_graphs(folder, plans)
        write_filters(folder, computed_filters())
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
            sources=self.sources,
            tools=self.tools,
            verification=self.verification,
            notes=tuple(self.notes()),
            attention=options.attention,
        )
        write_manifest(folder, manifest)

    def write_graphs(self, folder: Path, plans: list[GraphPlan]) -> dict[str, GraphEntry]:
        """Writes the graphs into `folder`, in every form that they have, and verifies each at once."""
        graphs: dict[str, GraphEntry] = {}
        for network in dict.fromkeys(plan.network for plan in plans):
            with WeightsFile(folder / f"{network}.weights") as weights:
                for plan in (plan for plan in plans if plan.network == network):
                    place = f"({len(graphs) + 1} of {len(plans)})"
                    self.start(f"exporting {plan.name} {place}", plan)
                    graphs[plan.name] = _write_graph(folder, plan, weights)
                    if self.proof is not None:
                        self.start(f"verifying {plan.name} {place}", plan)
                        self.verification[plan.name] = self.proof.verify(plan, folder / graphs[plan.name].file)
        return graphs

    def notes(self) -> Iterator[str]:
        """Notes for the users of this bundle."""
        networks, options = self.networks, self.options
        if networks.unet.unused_tensors:
            yield f"{networks.unet.unused_tensors} tensors of the U-Net's file were not used"
        if options.cuda_form:
            for network, reason in cuda_obstacles(networks, options).items():
                yield f"{network}: no graphs in the CUDA form, as {reason}"
        if self.proof is not None and self.proof.smaller is not None:
            yield (
                f"comparing at {options.resolution_px} px takes {needed_bytes(options) / 1e9:.0f} GB of memory; "
                f"the same networks were compared at {self.proof.smaller.resolution_px} px instead"
            )

    def start(self, stage: str, plan: GraphPlan) -> None:
        """Reports the start of a stage for a graph."""
        passes = 1 if self.proof is None else 2
        self.progress(stage, min(self.finished / (passes * sum(_TIME.values())), 1.0))
        self.finished += _TIME[plan.name]


def _write_graph(folder: Path, plan: GraphPlan, weights: WeightsFile) -> GraphEntry:
    """The manifest's entry of a graph, written in every form that it has."""
    entry = save_graph(build_graph(plan), folder / f"{plan.name}.onnx", weights)
    forms: dict[str, str] = {}
    if plan.cuda_module is not None:
        cuda = save_graph(build_cuda_graph(plan, plan.cuda_module), folder / f"{plan.name}.cuda.onnx", weights)
        if (cuda.inputs, cuda.outputs) != (entry.inputs, entry.outputs):
            raise ExportMismatch(f"{cuda.file}: its inputs and outputs are not those of {entry.file}")
        forms["cuda"] = cuda.file
    return replace(entry, forms=forms)


def _described(source: Path, model: str) -> dict[str, str]:
    """Name, hash and origin of a source: of the file itself, or of the largest file in a VAE's folder."""
    files = [source] if source.is_file() else [path for path in source.iterdir() if path.is_file()]
    weights = max(files, key=lambda path: path.stat().st_size)
    sha256 = sha256_file(weights)
    known = origin(sha256, model)
    return {"name": source.name, "sha256": sha256} | ({"origin": known} if known else {})
