"""The networks of a bundle and the graphs that are exported from them, with example inputs for verification."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    HEIGHT,
    HIDDEN,
    LATENT_HEIGHT,
    LATENT_WIDTH,
    PIXELS_PER_LATENT,
    SIZE_STEPS,
    STEP_INPUTS,
    STEP_OUTPUTS,
    VAE_DECODER,
    VAE_ENCODER,
    WIDTH,
    DimensionRange,
    step_graph,
)
from latentsync_trt.errors import CheckpointError, InputError
from latentsync_trt.export.checkpoint import load_unet, load_whisper
from latentsync_trt.export.cuda_networks import CudaDecoder, CudaEncoder, CudaUNet, PointwiseConv, vae_obstacle
from latentsync_trt.export.cuda_ops import norm_obstacle
from latentsync_trt.export.export_options import ExportOptions, Sources
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.export.unet import INPUT_CHANNELS, LATENT_CHANNELS, DenoiseStep, UNet, shallow_copy
from latentsync_trt.export.vae import VaeDecoder, VaeEncoder, load_vae
from latentsync_trt.export.whisper import WhisperEncoder
from latentsync_trt.values import RESOLUTION_STEP_PX

AUDIO_POSITIONS_PER_FRAME = 10
_MOST_SEGMENTS = 8

# The audio encoder is not among them: it runs only once per 30 s of speech.
_CUDA_NETWORKS = frozenset({"unet", "vae"})

# The VAE's features of one 512 px image take half a gigabyte in half precision; batches of more are not faster.
_MOST_IMAGES = 4

_SEED = 20
_TIMESTEP = 501
_GUIDANCE = 1.5
_COEFFICIENTS = (1.02, -0.31, 0.12, 1.4, -0.9)
"""Typical values, all different and none zero, so that mixed-up inputs show."""

Inputs = dict[str, Tensor]
Example = Callable[[int, int], Inputs]
"""Inputs for a number of windows, images or segments, and a resolution in pixels."""


@dataclass(frozen=True, slots=True)
class Networks:
    """The three networks in one precision."""

    unet: UNet
    vae: Any
    whisper: WhisperEncoder


def load_networks(sources: Sources, options: ExportOptions, dtype: torch.dtype) -> Networks:
    """Reads all checkpoints, small ones first, and checks that they fit together.

    Raises:
        CheckpointError: one of them cannot be used, or the audio encoder's width is not the U-Net's.
        InputError: there are more frames than the U-Net has positions.
    """
    whisper = load_whisper(sources.whisper, dtype)
    vae = load_vae(sources.vae, dtype)
    unet = load_unet(sources.unet, dtype)
    config = unet.config
    if config.audio_width != whisper.config.width:
        raise CheckpointError(
            f"{sources.whisper}: gives features {whisper.config.width} wide, but {sources.unet} was trained for "
            f"{config.audio_width} (384 goes with Whisper tiny, 768 with small)"
        )
    if options.frames > config.positions:
        raise InputError(f"--frames {options.frames}: {sources.unet} knows windows of up to {config.positions} frames")
    return Networks(unet, vae, whisper)


def plan_graphs(networks: Networks, options: ExportOptions) -> list[GraphPlan]:
    """All graphs of a bundle, network by network."""
    plans = [_audio_plan(networks.whisper, options), *_vae_plans(networks.vae, options)]
    plans += [
        _step_plan(networks, options, guided=guided, cached=cached)
        for guided in (True, False)
        for cached in (False, True)
    ]
    if not options.cuda_form:
        return plans
    formed = _CUDA_NETWORKS - cuda_obstacles(networks, options).keys()
    return [replace(plan, cuda_module=cuda_module(plan.module)) if plan.network in formed else plan for plan in plans]


def cuda_obstacles(networks: Networks, options: ExportOptions) -> dict[str, str]:
    """Why networks of `_CUDA_NETWORKS` have no CUDA form, by network."""
    if options.dynamic:
        return dict.fromkeys(sorted(_CUDA_NETWORKS), "shapes vary")
    found = {"vae": vae_obstacle(networks.vae), "unet": norm_obstacle(networks.unet)}
    return {network: reason for network, reason in found.items() if reason is not None}


def cuda_module(module: nn.Module) -> nn.Module:
    """The CUDA form of a plan's module; it shares the parameters."""
    made: Any = shallow_copy(module)
    if isinstance(module, DenoiseStep):
        made.unet = CudaUNet(made.unet)
    elif isinstance(module, VaeEncoder):
        made.encoder = CudaEncoder(made.encoder)
        made.quant_conv = made.quant_conv and PointwiseConv(made.quant_conv)
    elif isinstance(module, VaeDecoder):
        made.decoder = CudaDecoder(made.decoder)
        made.post_quant_conv = made.post_quant_conv and PointwiseConv(made.post_quant_conv)
    return made


