"""A whole export: loads checkpoints, writes graphs, verifies them, writes the manifest, then
publishes the bundle.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latentsync_trt.audio.mel import MEL_FILTERS, computed_filters
from latentsync_trt.bundle import manifest as bundle
from latentsync_trt.bundle.external import WeightsFile
from latentsync_trt.diffusion import LATENT_CHANNELS
from latentsync_trt.export.checkpoints import Networks, load_networks
from latentsync_trt.export.cuda_form import cuda_module, obstacle
from latentsync_trt.export.denoise_step import DenoiseStep
from latentsync_trt.export.export_options import (
    EXPORT_EXTRA,
    EXPORT_TOOLS,
    ExportOptions,
    Sources,
    check_model,
    find_sources,
)
from latentsync_trt.export.graphs import OPSET, GraphPlan, build_graph, save_graph, verify_graph
from latentsync_trt.export.networks import VaeDecoder, VaeEncoder
from latentsync_trt.export.published import origin
from latentsync_trt.files import published_folder
from latentsync_trt.option_fields import RESOLUTION_STEP_PX
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.types import Progress, ProgressCallback

VERIFIED_PX = 128
"""The largest resolution at which graphs are compared: at 512 px a step's attention takes 34 GB on
the CPU.
"""

AUDIO_POSITIONS_PER_FRAME = 10
"""Features of the audio encoder that a frame attends to."""

_MOST_SEGMENTS = 8
"""The most segments of speech that the audio encoder of a dynamic bundle takes at once."""

_MOST_IMAGES = 4
"""The most images that the VAE takes at once. Its features of one 512 px image take half a gigabyte
in half precision, and more images are not faster.
"""

_LATENT_SIZE = (bundle.LATENT_HEIGHT, bundle.LATENT_WIDTH)

_SEED = 20
"""The seed of the example inputs that are random."""

_TYPICAL: Mapping[str, Any] = {
    "timestep": 501,
    "guidance": 1.5,
    "coefficients": (1.02, -0.31, 0.12, 1.4, -0.9),
}
"""Example inputs that are not random: all different and none zero, so that mixed-up inputs show."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}

GraphShapes = Mapping[str, tuple[int | str, ...]]
"""Dimensions by the name of a graph's input; a name stands for one that may vary between runs or
exports.
"""

Verify = Callable[[Path, GraphPlan], float]
"""Compares a graph with PyTorch; raises and returns as `verify_graph`."""


def export_bundle(options: ExportOptions, on_progress: ProgressCallback | None = None) -> Path:
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
    tools = bundle.tool_versions(EXPORT_TOOLS, extra=EXPORT_EXTRA)
    report = on_progress or (lambda _: None)
    bundle.check_target(options.folder)
    sources = find_sources(options)
    report(Progress("loading checkpoints", 0, 100))
    networks = load_networks(sources, options, _DTYPES[options.precision])
    described = _describe_sources(sources, options.model)
    check_model(options, sources.unet, described["unet"].get("origin", ""))
    plans = plan_graphs(networks, options)
    obstacles = cuda_obstacles(networks, options)
    verify = None
    if options.verify:
        verify = _make_verify(networks, sources, options)
    with published_folder(options.folder) as staged:
        graphs, errors = _write_graphs(staged, plans, obstacles, verify, report)
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
            ranges=_ranges_of(plans),
            sources=described,
            tools=tools,
            verification=errors,
            notes=tuple(_notes(obstacles, options)),
        )
        bundle.write_manifest(staged, manifest)
    report(Progress("done", 100, 100))
    return options.folder


def _ranges_of(plans: Sequence[GraphPlan]) -> dict[str, bundle.DimensionRange]:
    return {name: span for plan in plans for name, span in plan.ranges.items()}


def _notes(obstacles: Mapping[str, str | None], options: ExportOptions) -> list[str]:
    """Returns sentences about what the bundle lacks, for its manifest."""
    notes = []
    for name, reason in obstacles.items():
        if reason:
            notes.append(f"{name}: no graphs in the CUDA variant, as {reason}")
    if options.verify and options.resolution_px > VERIFIED_PX:
        notes.append(
            f"values were compared with PyTorch at {VERIFIED_PX} px, by graphs of the same networks"
        )
    return notes


def plan_graphs(networks: Networks, options: ExportOptions) -> list[GraphPlan]:
    """Returns the plans of all graphs of a bundle, network by network."""
    vae = networks.vae
    whisper = networks.whisper.config
    audio_encoder = bundle.AUDIO_ENCODER
    mel: GraphShapes = {"mel": ("segments", whisper.mels, 2 * whisper.positions)}
    image: GraphShapes = {"image": ("images", 3, bundle.HEIGHT, bundle.WIDTH)}
    latent: GraphShapes = {"latent": ("images", LATENT_CHANNELS, *_LATENT_SIZE)}
    return [
        _plan_graph(audio_encoder, audio_encoder, networks.whisper, mel, ("features",), options),
        _plan_graph(bundle.VAE_ENCODER, "vae", VaeEncoder(vae), image, ("latent",), options),
        _plan_graph(bundle.VAE_DECODER, "vae", VaeDecoder(vae), latent, ("image",), options),
        *_plan_steps(networks, options),
    ]


