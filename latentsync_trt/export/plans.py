"""The networks of a bundle and the graphs that are exported from them, with example inputs for verification."""

from collections.abc import Callable, Mapping
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
from latentsync_trt.export.checkpoint import LoadedUNet, load_unet, load_whisper
from latentsync_trt.export.cuda_ops import norm_obstacle
from latentsync_trt.export.cuda_unet import CudaUNet
from latentsync_trt.export.cuda_vae import CudaDecoder, CudaEncoder, PointwiseConv, vae_obstacle
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.export.options import ExportOptions, Sources
from latentsync_trt.export.step import DenoiseStep
from latentsync_trt.export.unet import INPUT_CHANNELS, LATENT_CHANNELS, shallow_copy
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


@dataclass(frozen=True, slots=True)
class Networks:
    """The three networks in one precision."""

    unet: LoadedUNet
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
    config = unet.network.config
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
    plans = [
        _audio_plan(networks.whisper, options),
        *_vae_plans(networks.vae, options),
        *(
            _step_plan(networks, options, guided=guided, cached=cached)
            for guided in (True, False)
            for cached in (False, True)
        ),
    ]
    plans = [replace(plan, attention=options.attention) for plan in plans]
    if not options.cuda_form:
        return plans
    formed = _CUDA_NETWORKS - cuda_obstacles(networks, options).keys()
    return [replace(plan, cuda_module=cuda_module(plan.module)) if plan.network in formed else plan for plan in plans]


def cuda_obstacles(networks: Networks, options: ExportOptions) -> dict[str, str]:
    """Why networks of `_CUDA_NETWORKS` have no CUDA form, by network."""
    if options.dynamic:
        return dict.fromkeys(sorted(_CUDA_NETWORKS), "shapes vary")
    found = {"vae": vae_obstacle(networks.vae), "unet": norm_obstacle(networks.unet.network)}
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
    def example(count: int) -> Inputs:
        return {"mel": _random(count, whisper.config.mels, 2 * whisper.config.positions)}

    static = GraphPlan(AUDIO_ENCODER, AUDIO_ENCODER, whisper, example(1), ("features",))
    return _batched(static, example, ("segments",), {"segments": DimensionRange(1, 1, _MOST_SEGMENTS)}, options)


def _vae_plans(vae: Any, options: ExportOptions) -> list[GraphPlan]:
    # The largest divisor of a window that is not above `_MOST_IMAGES`.
    at_once = max(count for count in range(1, _MOST_IMAGES + 1) if options.frames % count == 0)
    ranges = {"images": DimensionRange(1, at_once, _MOST_IMAGES)} | _size_ranges(options)

    def image(count: int, size_px: int = options.resolution_px) -> Inputs:
        return {"image": _random(count, 3, size_px, size_px).tanh()}

    def latent(count: int, size_px: int = options.resolution_px) -> Inputs:
        return {"latent": _random(count, LATENT_CHANNELS, *[size_px // PIXELS_PER_LATENT] * 2)}

    encoder = GraphPlan(VAE_ENCODER, "vae", VaeEncoder(vae), image(at_once), ("latent",))
    decoder = GraphPlan(VAE_DECODER, "vae", VaeDecoder(vae), latent(at_once), ("image",))
    return [
        _batched(encoder, image, ("images", "", HEIGHT, WIDTH), ranges, options),
        _batched(decoder, latent, ("images", "", LATENT_HEIGHT, LATENT_WIDTH), ranges, options),
    ]


def _batched(
    static: GraphPlan,
    example: Callable[..., Inputs],
    names: tuple[str, ...],
    ranges: dict[str, DimensionRange],
    options: ExportOptions,
) -> GraphPlan:
    """With `--dynamic`, the plan with variable axes of its one input; `names` and `ranges` as for `_axes`."""
    if not options.dynamic:
        return static
    axes = dict.fromkeys(static.inputs, _axes(ranges, *names))
    others = _other_sizes_px(options) if HEIGHT in ranges else ()
    further = (example(1), example(3), *(example(1, size_px) for size_px in others))
    return replace(static, inputs=example(2), dynamic=axes, ranges=ranges, further_inputs=further)


def _axes(ranges: Mapping[str, DimensionRange], *names: str) -> dict[int, str]:
    """Axis → name of its dimension, for those in `ranges`."""
    return {axis: name for axis, name in enumerate(names) if name in ranges}


def _size_ranges(options: ExportOptions) -> dict[str, DimensionRange]:
    """Ranges of heights and widths; empty with one resolution."""
    least, most = (size_px // RESOLUTION_STEP_PX for size_px in (options.min_resolution_px, options.resolution_px))
    if least == most:
        return {}
    return {name: DimensionRange(least * step, most * step, most * step) for name, step in SIZE_STEPS.items()}


def _other_sizes_px(options: ExportOptions) -> tuple[int, ...]:
    """Resolutions to verify beside the largest: the smallest and one between."""
    least, most = options.min_resolution_px, options.resolution_px
    middle = least + (most - least) // 2 // RESOLUTION_STEP_PX * RESOLUTION_STEP_PX
    return tuple(dict.fromkeys(size_px for size_px in (least, middle) if size_px < most))


def _step_plan(networks: Networks, options: ExportOptions, *, guided: bool, cached: bool) -> GraphPlan:
    unet = networks.unet.network
    module = DenoiseStep(unet, guided=guided, cached=cached)
    outputs = STEP_OUTPUTS if cached else (*STEP_OUTPUTS, HIDDEN)

    def example(windows: int, size_px: int = options.resolution_px) -> Inputs:
        inputs = _step_inputs(networks, windows, options.frames, size_px // PIXELS_PER_LATENT)
        if cached:
            size = inputs["latents"].shape[3:]
            hidden = _random(2 if guided else 1, windows, options.frames, unet.config.widths[0], *size)
            inputs[HIDDEN] = hidden.to(unet.conv_in.weight.dtype)
        return inputs

    static = GraphPlan(step_graph(guided=guided, cached=cached), "unet", module, example(1), outputs)
    if not options.dynamic:
        return static
    ranges = _size_ranges(options) | {"windows": DimensionRange(1, 1, options.max_windows)}
    latent_axes = _axes(ranges, "windows", "", "", LATENT_HEIGHT, LATENT_WIDTH)
    axes = dict.fromkeys(("latents", "conditioning", "history"), latent_axes)
    axes["audio"] = _axes(ranges, "windows")
    if cached:
        axes[HIDDEN] = _axes(ranges, "", "windows", "", "", LATENT_HEIGHT, LATENT_WIDTH)
    others = (example(1, size_px=size_px) for size_px in _other_sizes_px(options))
    further = (example(1), *others)
    return replace(static, inputs=example(2), dynamic=axes, ranges=ranges, further_inputs=further)


def _step_inputs(networks: Networks, windows: int, frames: int, latent_px: int) -> Inputs:
    """Seeded random inputs of a denoising step, in the graph's order."""
    size = (frames, latent_px, latent_px)
    whisper = networks.whisper.config
    values = (
        _random(windows, LATENT_CHANNELS, *size),
        _random(windows, INPUT_CHANNELS - LATENT_CHANNELS, *size),
        _random(windows, frames, AUDIO_POSITIONS_PER_FRAME * whisper.layers, whisper.width),
        torch.tensor(_TIMESTEP),
        torch.tensor(_GUIDANCE),
        _random(windows, LATENT_CHANNELS, *size),
        torch.tensor(_COEFFICIENTS),
    )
    return dict(zip(STEP_INPUTS, values, strict=True))


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(_SEED + len(shape)))
