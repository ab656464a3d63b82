"""Blocks of the U-Net. Activations are `(B·F, C, h, w)`: frames are part of the batch throughout."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.export.layers import (
    AudioAttention,
    FeedForward,
    FrameNorm,
    Linear,
    SelfAttention,
    TemporalAttention,
    WindowNorm,
    to_image,
    to_tokens,
)


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """The shape of a U-Net, top level first.

    `widths`: channels by level. `layers`: resnets in a down stage (an up stage has one more). `audio_width`: width of
    the audio tokens. `attention`: which levels have spatial transformers. `motion_down`, `motion_up`: which stages have
    temporal modules, in order of execution. `positions`: the longest window that the temporal modules support.
    """

    widths: tuple[int, ...]
    layers: int
    audio_width: int
    attention: tuple[bool, ...]
    motion_down: tuple[bool, ...]
    motion_up: tuple[bool, ...]
    positions: int

    @property
    def time_width(self) -> int:
        """Width of the time embedding."""
        return 4 * self.widths[0]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of all blocks in one denoising step.

    `time (1, E)`: activated time embedding. `audio (B·F, S, D)`. `frames`: F. `guided`: the first half of the batch is
    unconditional (all-zero audio), the second half is conditional on the audio.
    """

    time: Tensor
    audio: Tensor
    frames: int
    guided: bool


class Resnet(nn.Module):
    """Two normalized convolutions with the time embedding between them, and a residual."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.norm1 = WindowNorm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = Linear(time_width, outputs)
        self.norm2 = WindowNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x, step.frames)))
        hidden = hidden + self.time_emb_proj(step.time)[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden, step.frames)))
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class SpatialBlock(nn.Module):
    """Self-attention, audio cross-attention and feed-forward over the pixels of each frame, `(N, T, C)`."""

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
        count = step.audio.shape[0]
        unconditional, conditional = (x, x) if fork else (x[:count], x[count:])
        attended = self.attn2(self.norm2(conditional), step.audio)
        return torch.cat([unconditional + self.attn2.unconditional(), conditional + attended])


class SpatialTransformer(nn.Module):
    """Per-frame transformer with a residual.

    The halves of a guided batch are equal up to the first audio attention. With `fork` the input is
    one half, the output both.
    """

    def __init__(self, width: int, audio_width: int) -> None:
        super().__init__()
        self.norm = FrameNorm(width)
        self.proj_in = Linear(width, width, kernel_dims=2)
        self.transformer_blocks = nn.ModuleList([SpatialBlock(width, audio_width)])
        self.proj_out = Linear(width, width, kernel_dims=2)

    def forward(self, x: Tensor, step: StepInputs, fork: bool = False) -> Tensor:
        tokens = self.proj_in(to_tokens(self.norm(x)))
        tokens = self.transformer_blocks[0](tokens, step, fork)
        residual = double(x) if fork else x
        return residual + to_image(self.proj_out(tokens), x)


class TemporalBlock(nn.Module):
    """Two attentions over the frames of a window and a feed-forward, `(B·F, T, C)`."""

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.attention_blocks = nn.ModuleList([TemporalAttention(width, positions) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.ff = FeedForward(width)
        self.ff_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, frames: int) -> Tensor:
        for attention, norm in zip(self.attention_blocks, self.norms, strict=True):
            x = x + attention(norm(x), frames)
        return x + self.ff(self.ff_norm(x))


class TemporalTransformer(nn.Module):
    """Transformer over the frames of a window, with a residual."""

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.norm = FrameNorm(width)
        self.proj_in = Linear(width, width)
        self.transformer_blocks = nn.ModuleList([TemporalBlock(width, positions)])
        self.proj_out = Linear(width, width)

    def forward(self, x: Tensor, frames: int) -> Tensor:
        tokens = self.proj_in(to_tokens(self.norm(x)))
        tokens = self.transformer_blocks[0](tokens, frames)
        return x + to_image(self.proj_out(tokens), x)


class Resampler(nn.Module):
    """A 3×3 convolution that halves the size (`up=False`), or follows a nearest-neighbor doubling."""

    def __init__(self, width: int, *, up: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=1 if up else 2, padding=1)
        self.up = up

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest") if self.up else x)


class Stage(nn.Module):
    """The layers of one resolution: each is a resnet, then a spatial and a temporal transformer if the stage has them.

    Args:
        inputs: channels entering each layer's resnet.
        motion: whether there are temporal transformers.
        resample: "down", "up" or None.
    """

    def __init__(
        self, config: UNetConfig, level: int, inputs: tuple[int, ...], *, motion: bool, resample: str | None
    ) -> None:
        super().__init__()
        width = config.widths[level]
        spatial, temporal = inputs if config.attention[level] else (), inputs if motion else ()
        self.resnets = nn.ModuleList([Resnet(entering, width, config.time_width) for entering in inputs])
        self.attentions = nn.ModuleList([SpatialTransformer(width, config.audio_width) for _ in spatial])
        self.motion_modules = nn.ModuleList(
            [nn.ModuleDict({"temporal_transformer": TemporalTransformer(width, config.positions)}) for _ in temporal]
        )
        self.downsamplers = nn.ModuleList([Resampler(width, up=False)] if resample == "down" else [])
        self.upsamplers = nn.ModuleList([Resampler(width, up=True)] if resample == "up" else [])

    def layer(self, index: int, x: Tensor, step: StepInputs, fork: bool = False) -> Tensor:
        """Runs layer `index`; `fork` as in `SpatialTransformer`."""
        x = self.resnets[index](x, step)
        if self.attentions:
            x = self.attentions[index](x, step, fork)
        if self.motion_modules:
            motion: Any = self.motion_modules[index]
            x = motion.temporal_transformer(x, step.frames)
        return x


class MidBlock(nn.Module):
    """Resnet, spatial transformer and resnet at the lowest resolution."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        width = config.widths[-1]
        self.resnets = nn.ModuleList([Resnet(width, width, config.time_width) for _ in range(2)])
        self.attentions = nn.ModuleList([SpatialTransformer(width, config.audio_width)])

    def forward(self, x: Tensor, step: StepInputs) -> Tensor:
        x = self.resnets[0](x, step)
        x = self.attentions[0](x, step)
        return self.resnets[1](x, step)


def double(x: Tensor) -> Tensor:
    """Both halves of a guided batch from the shared one."""
    return torch.cat([x, x])
