"""LatentSync's U-Net, Stable Diffusion 1.5's per frame with audio cross-attention and temporal
attention.

Inside, activations are `(B·F, C, h, w)`: B windows of F frames, which are part of the batch
throughout.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.diffusion import LATENT_CHANNELS
from latentsync_trt.export.layers import (
    AudioAttention,
    FeedForward,
    GroupNorm,
    Linear,
    SelfAttention,
    TemporalAttention,
)

INPUT_CHANNELS = 13
"""4 noisy latents, 1 mask, 4 masked-image latents, 4 reference-image latents."""

_LONGEST_PERIOD = 10000
"""The longest period of the sinusoids of a timestep, in timesteps and divided by 2π."""


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """The shape of a U-Net, top level first."""

    widths: tuple[int, ...]
    """Channels by level."""
    layers: int
    """Resnets in a down block; an up block has one more."""
    audio_width: int
    """Width of the audio tokens."""
    attention: tuple[bool, ...]
    """Which levels have spatial transformers."""
    motion_down: tuple[bool, ...]
    """Which down blocks have temporal transformers, in order of execution."""
    motion_up: tuple[bool, ...]
    """Which up blocks have temporal transformers, in order of execution."""
    positions: int
    """The longest window that the temporal transformers support, in frames."""

    @property
    def time_width(self) -> int:
        return 4 * self.widths[0]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of all blocks in one denoising step."""

    time: Tensor
    """The activated time embedding, `(1, E)`."""
    audio: Tensor
    """Audio tokens, `(B·F, S, D)`."""
    frames: int
    """Frames of a window, F."""
    guided: bool
    """Whether the first half of the batch is unconditional (all-zero audio), and only the second is
    conditional on the audio.
    """


class Prediction(NamedTuple):
    """What the U-Net returns."""

    noise: Tensor
    """The predicted noise, `(B·F, 4, h, w)`."""
    hidden: Tensor
    """The input of the last layer, `(B·F, C, h, w)`."""


class TimeEmbedding(nn.Module):
    """Sinusoid of the timestep (cosines first), then two projections; `()` → `(1, time_width)`."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.linear_1 = Linear(config.widths[0], config.time_width)
        self.linear_2 = Linear(config.time_width, config.time_width)
        self.half_width = config.widths[0] // 2

    def forward(self, timestep: Tensor) -> Tensor:
        steps = torch.arange(self.half_width, dtype=torch.float32, device=timestep.device)
        frequencies = torch.exp(steps * (-math.log(_LONGEST_PERIOD) / self.half_width))
        # float32 in every precision: half precision cannot distinguish neighboring timesteps.
        angles = (timestep.float() * frequencies)[None]
        sinusoid = torch.cat([angles.cos(), angles.sin()], 1).to(self.linear_1.weight.dtype)
        return self.linear_2(F.silu(self.linear_1(sinusoid)))


class Resnet(nn.Module):
    """Two normalized convolutions with the time embedding between them, and a residual."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1 = GroupNorm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = Linear(time_width, outputs)
        self.norm2 = GroupNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x, step.frames)))
        hidden = hidden + self.time_emb_proj(step.time)[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden, step.frames)))
        if self.conv_shortcut is None:
            return hidden + x
        return hidden + self.conv_shortcut(x)


class SpatialBlock(nn.Module):
    """Self-attention, audio cross-attention and feed-forward over the pixels of each frame, `(N, T,
    C)`.
    """

    def __init__(self, width: int, audio_width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn1 = SelfAttention(width)
        self.norm2 = nn.LayerNorm(width)
        self.attn2 = AudioAttention(width, audio_width)
        self.norm3 = nn.LayerNorm(width)
        self.ff = FeedForward(width)

    def forward(self, x: Tensor, step: StepInputs, fork: bool) -> Tensor:
        x = x + self.attn1(self.norm1(x))
        x = self._attend_audio(x, step, fork)
        return x + self.ff(self.norm3(x))

    def _attend_audio(self, x: Tensor, step: StepInputs, fork: bool) -> Tensor:
        if not step.guided:
            return x + self.attn2(self.norm2(x), step.audio)
        unconditional = x
        conditional = x
        if not fork:
            count = step.audio.shape[0]
            unconditional = x[:count]
            conditional = x[count:]
        attended = self.attn2(self.norm2(conditional), step.audio)
        bias = self.attn2.to_out[0].get_parameter("bias")
        return torch.cat([unconditional + bias, conditional + attended])


class TemporalBlock(nn.Module):
    """Two attentions over the frames of a window and a feed-forward, `(B·F, T, C)`."""

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.attention_blocks = nn.ModuleList()
        self.norms = nn.ModuleList()
        for _ in range(2):
            self.attention_blocks.append(TemporalAttention(width, positions))
            self.norms.append(nn.LayerNorm(width))
        self.ff = FeedForward(width)
        self.ff_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, step: StepInputs, _: bool) -> Tensor:
        for attention, norm in zip(self.attention_blocks, self.norms, strict=True):
            x = x + attention(norm(x), step.frames)
        return x + self.ff(self.ff_norm(x))


