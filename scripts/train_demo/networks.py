"""The networks: their sizes, initial weights and checkpoint files.

U-Net and audio encoder are the classes that `latentsync_trt.export` loads published checkpoints
into; the others are needed for training only.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.export.checkpoints import WHISPER_PREFIX
from latentsync_trt.export.layers import GroupNorm, Linear
from latentsync_trt.export.networks import WhisperEncoder
from latentsync_trt.export.unet import SpatialBlock, StepInputs, TimeEmbedding, UNet, UNetConfig
from scripts.published import checkpoint_tensors, whisper_file

RESOLUTION_PX = 128
WINDOW_FRAMES = 16
TRACK_VALUES = 5  # opening, width, rounding, tuck, tongue
_SINUSOID_PERIOD = 10000
_AUDIO_PERIOD = 200
"""Of the audio encoder's positional embedding. Cross-attention gets 10 unordered positions per
frame: with a short period more channels distinguish neighbors.
"""
_SHUT_BELOW = 0.03
_SHUT_WEIGHT = 4.0
_POOLED_ROWS = 3
_POOLED_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of U-Net and image codec by level, finest first; width and blocks of the audio
    encoder.
    """

    unet: tuple[int, ...] = (64, 64, 96)
    audio_width: int = 128
    audio_blocks: int = 3
    vae: tuple[int, ...] = (32, 48, 64, 96)
    vae_groups: int = 16


class _WindowTimeEmbedding(TimeEmbedding):
    """A timestep for each window: `(B,)` → `(B·16, time_width)`."""

    def forward(self, timestep: Tensor) -> Tensor:
        windows = [TimeEmbedding.forward(self, each) for each in timestep]
        return torch.cat(windows).repeat_interleave(WINDOW_FRAMES, 0)


class TrainedUNet(UNet):
    """The U-Net with one timestep per window of 16 frames: `timestep (B,)`."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config)
        embedding = _WindowTimeEmbedding(config)
        embedding.load_state_dict(self.time_embedding.state_dict())
        self.time_embedding = embedding


class AudioMouthPredictor(nn.Module):
    """Predicts a frame's mouth from the audio tokens that the U-Net gets, with the U-Net's own
    blocks.

    `audio (N, S, D)` → `(N, 7)`: the pose, and logits of shut and silent. Training
    the audio encoder through it gives features that cross-attention, which ignores order, can use.
    """

    def __init__(
        self, audio_width: int, width: int = 64, blocks: int = 3, queries: int = 4
    ) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, queries, width))
        self.blocks = nn.ModuleList([SpatialBlock(width, audio_width) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.out = Linear(queries * width, TRACK_VALUES + 2)
        self.width = width

    def forward(self, audio: Tensor) -> Tensor:
        step = StepInputs(audio[:, :1, :1], audio, 1, False)
        x = self.query.expand(len(audio), -1, -1)
        for block in self.blocks:
            x = block(x, step, False)
        predicted: Tensor = self.out(self.norm(x).flatten(1))
        return predicted


def image_mouth_predictor(width: int = 24) -> nn.Sequential:
    """Predicts the mouth from the `lower_part` of aligned faces: a pose."""
    widths = (3, width, width, 2 * width, 2 * width, 4 * width)
    convs = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)]
    layers = [
        layer for conv in convs for layer in (conv, nn.GroupNorm(4, conv.out_channels), nn.SiLU())
    ]
    pooled = nn.AdaptiveAvgPool2d((_POOLED_ROWS, _POOLED_COLUMNS))
    first = nn.Linear(_POOLED_ROWS * _POOLED_COLUMNS * 4 * width, 4 * width)
    return nn.Sequential(
        *layers, pooled, nn.Flatten(), first, nn.SiLU(), nn.Linear(4 * width, TRACK_VALUES)
    )


def lower_part(image: Tensor) -> Tensor:
    """`(N, 3, H, W)` from three eighths of the height on."""
    return image[:, :, image.shape[2] * 3 // 8 :]


def mouth_errors(predicted: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Squared errors of mouths `(N, 5)`, weighted by `weights (5,)`: `(N,)`.

    The opening of shut mouths weighs more: missed closures are rare in a mean over frames, but easy
    to see.
    """
    shut = (target[:, :1] < _SHUT_BELOW) * target.new_tensor(
        [_SHUT_WEIGHT - 1.0, *[0.0] * (TRACK_VALUES - 1)]
    ) + 1
    return ((predicted - target) ** 2 * weights * shut).mean(1)


