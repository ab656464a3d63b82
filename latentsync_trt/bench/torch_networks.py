"""The networks of a bundle as PyTorch modules of the same shapes, with random weights: only time comes of them."""

import logging
import math
import re
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import nn

from latentsync_trt.bench.onnx_file import OnnxGraph, read_graph
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.errors import BundleError
from latentsync_trt.export.step import CachedDenoiseStep, DenoiseStep
from latentsync_trt.export.unet import UNet, UNetConfig
from latentsync_trt.export.vae import ImageAttention, VaeDecoder, VaeEncoder

_SEED = 11
_SMALL = 0.1
_RESNET = re.compile(r"encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.conv1\.weight")


def build_modules(bundle: Bundle, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Module]:
    """Modules by the names of their graphs: the guided steps, and the image codec.

    Raises:
        BundleError: the graphs are of other networks than this version exports.
    """
    unet = UNet(_unet_config(bundle)) if device.type == "cpu" else _on(device, bundle)
    # It warns of what `ImageAttention` has no use for, whenever a compiler looks at it.
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    vae = _vae(bundle)
    vae.set_attn_processor(ImageAttention())
    for network in (unet, vae):
        # Not diffusers' own `to`, which warns of layers to keep in float32 where there are none.
        nn.Module.to(network, device=device, dtype=dtype).eval().requires_grad_(False)
        _randomize(network)
    return {
        "denoise_step": DenoiseStep(unet, guided=True),
        "denoise_step_cached": CachedDenoiseStep(unet, guided=True),
        "vae_encoder": VaeEncoder(vae),
        "vae_decoder": VaeDecoder(vae),
    }


def _on(device: torch.device, bundle: Bundle) -> UNet:
    """The U-Net made on the device at once: 1.3 billion parameters take long to copy."""
    with device:
        return UNet(_unet_config(bundle))


def _unet_config(bundle: Bundle) -> UNetConfig:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | tuple) else value for name, value in bundle.manifest.unet.items()
    }
    try:
        return UNetConfig(**fields)
    except TypeError as error:
        raise BundleError(f"{bundle.folder}: its U-Net is described otherwise than this version does") from error


def _vae(bundle: Bundle) -> AutoencoderKL:
    """The VAE whose shapes the encoder's weights have."""
    graph = read_graph(bundle.graph_path("vae_encoder"))
    widths, layers = _vae_shape(graph)
    groups = next((node.integers["num_groups"] for node in graph.nodes if "num_groups" in node.integers), 0)
    if not widths or not groups:
        raise BundleError(f"{bundle.folder}: its image encoder is none of diffusers' AutoencoderKL")
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        block_out_channels=widths,
        layers_per_block=layers,
        norm_num_groups=groups,
        latent_channels=4,
    )


def _vae_shape(graph: OnnxGraph) -> tuple[tuple[int, ...], int]:
    """Channels by level, and residual blocks in each."""
    found = {
        (int(match[1]), int(match[2])): int(shape[0])
        for name, shape in graph.weights.items()
        if (match := _RESNET.fullmatch(name))
    }
    levels = 1 + max((level for level, _ in found), default=-1)
    return tuple(found[level, 0] for level in range(levels)), 1 + max((layer for _, layer in found), default=-1)


def _randomize(network: nn.Module) -> None:
    """Weights that keep activations near one, which half precision holds."""
    parameters = [*network.named_parameters(), *network.named_buffers()]
    device = parameters[0][1].device
    generator = torch.Generator(device).manual_seed(_SEED)
    for name, tensor in parameters:
        if tensor.ndim > 1:
            inputs = tensor[0].numel() if tensor.ndim > 2 else tensor.shape[0]
            tensor.normal_(0, 1 / math.sqrt(inputs), generator=generator)
        else:
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            tensor.normal_(around, _SMALL, generator=generator)
