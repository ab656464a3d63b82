"""A whole export: loads checkpoints, writes graphs, verifies them, writes the manifest, then
publishes the bundle.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latentsync_trt.audio.mel import MEL_FILTERS, computed_filters
from latentsync_trt.bundle import manifest as bundle
from latentsync_trt.bundle.external import WeightsFile
from latentsync_trt.export.cuda_form import cuda_module, obstacle
from latentsync_trt.export.export_options import (
    EXTRA,
    TOOLS,
    ExportOptions,
    check_model,
    find_sources,
)
from latentsync_trt.export.graphs import OPSET, GraphPlan, build_graph, save_graph, verify_graph
from latentsync_trt.export.networks import Networks, VaeDecoder, VaeEncoder, load_networks
from latentsync_trt.export.published import origin
from latentsync_trt.export.unet import INPUT_CHANNELS, LATENT_CHANNELS, DenoiseStep
from latentsync_trt.files import published_folder
from latentsync_trt.option_fields import RESOLUTION_STEP_PX
from latentsync_trt.runtime.engines.session import Session

Progress = Callable[[str, float], None]
"""Called with the current stage and the completed fraction of the export, 0 to 1."""

VERIFIED_PX = 128
"""The largest resolution at which graphs are compared: at 512 px a step's attention takes 34 GB on
the CPU.
"""

AUDIO_POSITIONS_PER_FRAME = 10
_MOST_SEGMENTS = 8

# The VAE's features of one 512 px image take half a gigabyte in half precision; batches of more are
# not faster.
_MOST_IMAGES = 4

_SEED = 20
_TYPICAL: Mapping[str, Any] = {
    "timestep": 501,
    "guidance": 1.5,
    "coefficients": (1.02, -0.31, 0.12, 1.4, -0.9),
}
"""Example inputs that are not random: all different and none zero, so that mixed-up inputs show."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}

Shapes = Mapping[str, tuple[int | str, ...]]
"""Input of a graph → its dimensions; a name stands for one that may vary between runs or
exports.
"""


def export_bundle(options: ExportOptions, progress: Progress | None = None) -> Path:
    """Exports the checkpoints that `options` name; returns the bundle's folder.

    The bundle appears complete and verified, or not at all; it replaces an earlier one.

    Raises:
        MissingDependency: a package of the extra "export" is not installed.
        CheckpointError: a source is missing or cannot be used.
        InputError: the output folder contains something else, or an option does not fit the
            checkpoint.
        OutputError: the folder cannot be written.
        ExportMismatch: a graph does not reproduce PyTorch.
    """
    tools = bundle.tool_versions(TOOLS, extra=EXTRA)
    report = progress or (lambda *_: None)
    bundle.check_target(options.folder)
    sources = find_sources(options)
    report("loading checkpoints", 0.0)
    networks = load_networks(sources, options, _DTYPES[options.precision])
    described = {role: _described(path, options.model) for role, path in asdict(sources).items()}
    check_model(options, sources.unet, described["unet"].get("origin", ""))
    exact = networks
    if options.verify and options.precision == "fp16":
        exact = load_networks(sources, options, torch.float32)
    plans = plan_graphs(networks, options)
    obstacles = cuda_obstacles(networks, options)
    formed = {network for network, reason in obstacles.items() if reason is None}
    notes = [
        f"{name}: no graphs in the CUDA variant, as {reason}"
        for name, reason in obstacles.items()
        if reason
    ]
    if options.verify and options.resolution_px > VERIFIED_PX:
        notes.append(
            f"values were compared with PyTorch at {VERIFIED_PX} px, by graphs of the same networks"
        )
    with published_folder(options.folder) as staged:
        graphs, verification = _write_graphs(
            staged, plans, formed, _verifier(networks, exact, options), report
        )
        np.save(staged / MEL_FILTERS, computed_filters())
        manifest = bundle.Manifest(
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
            files=bundle.files_of(staged),
            ranges={name: allowed for plan in plans for name, allowed in plan.ranges.items()},
            sources=described,
            tools=tools,
            verification=verification,
            notes=tuple(notes),
        )
        bundle.write_manifest(staged, manifest)
    report("done", 1.0)
    return options.folder


