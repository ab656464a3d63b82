"""Which graphs a bundle has, with example inputs of every size that is verified."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from latentsync_trt.bundle.manifest import DimensionRange
from latentsync_trt.errors import CheckpointError, InputError
from latentsync_trt.export.checkpoint import LoadedUNet, load_unet, load_whisper
from latentsync_trt.export.cuda_form import CudaForm
from latentsync_trt.export.cuda_unet import CudaUNet, unet_obstacle
from latentsync_trt.export.cuda_vae import CudaDecoder, CudaEncoder, PixelProduct, vae_obstacle
from latentsync_trt.export.graphs import GraphPlan
from latentsync_trt.export.options import FEWEST_FRAMES, ExportOptions, Sources
from latentsync_trt.export.step import HIDDEN, INPUTS, OUTPUTS, CachedDenoiseStep, DenoiseStep
from latentsync_trt.export.unet import INPUT_CHANNELS, LATENT_CHANNELS, UNet
from latentsync_trt.export.vae import PIXELS_PER_LATENT, VaeDecoder, VaeEncoder, load_vae
from latentsync_trt.export.vae_pictures import trial_pictures
from latentsync_trt.export.vae_range import LIMIT, keep_wide, largest_values
from latentsync_trt.export.whisper import WhisperConfig, WhisperEncoder

AUDIO_POSITIONS_PER_FRAME = 10
_MOST_SEGMENTS = 8

# The VAE's features of one image at 512 px take half a gigabyte in half precision; more images at once are not faster.
_MOST_IMAGES = 4

_TRIAL_PX = 128
"""At most, the side of the pictures that show how far a VAE's values reach: on all of them the published VAE takes 20 s
of a CPU core and 0.9 GB, at 512 px sixteen times as much. What is largest depends little on the size, since
convolutions see a few pixels and norms divide by what is usual in a picture; `HEADROOM` covers what it does."""

# The audio encoder runs once in 30 s of speech.
_CUDA_NETWORKS = frozenset({"vae", "unet"})

_SEED = 20
_TIMESTEP = 501
_GUIDANCE = 1.5
_COEFFICIENTS = (1.02, -0.31, 0.12, 1.4, -0.9)
"""Of a usual step's size, and all different and not zero, so that a mix-up shows."""

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Networks:
    """The three networks in one precision, but for the parts of the VAE named in `wide`, which are in float32: the
    largest values in them are more than half precision may hold."""

    unet: LoadedUNet
    vae: Any
    whisper: WhisperEncoder
    wide: Mapping[str, float] = field(default_factory=dict)


def load_networks(sources: Sources, options: ExportOptions, dtype: torch.dtype) -> Networks:
    """Reads all checkpoints, the small ones first, and sees that they fit together.

    Raises:
        CheckpointError: one of them cannot be used, or the audio encoder's width is not the U-Net's.
        InputError: more frames than the U-Net knows positions for.
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


def answer_overflow(networks: Networks, sources: Sources, options: ExportOptions) -> Networks:
    """Half precision `networks`; the VAE's parts whose values come near float16's end are in float32, from the source.

    Raises:
        CheckpointError: the VAE gives values that are not finite in float32 either.
    """
    vae = load_vae(sources.vae, torch.float32)
    pictures = trial_pictures(min(_TRIAL_PX, options.resolution_px))
    wide = {name: value for name, value in largest_values(vae, pictures.values()).items() if value > LIMIT}
    if not wide:
        return networks
    if not all(map(math.isfinite, wide.values())):
        raise CheckpointError(f"{sources.vae}: gives values that are not finite, in float32; the weights are damaged")
    keep_wide(vae, wide)
    return replace(networks, vae=vae, wide=wide)


def plan_graphs(networks: Networks, options: ExportOptions) -> list[GraphPlan]:
    """All graphs of a bundle, network by network."""
    portable = [
        _audio_plan(networks.whisper, options),
        *_vae_plans(networks.vae, options),
        *_step_plans(networks, options),
    ]
    plans = [replace(plan, attention=options.attention) for plan in portable]
    if not options.cuda_form:
        return plans
    faster = _CUDA_NETWORKS - cuda_obstacles(networks, options).keys()
    return [
        replace(plan, cuda_module=cuda_module(plan.module, CudaForm())) if plan.network in faster else plan
        for plan in plans
    ]


def cuda_obstacles(networks: Networks, options: ExportOptions) -> dict[str, str]:
    """Why networks that could have a CUDA form have none, by network."""
    if options.dynamic:
        return dict.fromkeys(sorted(_CUDA_NETWORKS), "shapes vary")
    mixed = "parts of it are in float32" if networks.wide else None
    found = {"vae": vae_obstacle(networks.vae) or mixed, "unet": unet_obstacle(networks.unet.network)}
    return {network: reason for network, reason in found.items() if reason is not None}


def cuda_module(module: torch.nn.Module, form: CudaForm) -> torch.nn.Module:
    """The module of a plan in the CUDA form; it shares the parameters."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    if isinstance(made, DenoiseStep):
        made.unet = CudaUNet(made.unet, form)
    elif isinstance(made, VaeEncoder):
        made.encoder = CudaEncoder(made.encoder, form)
        made.quant_conv = made.quant_conv and PixelProduct(made.quant_conv)
    elif isinstance(made, VaeDecoder):
        made.decoder = CudaDecoder(made.decoder, form)
        made.post_quant_conv = made.post_quant_conv and PixelProduct(made.post_quant_conv)
    return made


