"""The narrowest real networks, with seeded random weights, written as the checkpoints that users
have.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.export.checkpoints import WHISPER_PREFIX
from latentsync_trt.export.export_options import ExportOptions, Sources
from latentsync_trt.export.networks import WhisperConfig, WhisperEncoder
from latentsync_trt.export.unet import UNet, UNetConfig
from scripts.published import checkpoint_tensors, whisper_file

RESOLUTION_PX = 64
FRAMES = 4
SEED = 7

AUDIO_WIDTH = 32
UNET = UNetConfig(
    widths=(32, 64),
    layers=1,
    audio_width=AUDIO_WIDTH,
    attention=(True, False),
    motion_down=(True, True),
    motion_up=(True, True),
    positions=24,
)
ONE_LEVEL = replace(UNET, widths=(32,), attention=(True,), motion_down=(True,), motion_up=(False,))
"""Traced in two thirds of the time."""
VAE_WIDTHS = 8, 8, 16, 16
WHISPER = WhisperConfig(mels=80, positions=1500, width=AUDIO_WIDTH, heads=2, blocks=4)


def randomize(network: nn.Module, seed: int = SEED) -> None:
    """Gives every parameter and buffer seeded values that keep activations near one; norms near the
    identity.

    The values have three bits of mantissa, so that the test bundle is a fourth of its size in git.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            if tensor.ndim == 1 and "norm" in name and name.endswith("weight"):
                tensor.copy_(1 + 0.1 * noise)
            elif tensor.ndim == 1 or name.endswith((".pe", "positional_embedding")):
                tensor.copy_(0.1 * noise)
            else:
                tensor.copy_(
                    noise / math.sqrt(tensor[0].numel() if tensor.ndim > 2 else tensor.shape[0])
                )
            tensor.copy_(tensor.to(torch.float8_e4m3fn))


def write_unet(
    path: Path, config: UNetConfig = UNET, extra: dict[str, Tensor] | None = None
) -> Path:
    """A `latentsync_unet.pt`."""
    network = UNet(config)
    randomize(network)
    torch.save({"global_step": 0, "state_dict": checkpoint_tensors(network) | (extra or {})}, path)
    return path


def make_vae(widths: tuple[int, ...] = VAE_WIDTHS, **config: Any) -> Any:
    """An `AutoencoderKL`; `config` as in diffusers."""
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=widths,
        layers_per_block=1,
        norm_num_groups=8,
        latent_channels=4,
        **config,
    )
    randomize(vae)
    return vae


def write_sources(
    folder: Path, unet: UNetConfig = UNET, vae_widths: tuple[int, ...] = VAE_WIDTHS
) -> Sources:
    """All three checkpoints below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    make_vae(vae_widths).save_pretrained(folder / "vae")
    whisper = WhisperEncoder(WHISPER)
    randomize(whisper)
    torch.save(
        whisper_file(WHISPER, checkpoint_tensors(whisper, WHISPER_PREFIX)), folder / "tiny.pt"
    )
    return Sources(
        write_unet(folder / "latentsync_unet.pt", unet), folder / "vae", folder / "tiny.pt"
    )


def narrow_options(sources: Sources, out: Path, **fields: object) -> ExportOptions:
    """Export options for the narrow networks; `fields` as in `ExportOptions`."""
    defaults = {"resolution": RESOLUTION_PX, "frames": FRAMES}
    return ExportOptions(
        unet=sources.unet,
        vae=sources.vae,
        whisper=sources.whisper,
        output=out,
        **(defaults | fields),
    )