def _audio_plan(whisper: WhisperEncoder, options: ExportOptions) -> GraphPlan:
    def example(count: int, _: int) -> Inputs:
        return {"mel": _random(count, whisper.config.mels, 2 * whisper.config.positions)}

    plan = GraphPlan(AUDIO_ENCODER, AUDIO_ENCODER, whisper, {}, ("features",))
    ranges = {"segments": DimensionRange(1, 1, _MOST_SEGMENTS)}
    return _with_inputs(plan, example, {"mel": ("segments",)}, ranges, options)


def _vae_plans(vae: Any, options: ExportOptions) -> Iterator[GraphPlan]:
    # The largest divisor of a window that is not above `_MOST_IMAGES`.
    at_once = max(count for count in range(1, _MOST_IMAGES + 1) if options.frames % count == 0)
    ranges = {"images": DimensionRange(1, at_once, _MOST_IMAGES)} | _size_ranges(options)

    def image(count: int, size_px: int) -> Inputs:
        return {"image": _random(count, 3, size_px, size_px).tanh()}

    def latent(count: int, size_px: int) -> Inputs:
        return {"latent": _random(count, LATENT_CHANNELS, *[size_px // PIXELS_PER_LATENT] * 2)}

    encoder = GraphPlan(VAE_ENCODER, "vae", VaeEncoder(vae), {}, ("latent",))
    axes = {"image": ("images", "", HEIGHT, WIDTH)}
    yield _with_inputs(encoder, image, axes, ranges, options, at_once)
    decoder = GraphPlan(VAE_DECODER, "vae", VaeDecoder(vae), {}, ("image",))
    axes = {"latent": ("images", "", LATENT_HEIGHT, LATENT_WIDTH)}
    yield _with_inputs(decoder, latent, axes, ranges, options, at_once)


def _step_plan(networks: Networks, options: ExportOptions, *, guided: bool, cached: bool) -> GraphPlan:
    unet, whisper, frames = networks.unet, networks.whisper.config, options.frames

    def example(windows: int, size_px: int) -> Inputs:
        size = (frames, *[size_px // PIXELS_PER_LATENT] * 2)
        values = (
            _random(windows, LATENT_CHANNELS, *size),
            _random(windows, INPUT_CHANNELS - LATENT_CHANNELS, *size),
            _random(windows, frames, AUDIO_POSITIONS_PER_FRAME * whisper.layers, whisper.width),
            torch.tensor(_TIMESTEP),
            torch.tensor(_GUIDANCE),
            _random(windows, LATENT_CHANNELS, *size),
            torch.tensor(_COEFFICIENTS),
        )
        inputs = dict(zip(STEP_INPUTS, values, strict=True))
        if cached:
            hidden = _random(2 if guided else 1, windows, frames, unet.config.widths[0], *size[1:])
            inputs[HIDDEN] = hidden.to(unet.conv_in.weight.dtype)
        return inputs

    latents = ("windows", "", "", LATENT_HEIGHT, LATENT_WIDTH)
    axes = {"latents": latents, "conditioning": latents, "history": latents, "audio": ("windows",)}
    if cached:
        axes[HIDDEN] = ("", "windows", "", "", LATENT_HEIGHT, LATENT_WIDTH)
    ranges = _size_ranges(options) | {"windows": DimensionRange(1, 1, options.max_windows)}
    module = DenoiseStep(unet, guided=guided, cached=cached)
    outputs = STEP_OUTPUTS if cached else (*STEP_OUTPUTS, HIDDEN)
    plan = GraphPlan(step_graph(guided=guided, cached=cached), "unet", module, {}, outputs)
    return _with_inputs(plan, example, axes, ranges, options)


def _with_inputs(
    plan: GraphPlan,
    example: Example,
    axes: Mapping[str, tuple[str, ...]],
    ranges: Mapping[str, DimensionRange],
    options: ExportOptions,
    count: int = 1,
) -> GraphPlan:
    """The plan with example inputs and, for `--dynamic`, with variable dimensions.

    `axes`: input → names of its dimensions, of which those in `ranges` vary. `count`: for fixed shapes.
    """
    plan = replace(plan, attention=options.attention)
    least, most = options.min_resolution_px, options.resolution_px
    if not options.dynamic:
        return replace(plan, inputs=example(count, most))
    middle = least + (most - least) // 2 // RESOLUTION_STEP_PX * RESOLUTION_STEP_PX
    sizes_px = [most, *({least, middle} - {most} if SIZE_STEPS.keys() & ranges.keys() else ())]
    return replace(
        plan,
        inputs=example(2, most),
        further_inputs=tuple(example(1, size_px) for size_px in sizes_px),
        dynamic={
            name: {axis: dimension for axis, dimension in enumerate(dimensions) if dimension in ranges}
            for name, dimensions in axes.items()
        },
        ranges=ranges,
    )


def _size_ranges(options: ExportOptions) -> dict[str, DimensionRange]:
    """Ranges of heights and widths; empty with one resolution."""
    least, most = (size_px // RESOLUTION_STEP_PX for size_px in (options.min_resolution_px, options.resolution_px))
    if least == most:
        return {}
    return {name: DimensionRange(least * step, most * step, most * step) for name, step in SIZE_STEPS.items()}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(_SEED + len(shape)))