def _audio_plan(whisper: WhisperEncoder, options: ExportOptions) -> GraphPlan:
    config = whisper.config

    def example(count: int) -> Inputs:
        return {"mel": _random(count, config.mels, 2 * config.positions)}

    spans = {"segments": DimensionRange(1, 1, _MOST_SEGMENTS)} if options.dynamic else {}
    return _batched("audio_encoder", "audio_encoder", whisper, example, "features", spans, static_count=1)


def _vae_plans(vae: Any, options: ExportOptions) -> list[GraphPlan]:
    size_px = options.resolution_px
    latent_px = size_px // PIXELS_PER_LATENT
    usual = _images_at_once(options.frames)
    spans = {"images": DimensionRange(1, usual, _MOST_IMAGES)}

    def image(count: int) -> Inputs:
        return {"image": _random(count, 3, size_px, size_px).tanh()}

    def latent(count: int) -> Inputs:
        return {"latent": _random(count, LATENT_CHANNELS, latent_px, latent_px)}

    used = spans if options.dynamic else {}
    return [
        _batched("vae_encoder", "vae", VaeEncoder(vae), image, "latent", used, static_count=usual),
        _batched("vae_decoder", "vae", VaeDecoder(vae), latent, "image", used, static_count=usual),
    ]


def _images_at_once(frames: int) -> int:
    """The largest part of a window that is no more than `_MOST_IMAGES`, so that windows divide without a rest."""
    return max(count for count in range(1, _MOST_IMAGES + 1) if frames % count == 0)


def _batched(
    name: str,
    network: str,
    module: torch.nn.Module,
    example: Callable[[int], Inputs],
    output: str,
    ranges: Mapping[str, DimensionRange],
    *,
    static_count: int,
) -> GraphPlan:
    """A graph of one input whose first axis may vary."""
    if not ranges:
        return GraphPlan(name, network, module, example(static_count), (output,))
    (dimension,) = ranges
    dynamic = {next(iter(example(1))): {0: dimension}}
    return GraphPlan(name, network, module, example(2), (output,), dynamic, ranges, (example(1), example(3)))


def _step_plans(networks: Networks, options: ExportOptions) -> list[GraphPlan]:
    unet = networks.unet.network
    return [
        _step_plan(unet, networks.whisper.config, options, guided=guided, cached=cached)
        for guided in (True, False)
        for cached in (False, True)
    ]


def _step_plan(unet: UNet, whisper: WhisperConfig, options: ExportOptions, *, guided: bool, cached: bool) -> GraphPlan:
    module = (CachedDenoiseStep if cached else DenoiseStep)(unet, guided=guided)
    name = f"denoise_step{'' if guided else '_unguided'}{'_cached' if cached else ''}"

    def example(windows: int, frames: int = options.frames) -> Inputs:
        inputs = step_inputs(windows, frames, options, unet, whisper, halves=2 if guided else 1)
        return inputs if cached else {key: inputs[key] for key in INPUTS}

    outputs = OUTPUTS if cached else (*OUTPUTS, HIDDEN)
    if not options.dynamic:
        return GraphPlan(name, "unet", module, example(1), outputs)
    axes = {key: {0: "windows", 2: "frames"} for key in ("latents", "conditioning", "history")}
    axes["audio"] = {0: "windows", 1: "frames"}
    if cached:
        axes[HIDDEN] = {1: "windows", 2: "frames"}
    ranges = {
        "windows": DimensionRange(1, 1, options.max_windows),
        "frames": DimensionRange(FEWEST_FRAMES, options.frames, unet.config.positions),
    }
    another = options.frames + (1 if options.frames < unet.config.positions else -1)
    further = (example(1), example(1, another), example(1, FEWEST_FRAMES))
    return GraphPlan(name, "unet", module, example(2), outputs, axes, ranges, further)


def step_inputs(
    windows: int, frames: int, options: ExportOptions, unet: UNet, whisper: WhisperConfig, *, halves: int
) -> Inputs:
    """Seeded inputs of a denoising step, in the graph's order, `hidden` last."""
    size = (frames, *[options.resolution_px // PIXELS_PER_LATENT] * 2)
    tokens = AUDIO_POSITIONS_PER_FRAME * whisper.layers
    values = (
        _random(windows, LATENT_CHANNELS, *size),
        _random(windows, INPUT_CHANNELS - LATENT_CHANNELS, *size),
        _random(windows, frames, tokens, whisper.width),
        torch.tensor(_TIMESTEP),
        torch.tensor(_GUIDANCE),
        _random(windows, LATENT_CHANNELS, *size),
        torch.tensor(_COEFFICIENTS),
    )
    hidden_width = unet.config.widths[0]
    hidden = _random(halves, windows, *size[:1], hidden_width, *size[1:]).to(unet.conv_in.weight.dtype)
    return {**dict(zip(INPUTS, values, strict=True)), HIDDEN: hidden}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(_SEED + len(shape)))


def source_file(path: Path) -> Path:
    """The file that holds the weights of a source: itself, or the largest of a VAE's folder."""
    if path.is_file():
        return path
    return max((file for file in path.iterdir() if file.is_file()), key=lambda file: file.stat().st_size)
