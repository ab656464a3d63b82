"""The networks: their sizes, initial weights and checkpoint files.

U-Net and audio encoder are the classes that `latentsync_trt.export` loads published checkpoints into; the others are
needed for training only.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.export.layers import GroupNorm, Linear
from latentsync_trt.export.networks import WHISPER_PREFIX, WhisperConfig, WhisperEncoder
from latentsync_trt.export.unet import SpatialBlock, StepInputs, TimeEmbedding, UNet, UNetConfig
from scripts.published import checkpoint_tensors, whisper_file
from scripts.train_demo.vae import Vae, VaeConfig, save_vae

RESOLUTION_PX = 128
WINDOW_FRAMES = 16
TRACK_VALUES = 3
"""Opening, width, rounding."""

_SINUSOID_PERIOD = 10000
_AUDIO_PERIOD = 200
"""Of the audio encoder's positional embedding. Cross-attention gets 10 unordered positions per frame: with a short
period more channels distinguish neighbors."""
_SHUT_BELOW, _SHUT_WEIGHT = 0.03, 4.0
_POOLED_ROWS, _POOLED_COLUMNS = 3, 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Configurations of the three networks."""

    unet: UNetConfig
    whisper: WhisperConfig
    vae: VaeConfig


def _sizes(unet: tuple[int, ...], audio_width: int, blocks: int, vae: tuple[int, int, int, int], groups: int) -> Sizes:
    return Sizes(
        UNetConfig(
            widths=unet,
            layers=1,
            audio_width=audio_width,
            attention=(True,) * (len(unet) - 1) + (False,),
            motion_down=(True,) * len(unet),
            motion_up=(True,) * len(unet),
            positions=24,
        ),
        WhisperConfig(mels=80, positions=1500, width=audio_width, heads=4, blocks=blocks),
        VaeConfig(vae, 1, groups),
    )


SHIPPED = _sizes((64, 64, 96, 96), 96, 3, (32, 48, 64, 96), 16)
"""All kinds of blocks, 8.6 million parameters."""

TINY = _sizes((32, 32), 32, 2, (8, 8, 16, 16), 8)
"""For tests of the training code on a CPU."""


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
    """Predicts a frame's mouth from the audio tokens that the U-Net gets, with the U-Net's own blocks.

    `audio (N, S, D)` → `(N, 5)`: opening, width, rounding, and logits of shut and silent. Training the audio encoder
    through it gives features that cross-attention, which ignores order, can use.
    """

    def __init__(self, audio_width: int, width: int = 64, blocks: int = 3, queries: int = 4) -> None:
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


class ImageMouthPredictor(nn.Module):
    """Predicts the mouth from the lower part of an aligned face: `image (N, 3, H, W)` → opening, width, rounding."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        widths = (3, width, width, 2 * width, 2 * width, 4 * width)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.GroupNorm(4, b) for b in widths[1:])
        self.out = nn.Sequential(
            nn.Linear(_POOLED_ROWS * _POOLED_COLUMNS * 4 * width, 4 * width),
            nn.SiLU(),
            nn.Linear(4 * width, TRACK_VALUES),
        )

    def forward(self, image: Tensor) -> Tensor:
        x = image[:, :, image.shape[2] * 3 // 8 :]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        predicted: Tensor = self.out(F.adaptive_avg_pool2d(x, (_POOLED_ROWS, _POOLED_COLUMNS)).flatten(1))
        return predicted


def mouth_errors(predicted: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Squared errors of mouths `(N, 3)`, weighted by `weights (3,)`: `(N,)`.

    The opening of shut mouths weighs more: missed closures are rare in a mean over frames, but easy to see.
    """
    shut = (target[:, :1] < _SHUT_BELOW) * target.new_tensor([_SHUT_WEIGHT - 1.0, 0.0, 0.0]) + 1
    return ((predicted - target) ** 2 * weights * shut).mean(1)


def initialize(network: nn.Module, seed: int) -> None:
    """Initializes the weights of `latentsync_trt.export`'s layers, which are created uninitialized."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in network.named_modules():
            if isinstance(module, nn.LayerNorm | GroupNorm):
                module.weight.fill_(1.0)
                module.bias.zero_()
            elif isinstance(module, Linear | nn.Conv1d | nn.Conv2d):
                inputs = module.weight.shape[0] if isinstance(module, Linear) else module.weight[0].numel()
                # Residual branches start small.
                small = name.endswith(("proj_out", "conv2", "to_out.0", "net.2", "mlp.2", "attn.out"))
                spread = (0.1 if small else 1.0) / math.sqrt(inputs)
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * spread)
                if module.bias is not None:
                    module.bias.zero_()
        for name, tensor in network.state_dict().items():
            if name.endswith(".pe"):
                tensor.copy_(_sinusoids(tensor.shape[1], tensor.shape[2], _SINUSOID_PERIOD, interleaved=True)[None])
            elif name.endswith("positional_embedding"):
                tensor.copy_(_sinusoids(*tensor.shape, _AUDIO_PERIOD, interleaved=False))
            elif name == "query":
                tensor.copy_(torch.randn(tensor.shape, generator=generator))


def make_unet(sizes: Sizes, seed: int) -> TrainedUNet:
    """A U-Net to train; its initial output is zero."""
    network = TrainedUNet(sizes.unet)
    initialize(network, seed)
    nn.init.zeros_(network.conv_out.weight)
    return network


def make_whisper(sizes: Sizes, seed: int) -> WhisperEncoder:
    """An audio encoder to train, with fixed sinusoidal positional embedding."""
    network = WhisperEncoder(sizes.whisper)
    initialize(network, seed)
    network.positional_embedding.requires_grad_(False)
    return network


def make_vae(sizes: Sizes, seed: int) -> Vae:
    """An autoencoder to train."""
    torch.manual_seed(seed)
    return Vae(sizes.vae)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Where `save_checkpoints` writes; `latentsync-trt export` takes them as --unet, --vae and --whisper."""

    folder: Path

    @property
    def unet(self) -> Path:
        """In LatentSync's format."""
        return self.folder / "latentsync_unet.pt"

    @property
    def vae(self) -> Path:
        """A folder in diffusers' layout."""
        return self.folder / "vae"

    @property
    def whisper(self) -> Path:
        """In OpenAI's format, encoder only."""
        return self.folder / "whisper.pt"


def save_checkpoints(
    folder: Path, unet: UNet, whisper: WhisperEncoder, vae: Vae, scaling_factor: float, step: int
) -> CheckpointFiles:
    """Writes the three networks in the formats of the published ones, in float16."""
    files = CheckpointFiles(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": step, "state_dict": _halved(checkpoint_tensors(unet))}, files.unet)
    state = _halved(checkpoint_tensors(whisper, WHISPER_PREFIX))
    torch.save(whisper_file(whisper.config, state), files.whisper)
    save_vae(vae, files.vae, scaling_factor, torch.float16)
    return files


def _halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", torch.float16).contiguous() for name, tensor in tensors.items()}


def _sinusoids(count: int, width: int, period: float, *, interleaved: bool) -> Tensor:
    """`(count, width)`: sines and cosines interleaved by channel, or all sines first (as in Whisper)."""
    half = width // 2
    exponent = torch.arange(half) / (half if interleaved else max(half - 1, 1))
    angles = torch.arange(count)[:, None] * torch.exp(-math.log(period) * exponent)
    pair = angles.sin(), angles.cos()
    return torch.stack(pair, -1).flatten(1) if interleaved else torch.cat(pair, 1)