def plan_graphs(networks: Networks, options: ExportOptions) -> list[GraphPlan]:
    """All graphs of a bundle, network by network, with example inputs for verification."""
    vae = networks.vae
    whisper = networks.whisper.config
    frames = options.frames
    picture = (bundle.HEIGHT, bundle.WIDTH)
    size = (bundle.LATENT_HEIGHT, bundle.LATENT_WIDTH)
    mel: Shapes = {"mel": ("segments", whisper.mels, 2 * whisper.positions)}
    image: Shapes = {"image": ("images", 3, *picture)}
    latent: Shapes = {"latent": ("images", LATENT_CHANNELS, *size)}
    plans = [
        _planned(
            bundle.AUDIO_ENCODER,
            bundle.AUDIO_ENCODER,
            networks.whisper,
            mel,
            ("features",),
            options,
        ),
        _planned(bundle.VAE_ENCODER, "vae", VaeEncoder(vae), image, ("latent",), options),
        _planned(bundle.VAE_DECODER, "vae", VaeDecoder(vae), latent, ("image",), options),
    ]
    latents = ("windows", LATENT_CHANNELS, frames, *size)
    conditioning = ("windows", INPUT_CHANNELS - LATENT_CHANNELS, frames, *size)
    tokens = ("windows", frames, AUDIO_POSITIONS_PER_FRAME * whisper.layers, whisper.width)
    step = dict(
        zip(bundle.STEP_INPUTS, (latents, conditioning, tokens, (), (), latents, (5,)), strict=True)
    )
    for guided in (True, False):
        hidden = (2 if guided else 1, "windows", frames, networks.unet.config.widths[0], *size)
        for cached in (False, True):
            name = bundle.step_graph(guided=guided, cached=cached)
            module = DenoiseStep(networks.unet, guided=guided, cached=cached)
            shapes: Shapes = step | {bundle.HIDDEN: hidden} if cached else step
            outputs: tuple[str, ...] = bundle.STEP_OUTPUTS
            if not cached:
                outputs = (*outputs, bundle.HIDDEN)
            plans.append(_planned(name, "unet", module, shapes, outputs, options))
    return plans


def cuda_obstacles(networks: Networks, options: ExportOptions) -> dict[str, str | None]:
    """Why networks have no CUDA variant, None for those that get one; empty if none was asked for.

    The audio encoder is not among them: it runs only once per 30 s of speech.
    """
    if not options.cuda_form:
        return {}
    return {
        name: "shapes vary" if options.dynamic else obstacle(getattr(networks, name))
        for name in ("unet", "vae")
    }