def _plan_steps(networks: Networks, options: ExportOptions) -> list[GraphPlan]:
    unet = networks.unet
    step = _step_shapes(networks, options.frames)
    plans = []
    for guided, cached in product((True, False), (False, True)):
        shapes = step
        outputs: tuple[str, ...] = (*bundle.STEP_OUTPUTS, bundle.HIDDEN)
        if cached:
            halves = 2 if guided else 1
            hidden = (halves, "windows", options.frames, unet.config.widths[0], *_LATENT_SIZE)
            shapes = {**step, bundle.HIDDEN: hidden}
            outputs = bundle.STEP_OUTPUTS
        module = DenoiseStep(unet, guided=guided, cached=cached)
        name = bundle.step_graph(guided=guided, cached=cached)
        plans.append(_plan_graph(name, "unet", module, shapes, outputs, options))
    return plans


def _step_shapes(networks: Networks, frames: int) -> GraphShapes:
    """Returns the inputs of a full step."""
    whisper = networks.whisper.config
    conditioning_channels = networks.unet.conv_in.in_channels - LATENT_CHANNELS
    latents = ("windows", LATENT_CHANNELS, frames, *_LATENT_SIZE)
    return {
        "latents": latents,
        "conditioning": ("windows", conditioning_channels, frames, *_LATENT_SIZE),
        "audio": ("windows", frames, AUDIO_POSITIONS_PER_FRAME * whisper.layers, whisper.width),
        "timestep": (),
        "guidance": (),
        "history": latents,
        "coefficients": (5,),
    }


def cuda_obstacles(networks: Networks, options: ExportOptions) -> dict[str, str | None]:
    """Returns why networks have no CUDA variant, None for those that get one; empty if none was
    asked for.

    The audio encoder is not among them: it runs only once per 30 s of speech.
    """
    if not options.cuda_form:
        return {}
    if options.dynamic:
        return dict.fromkeys(("unet", "vae"), "shapes vary")
    return {"unet": obstacle(networks.unet), "vae": obstacle(networks.vae)}


def _plan_graph(
    name: str,
    network: str,
    module: nn.Module,
    shapes: GraphShapes,
    outputs: tuple[str, ...],
    options: ExportOptions,
) -> GraphPlan:
    """Returns the plan of a graph.

    Args:
        shapes: the first dimension of the first input counts windows, images or segments.
    """
    batch = str(next(iter(shapes.values()))[0])
    counts = _batch_range(batch, options)
    examples = partial(_examples, shapes, batch, _DTYPES[options.precision])
    most = options.resolution_px
    if not options.dynamic:
        return GraphPlan(name, network, module, examples(counts.optimum, most), outputs)
    sizes = _size_ranges(shapes, options)
    ranges = {batch: counts} | sizes
    dynamic = _variable_axes(shapes, ranges)
    verified_px = _verified_px(options) if sizes else [most]
    further = tuple(examples(1, size_px) for size_px in verified_px)
    return GraphPlan(name, network, module, examples(2, most), outputs, dynamic, ranges, further)


def _variable_axes(
    shapes: GraphShapes, ranges: Mapping[str, bundle.DimensionRange]
) -> dict[str, dict[int, str]]:
    """Returns the names of variable dimensions, by input and axis."""
    dynamic = {}
    for name, shape in shapes.items():
        dynamic[name] = {axis: str(size) for axis, size in enumerate(shape) if size in ranges}
    return dynamic


def _verified_px(options: ExportOptions) -> list[int]:
    """Returns the smallest, a middle and the largest resolution."""
    least = options.min_resolution_px
    most = options.resolution_px
    middle = least + (most - least) // 2 // RESOLUTION_STEP_PX * RESOLUTION_STEP_PX
    return sorted({least, middle, most})


def _batch_range(name: str, options: ExportOptions) -> bundle.DimensionRange:
    """Returns how many windows, images or segments a graph takes at once."""
    if name == "segments":
        return bundle.DimensionRange(1, 1, _MOST_SEGMENTS)
    if name == "windows":
        return bundle.DimensionRange(1, 1, options.max_windows)
    divisors = [count for count in range(1, _MOST_IMAGES + 1) if options.frames % count == 0]
    return bundle.DimensionRange(1, divisors[-1], _MOST_IMAGES)


