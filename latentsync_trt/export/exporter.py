"""A whole export: loads checkpoints, writes graphs, verifies them, writes the manifest, then publishes the bundle."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import torch

from latentsync_trt.audio.mel import computed_filters, write_filters
from latentsync_trt.bundle.manifest import (
    FileEntry,
    GraphEntry,
    Manifest,
    check_target,
    sha256_file,
    tool_versions,
    write_manifest,
)
from latentsync_trt.bundle.weights import WeightsFile
from latentsync_trt.errors import ExportMismatch
from latentsync_trt.export.export_options import EXTRA, TOOLS, ExportOptions, Sources, check_model, find_sources
from latentsync_trt.export.graphs import OPSET, GraphPlan, build_cuda_graph, build_graph, save_graph
from latentsync_trt.export.plans import Networks, cuda_obstacles, load_networks, plan_graphs
from latentsync_trt.export.published import origin
from latentsync_trt.export.verify import open_checked, verify_graph
from latentsync_trt.files import published_folder

Progress = Callable[[str, float], None]
"""Called with the current stage and the completed fraction of the export, 0 to 1."""

VERIFIED_PX = 128
"""The largest resolution at which graphs are compared: at 512 px a step's attention takes 34 GB on the CPU."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> Path:
    """Exports the checkpoints that `options` name; returns the bundle's folder.

    The bundle appears complete and verified, or not at all; it replaces an earlier one.

    Raises:
        MissingDependency: a package of the extra "export" is not installed.
        CheckpointError: a source is missing or cannot be used.
        InputError: the output folder contains something else, or an option does not fit the checkpoint.
        OutputError: the folder cannot be written.
        ExportMismatch: a graph does not reproduce PyTorch.
    """
    tools = tool_versions(TOOLS, extra=EXTRA)
    check_target(options.folder)
    sources = find_sources(options)
    report = progress or (lambda *_: None)
    report("loading checkpoints", 0.0)
    networks = load_networks(sources, options, _DTYPES[options.precision])
    described = {role: _described(path, options.model) for role, path in asdict(sources).items()}
    check_model(options, sources.unet, described["unet"].get("origin", ""))
    with published_folder(options.folder) as staged:
        export = _Export(options, sources, networks, report)
        graphs = export.write_graphs(staged)
        write_filters(staged, computed_filters())
        write_manifest(staged, export.manifest(staged, graphs, described, tools))
    report("done", 1.0)
    return options.folder


@dataclass
class _Export:
    """One export. `verification`: graph → its largest error."""

    options: ExportOptions
    sources: Sources
    networks: Networks
    progress: Progress
    verification: dict[str, float] = field(default_factory=dict)

    @cached_property
    def plans(self) -> dict[str, GraphPlan]:
        """All graphs, network by network."""
        return _planned(self.networks, self.options)

    @cached_property
    def smaller_plans(self) -> dict[str, GraphPlan]:
        """The same graphs at a lower resolution, to compare with PyTorch."""
        least_px = self.options.min_resolution and VERIFIED_PX // 2
        options = replace(self.options, resolution=VERIFIED_PX, min_resolution=least_px, cuda_form=False)
        return _planned(self.networks, options)

    @cached_property
    def exact_plans(self) -> dict[str, GraphPlan]:
        """Plans with modules of unrounded weights; float32 has no other."""
        if self.options.precision == "fp32":
            return self.plans
        return _planned(load_networks(self.sources, self.options, torch.float32), self.options)

    def write_graphs(self, folder: Path) -> dict[str, GraphEntry]:
        """Writes the graphs into `folder`, in every form that they have, and verifies each at once."""
        graphs: dict[str, GraphEntry] = {}
        for network, plans in groupby(self.plans.values(), lambda plan: plan.network):
            with WeightsFile(folder / f"{network}.weights") as weights:
                for plan in plans:
                    share = len(graphs) / len(self.plans)
                    place = f"{plan.name} ({len(graphs) + 1} of {len(self.plans)})"
                    self.progress(f"exporting {place}", share)
                    graphs[plan.name] = _write_graph(folder, plan, weights)
                    if self.options.verify:
                        self.progress(f"verifying {place}", share)
                        self.verification[plan.name] = self.verify(plan, folder / graphs[plan.name].file)
        return graphs

    def verify(self, plan: GraphPlan, path: Path) -> float:
        """The largest error of the graph in `path`, exported as planned; errors as `verify_graph`."""
        precision, truth = self.options.precision, self.exact_plans[plan.name].module
        if self.options.resolution_px <= VERIFIED_PX:
            return verify_graph(path, plan, truth, precision)
        open_checked(path, plan)
        smaller = self.smaller_plans[plan.name]
        with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
            graph = Path(folder) / path.name
            with WeightsFile(graph.with_suffix(".weights")) as weights:
                save_graph(build_graph(smaller), graph, weights)
            return verify_graph(graph, smaller, truth, precision)

    def manifest(
        self, folder: Path, graphs: dict[str, GraphEntry], sources: dict[str, dict[str, str]], tools: dict[str, str]
    ) -> Manifest:
        """The description of what is in `folder`."""
        options, networks = self.options, self.networks
        return Manifest(
            name=options.folder.name,
            model=options.model,
            resolution_px=options.resolution_px,
            frames=options.frames,
            precision=options.precision,
            shapes="dynamic" if options.dynamic else "static",
            audio_layers=networks.whisper.config.layers,
            audio_width=networks.whisper.config.width,
            opset=OPSET,
            unet=asdict(networks.unet.config),
            graphs=graphs,
            files={path.name: FileEntry(sha256_file(path), path.stat().st_size) for path in sorted(folder.iterdir())},
            ranges={name: allowed for plan in self.plans.values() for name, allowed in plan.ranges.items()},
            sources=sources,
            tools=tools,
            verification=self.verification,
            notes=tuple(self.notes()),
            attention=options.attention,
        )

    def notes(self) -> Iterator[str]:
        """Notes for the users of this bundle."""
        if self.options.cuda_form:
            for network, reason in cuda_obstacles(self.networks, self.options).items():
                yield f"{network}: no graphs in the CUDA form, as {reason}"
        if self.options.verify and self.options.resolution_px > VERIFIED_PX:
            yield f"values were compared with PyTorch at {VERIFIED_PX} px, by graphs of the same networks"


def _planned(networks: Networks, options: ExportOptions) -> dict[str, GraphPlan]:
    return {plan.name: plan for plan in plan_graphs(networks, options)}


def _write_graph(folder: Path, plan: GraphPlan, weights: WeightsFile) -> GraphEntry:
    """The manifest's entry of a graph, written in every form that it has."""
    entry = save_graph(build_graph(plan), folder / f"{plan.name}.onnx", weights)
    if plan.cuda_module is None:
        return entry
    cuda = save_graph(build_cuda_graph(plan, plan.cuda_module), folder / f"{plan.name}.cuda.onnx", weights)
    if (cuda.inputs, cuda.outputs) != (entry.inputs, entry.outputs):
        raise ExportMismatch(f"{cuda.file}: its inputs and outputs are not those of {entry.file}")
    return replace(entry, forms={"cuda": cuda.file})


def _described(source: Path, model: str) -> dict[str, str]:
    """Name, hash and origin of a source: of the file itself, or of the largest file in a VAE's folder."""
    files = [source] if source.is_file() else [path for path in source.iterdir() if path.is_file()]
    weights = max(files, key=lambda path: path.stat().st_size)
    sha256 = sha256_file(weights)
    known = origin(sha256, model)
    return {"name": source.name, "sha256": sha256} | ({"origin": known} if known else {})