class Transformer(nn.Module):
    """A spatial or temporal block over the tokens of images, with a residual.

    The halves of a guided batch are equal up to the first audio attention. With `fork` the input is
    one half, the output both.
    """

    def __init__(self, width: int, block: nn.Module, kernel_dims: int) -> None:
        super().__init__()
        self.norm = GroupNorm(width, 1e-6)
        self.proj_in = Linear(width, width, kernel_dims=kernel_dims)
        self.transformer_blocks = nn.ModuleList([block])
        self.proj_out = Linear(width, width, kernel_dims=kernel_dims)

    def forward(self, x: Tensor, step: StepInputs, fork: bool = False) -> Tensor:
        tokens = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        tokens = self.transformer_blocks[0](tokens, step, fork)
        residual = torch.cat([x, x]) if fork else x
        tokens = self.proj_out(tokens)
        shape = (tokens.shape[0], tokens.shape[2], *x.shape[2:])
        return residual + tokens.transpose(1, 2).reshape(shape)


class Block(nn.Module):
    """The layers of one resolution: each is a resnet, then a spatial and a temporal transformer if
    the block has them.

    Args:
        inputs: channels entering each layer's resnet.
        spatial: how many layers have spatial transformers, from the first.
        motion: whether there are temporal transformers.
        resample: "down" (to half the size), "up" (nearest neighbors, before a convolution) or None.
    """

    def __init__(
        self,
        config: UNetConfig,
        width: int,
        inputs: Sequence[int],
        *,
        spatial: int,
        motion: bool = False,
        resample: str | None = None,
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList()
        self.attentions = nn.ModuleList()
        self.motion_modules = nn.ModuleList()
        for index, entering in enumerate(inputs):
            self.resnets.append(Resnet(entering, width, config.time_width))
            if index < spatial:
                block: nn.Module = SpatialBlock(width, config.audio_width)
                self.attentions.append(Transformer(width, block, kernel_dims=2))
            if motion:
                block = TemporalBlock(width, config.positions)
                temporal = Transformer(width, block, kernel_dims=0)
                self.motion_modules.append(nn.ModuleDict({"temporal_transformer": temporal}))
        self.downsamplers = nn.ModuleList()
        self.upsamplers = nn.ModuleList()
        if resample == "down":
            conv = nn.Conv2d(width, width, 3, stride=2, padding=1)
            self.downsamplers.append(nn.ModuleDict({"conv": conv}))
        elif resample == "up":
            conv = nn.Conv2d(width, width, 3, padding=1)
            self.upsamplers.append(nn.ModuleDict({"conv": conv}))

    def layer(self, index: int, x: Tensor, step: StepInputs, fork: bool = False) -> Tensor:
        """Runs layer `index`; `fork` as in `Transformer`."""
        x = self.resnets[index](x, step)
        if index < len(self.attentions):
            x = self.attentions[index](x, step, fork)
        if self.motion_modules:
            motion: Any = self.motion_modules[index]
            x = motion.temporal_transformer(x, step)
        return x


class UNet(nn.Module):
    """Predicts the noise in windows of frames. Parameters have the names of the published
    checkpoints.

    `checkpoints` handles stacked projections and transposed weights, which `Linear` describes.
    """

    channel_axis = 1

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.widths
        self.conv_in = nn.Conv2d(INPUT_CHANNELS, widths[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(config)
        self.down_blocks: Any = nn.ModuleList()
        last = len(widths) - 1
        skips = [widths[0]]
        for level, width in enumerate(widths):
            inputs = [skips[-1]] + [width] * (config.layers - 1)
            skips += [width] * config.layers
            resample = None
            if level < last:
                resample = "down"
                skips.append(width)
            motion = config.motion_down[level]
            self.down_blocks.append(self._block(level, inputs, motion, resample))
        self.mid_block: nn.Module = Block(config, widths[last], (widths[last],) * 2, spatial=1)
        self.up_blocks: Any = nn.ModuleList()
        inner = widths[last]
        for level, motion in zip(range(last, -1, -1), config.motion_up, strict=True):
            inputs = []
            for _ in range(config.layers + 1):
                inputs.append(inner + skips.pop())
                inner = widths[level]
            resample = "up" if level else None
            self.up_blocks.append(self._block(level, inputs, motion, resample))
        self.conv_norm_out = GroupNorm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], LATENT_CHANNELS, 3, padding=1)

    def _block(
        self, level: int, inputs: Sequence[int], motion: bool, resample: str | None
    ) -> Block:
        config = self.config
        spatial = len(inputs) if config.attention[level] else 0
        width = config.widths[level]
        return Block(config, width, inputs, spatial=spatial, motion=motion, resample=resample)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        audio: Tensor,
        hidden: Tensor | None = None,
        *,
        frames: int,
        guided: bool = False,
    ) -> Prediction:
        """Predicts the noise of all frames.

        Args:
            sample, timestep, audio: `(B·F, 13, h, w)`, `()` int64, `(B·F, S, D)`.
            hidden: output of an earlier step; then only the last layer runs.
            frames: F.
            guided: also predict with all-zero audio; outputs then have 2·B·F frames, the
                unconditional half first.
        """
        step = StepInputs(F.silu(self.time_embedding(timestep)), audio, frames, guided)
        entry = self._conv(self.conv_in, sample)
        if hidden is None:
            hidden = self._all_but_last_layer(entry, step)
        skip = torch.cat([entry, entry]) if guided else entry
        x = torch.cat([hidden, skip], self.channel_axis)
        return Prediction(self._head(self.up_blocks[-1], x, step), hidden)

    def tail(self) -> "UNet":
        """Returns this network reduced to the parts that run with `hidden`; parameters are shared
        and keep their names.
        """
        part: UNet = shallow_copy(self)
        part.down_blocks = nn.ModuleList()
        part.mid_block = nn.Identity()
        last = len(self.up_blocks) - 1
        part.up_blocks = nn.ModuleList(nn.Identity() for _ in range(last))
        part.up_blocks.append(self.up_blocks[last])
        return part

    def _all_but_last_layer(self, entry: Tensor, step: StepInputs) -> Tensor:
        x = entry
        fork = step.guided
        skips = []  # the skip connection from `entry` itself belongs to the last layer
        for block in self.down_blocks:
            for index in range(len(block.resnets)):
                x = self._layers(block, (index,), x, step, fork)
                fork = False
                skips.append(x)
            for downsampler in block.downsamplers:
                x = self._conv(downsampler.conv, x)
                skips.append(x)
        x = self._layers(self.mid_block, (0, 1), x, step)
        for block in self.up_blocks:
            for index in range(len(block.resnets)):
                if not skips:
                    return x
                x = torch.cat([x, skips.pop()], self.channel_axis)
                x = self._layers(block, (index,), x, step)
            for upsampler in block.upsamplers:
                x = self._upsample(upsampler.conv, x)
        return x

    # `CudaUNet` overrides the following methods.

    def _conv(self, conv: nn.Module, x: Tensor) -> Tensor:
        return conv(x)

    def _upsample(self, conv: nn.Module, x: Tensor) -> Tensor:
        return conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _layers(
        self, block: Any, indices: Sequence[int], x: Tensor, step: StepInputs, fork: bool = False
    ) -> Tensor:
        for index in indices:
            x = block.layer(index, x, step, fork)
        return x

    def _head(self, block: Any, x: Tensor, step: StepInputs) -> Tensor:
        x = block.layer(len(block.resnets) - 1, x, step)
        return self.conv_out(F.silu(self.conv_norm_out(x, step.frames)))


def shallow_copy(module: nn.Module) -> Any:
    """Returns a copy that shares parameters; its submodules can be replaced."""
    copied = copy.copy(module)
    # PyTorch itself has deep copies only; a copy of the object shares the table of its submodules.
    copied._modules = dict(module._modules)
    return copied