def _size_ranges(shapes: GraphShapes, options: ExportOptions) -> dict[str, bundle.DimensionRange]:
    """Returns the heights and widths of inputs; none if the resolution is fixed."""
    steps = [options.min_resolution_px // RESOLUTION_STEP_PX]
    steps += [options.resolution_px // RESOLUTION_STEP_PX] * 2
    ranges = {}
    if steps[0] < steps[1]:
        for name, step in bundle.SIZE_STEPS.items():
            if any(name in shape for shape in shapes.values()):
                ranges[name] = bundle.DimensionRange(*[step * count for count in steps])
    return ranges


def _examples(
    shapes: GraphShapes, batch: str, dtype: torch.dtype, count: int, size_px: int
) -> dict[str, Tensor]:
    """Returns example inputs: `count` windows, images or segments, of faces of `size_px`."""
    sizes: dict[int | str, int] = {batch: count}
    for name, step in bundle.SIZE_STEPS.items():
        sizes[name] = size_px * step // RESOLUTION_STEP_PX
    inputs = {}
    for name, shape in shapes.items():
        lengths = [sizes.get(size, size) for size in shape]
        inputs[name] = _example(name, lengths, dtype)
    return inputs


def _example(name: str, shape: Sequence[Any], dtype: torch.dtype) -> Tensor:
    if name in _TYPICAL:
        return torch.tensor(_TYPICAL[name])
    generator = torch.Generator().manual_seed(_SEED + len(shape))
    value = torch.randn(*shape, generator=generator)
    if name == "image":
        return value.tanh()
    if name == bundle.HIDDEN:
        return value.to(dtype)
    return value


def _write_graphs(
    folder: Path,
    plans: Sequence[GraphPlan],
    obstacles: Mapping[str, str | None],
    verify: Verify | None,
    report: ProgressCallback,
) -> tuple[dict[str, bundle.GraphEntry], dict[str, float]]:
    """Writes all graphs, those of networks without an obstacle in the CUDA form, too; returns their
    entries in the manifest and, if they are verified, their errors.
    """
    entries: dict[str, bundle.GraphEntry] = {}
    errors: dict[str, float] = {}
    weights: dict[str, WeightsFile] = {}
    for number, plan in enumerate(plans):
        if plan.network not in weights:
            weights[plan.network] = WeightsFile(folder / f"{plan.network}.weights")
        file = weights[plan.network]
        percent = round(100 * number / len(plans))
        place = f"{plan.name} ({number + 1} of {len(plans)})"
        report(Progress(f"exporting {place}", percent, 100))
        entry = save_graph(build_graph(plan), folder / f"{plan.name}.onnx", file)
        if obstacles.get(plan.network, "") is None:
            model = build_graph(plan, cuda_module(plan.module))
            form = save_graph(model, folder / f"{plan.name}.cuda.onnx", file)
            entry = replace(entry, forms={"cuda": form.file})
        entries[plan.name] = entry
        if verify is not None:
            report(Progress(f"verifying {place}", percent, 100))
            errors[plan.name] = verify(folder / entry.file, plan)
    return entries, errors


def _make_verify(networks: Networks, sources: Sources, options: ExportOptions) -> Verify:
    """Returns what compares a graph with PyTorch.

    Large graphs are compared by another one of the same network at `VERIFIED_PX`.
    """
    exact = networks
    if options.precision == "fp16":
        exact = load_networks(sources, options, torch.float32)
    is_large = options.resolution_px > VERIFIED_PX
    if is_large:
        least_px = options.min_resolution and VERIFIED_PX // 2
        options = replace(options, resolution=VERIFIED_PX, min_resolution=least_px)
    plans = {plan.name: plan for plan in plan_graphs(networks, options)}
    truths = {plan.name: plan.module for plan in plan_graphs(exact, options)}

    def verify(path: Path, plan: GraphPlan) -> float:
        compared = plans[plan.name]
        truth = truths[plan.name]
        if not is_large:
            return verify_graph(path, compared, truth, options.precision)
        Session(path)  # raises if it cannot be loaded
        with tempfile.TemporaryDirectory(dir=path.parent.parent) as folder:
            graph = Path(folder) / path.name
            weights = WeightsFile(graph.with_suffix(".weights"))
            save_graph(build_graph(compared), graph, weights)
            return verify_graph(graph, compared, truth, options.precision)

    return verify


def _describe_sources(sources: Sources, model: str) -> dict[str, dict[str, str]]:
    return {role: _describe_source(path, model) for role, path in asdict(sources).items()}


def _describe_source(source: Path, model: str) -> dict[str, str]:
    """Returns name, hash and origin of a source: of the file itself, or of the largest file in a
    VAE's folder.
    """
    weights = source
    if source.is_dir():
        files = [path for path in source.iterdir() if path.is_file()]
        weights = max(files, key=lambda path: path.stat().st_size)
    sha256 = bundle.sha256_file(weights)
    described = {"name": source.name, "sha256": sha256}
    published_at = origin(sha256, model)
    if published_at:
        described["origin"] = published_at
    return described