def _planned(
    name: str,
    network: str,
    module: nn.Module,
    shapes: Shapes,
    outputs: tuple[str, ...],
    options: ExportOptions,
) -> GraphPlan:
    """The plan with example inputs of `shapes` and, for `--dynamic`, with variable dimensions.

    The first dimension of the first input counts windows, images or segments.
    """
    dtype = _DTYPES[options.precision]
    least = options.min_resolution_px
    most = options.resolution_px
    # The largest divisor of a window that is not above `_MOST_IMAGES`.
    at_once = max(count for count in range(1, _MOST_IMAGES + 1) if options.frames % count == 0)
    allowed = {
        "segments": bundle.DimensionRange(1, 1, _MOST_SEGMENTS),
        "images": bundle.DimensionRange(1, at_once, _MOST_IMAGES),
        "windows": bundle.DimensionRange(1, 1, options.max_windows),
    }
    batch = str(next(iter(shapes.values()))[0])

    def example(count: int, size_px: int) -> dict[str, Tensor]:
        sizes = {
            name: size_px * step // RESOLUTION_STEP_PX for name, step in bundle.SIZE_STEPS.items()
        }
        sizes[batch] = count
        return {
            name: _example(name, [sizes.get(str(size), size) for size in shape], dtype)
            for name, shape in shapes.items()
        }

    if not options.dynamic:
        return GraphPlan(name, network, module, example(allowed[batch].optimum, most), outputs)
    ranges = {batch: allowed[batch]}
    if least < most:
        ranges |= {
            name: bundle.DimensionRange(
                *(size_px * step // RESOLUTION_STEP_PX for size_px in (least, most, most))
            )
            for name, step in bundle.SIZE_STEPS.items()
            if any(name in shape for shape in shapes.values())
        }
    middle = least + (most - least) // 2 // RESOLUTION_STEP_PX * RESOLUTION_STEP_PX
    further = {most, least, middle} if len(ranges) > 1 else {most}
    dynamic = {
        name: {axis: str(size) for axis, size in enumerate(shape) if size in ranges}
        for name, shape in shapes.items()
    }
    inputs = example(2, most)
    others = tuple(example(1, size_px) for size_px in further)
    return GraphPlan(name, network, module, inputs, outputs, dynamic, ranges, others)


def _example(name: str, shape: list[Any], dtype: torch.dtype) -> Tensor:
    if name in _TYPICAL:
        return torch.tensor(_TYPICAL[name])
    value = torch.randn(*shape, generator=torch.Generator().manual_seed(_SEED + len(shape)))
    if name == "image":
        return value.tanh()
    if name == bundle.HIDDEN:
        return value.to(dtype)
    return value


def _write_graphs(
    folder: Path,
    plans: list[GraphPlan],
    formed: Collection[str],
    verify: Callable[[Path, GraphPlan], float] | None,
    report: Progress,
) -> tuple[dict[str, bundle.GraphEntry], dict[str, float]]:
    """Writes the graphs, those of networks `formed` in the CUDA form, too; returns entries and, if
    verified, errors.
    """
    graphs: dict[str, bundle.GraphEntry] = {}
    verification: dict[str, float] = {}
    for network, group in groupby(plans, lambda plan: plan.network):
        weights = WeightsFile(folder / f"{network}.weights")
        for plan in group:
            share = len(graphs) / len(plans)
            place = f"{plan.name} ({len(graphs) + 1} of {len(plans)})"
            report(f"exporting {place}", share)
            entry = save_graph(build_graph(plan), folder / f"{plan.name}.onnx", weights)
            if network in formed:
                model = build_graph(plan, cuda_module(plan.module))
                cuda = save_graph(model, folder / f"{plan.name}.cuda.onnx", weights)
                entry = replace(entry, forms={"cuda": cuda.file})
            graphs[plan.name] = entry
            if verify is not None:
                report(f"verifying {place}", share)
                verification[plan.name] = verify(folder / entry.file, plan)
    return graphs, verification


def _verifier(
    networks: Networks, exact: Networks, options: ExportOptions
) -> Callable[[Path, GraphPlan], float] | None:
    """What compares a graph with PyTorch and returns its largest error, as `verify_graph`; None if
    not wanted.

    Large graphs are compared by another one of the same network at `VERIFIED_PX`. `exact`: with
    unrounded weights.
    """
    if not options.verify:
        return None
    large = options.resolution_px > VERIFIED_PX
    if large:
        options = replace(
            options,
            resolution=VERIFIED_PX,
            min_resolution=options.min_resolution and VERIFIED_PX // 2,
        )
    plans, truths = (
        {plan.name: plan for plan in plan_graphs(each, options)} for each in (networks, exact)
    )

    def verify(path: Path, plan: GraphPlan) -> float:
        smaller = plans[plan.name]
        truth = truths[plan.name].module
        if not large:
            return verify_graph(path, smaller, truth, options.precision)
        Session(path)  # raises if it cannot be loaded
        with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
            graph = Path(folder) / path.name
            save_graph(build_graph(smaller), graph, WeightsFile(graph.with_suffix(".weights")))
            return verify_graph(graph, smaller, truth, options.precision)

    return verify


def _described(source: Path, model: str) -> dict[str, str]:
    """Name, hash and origin of a source: of the file itself, or of the largest file in a VAE's
    folder.
    """
    if source.is_file():
        files = [source]
    else:
        files = [path for path in source.iterdir() if path.is_file()]
    weights = max(files, key=lambda path: path.stat().st_size)
    sha256 = bundle.sha256_file(weights)
    known = origin(sha256, model)
    return {"name": source.name, "sha256": sha256} | ({"origin": known} if known else {})