def initialize(network: nn.Module, seed: int) -> None:
    """Initializes the weights of `latentsync_trt.export`'s layers, which are created
    uninitialized.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in network.named_modules():
            if isinstance(module, nn.LayerNorm | GroupNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
            elif isinstance(module, Linear | nn.Conv1d | nn.Conv2d):
                if isinstance(module, Linear):
                    inputs = module.weight.shape[0]
                else:
                    inputs = module.weight[0].numel()
                # Residual branches start small.
                small = name.endswith(
                    ("proj_out", "conv2", "to_out.0", "net.2", "mlp.2", "attn.out")
                )
                spread = (0.1 if small else 1.0) / math.sqrt(inputs)
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * spread)
                if module.bias is not None:
                    module.bias.zero_()
        for name, tensor in network.state_dict().items():
            if name.endswith(".pe"):
                tensor.copy_(
                    _sinusoids(
                        tensor.shape[1], tensor.shape[2], _SINUSOID_PERIOD, interleaved=True
                    )[None]
                )
            elif name.endswith("positional_embedding"):
                tensor.copy_(_sinusoids(*tensor.shape, _AUDIO_PERIOD, interleaved=False))
            elif name == "query":
                tensor.copy_(torch.randn(tensor.shape, generator=generator))


def make_unet(sizes: Sizes, seed: int) -> TrainedUNet:
    """A U-Net with all kinds of blocks; its initial output is zero."""
    levels = len(sizes.unet)
    config = UNetConfig(
        widths=sizes.unet,
        layers=1,
        audio_width=sizes.audio_width,
        attention=(True,) * (levels - 1) + (False,),
        motion_down=(True,) * levels,
        motion_up=(True,) * levels,
        positions=24,
    )
    network = TrainedUNet(config)
    initialize(network, seed)
    nn.init.zeros_(network.conv_out.weight)
    return network


def make_vae(sizes: Sizes, seed: int) -> AutoencoderKL:
    """An image codec with one layer a level."""
    levels = len(sizes.vae)
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=sizes.vae,
        norm_num_groups=sizes.vae_groups,
        sample_size=RESOLUTION_PX,
    )
    # In an order of our own, so that a seed gives the same weights with any version of diffusers.
    torch.manual_seed(seed)
    encoder = vae.encoder
    decoder = vae.decoder
    middles = [(half.mid_block.resnets, half.mid_block.attentions) for half in (encoder, decoder)]
    parts = [encoder.conv_in, encoder.down_blocks, *middles[0], encoder.conv_out]
    parts += [
        decoder.conv_in,
        *middles[1],
        decoder.up_blocks,
        decoder.conv_out,
        vae.quant_conv,
        vae.post_quant_conv,
    ]
    for module in (each for part in parts for each in part.modules()):
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
    return vae


def latents_of(vae: AutoencoderKL, images: Tensor) -> Tensor:
    """The posterior's mode, not scaled: `(N, 3, H, W)` → `(N, 4, H/8, W/8)`."""
    latents: Tensor = vae.encode(images).latent_dist.mean
    return latents


def save_checkpoints(
    folder: Path, unet: UNet, whisper: WhisperEncoder, vae: AutoencoderKL, scaling_factor: float
) -> None:
    """Writes the three networks in the formats of the published ones, in float16: `unet.pt`,
    `whisper.pt`, `vae/`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(
        {"global_step": 0, "state_dict": _halved(checkpoint_tensors(unet))}, folder / "unet.pt"
    )
    state = _halved(checkpoint_tensors(whisper, WHISPER_PREFIX))
    torch.save(whisper_file(whisper.config, state), folder / "whisper.pt")
    vae.register_to_config(scaling_factor=scaling_factor)
    nn.Module.to(vae, dtype=torch.float16).save_pretrained(folder / "vae")


def _halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in tensors.items()
    }


def _sinusoids(count: int, width: int, period: float, *, interleaved: bool) -> Tensor:
    """`(count, width)`: sines and cosines interleaved by channel, or all sines first (as in
    Whisper).
    """
    half = width // 2
    exponent = torch.arange(half) / (half if interleaved else max(half - 1, 1))
    angles = torch.arange(count)[:, None] * torch.exp(-math.log(period) * exponent)
    pair = angles.sin(), angles.cos()
    if interleaved:
        return torch.stack(pair, -1).flatten(1)
    return torch.cat(pair, 1)
