"""LatentSync's U-Net, Stable Diffusion 1.5's per frame with audio cross-attention and temporal
attention, and one step.

Inside, activations are `(B·F, C, h, w)`: B windows of F frames, which are part of the batch
throughout.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

LATENT_CHANNELS = 4
_LONGEST_PERIOD = 10000


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """The shape of a U-Net, top level first.

    `widths`: channels by level. `layers`: resnets in a down stage (an up stage has one more).
    `audio_width`: width of the audio tokens. `attention`: which levels have spatial transformers.
    `motion_down`, `motion_up`: which stages have temporal modules, in order of execution.
    `positions`: the longest window that the temporal modules support.
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
        return 4 * self.widths[0]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of all blocks in one denoising step.

    `time (1, E)`: activated time embedding. `audio (B·F, S, D)`. `frames`: F. `guided`: the first
    half of the batch is unconditional (all-zero audio), the second half is conditional on the
    audio.
    """

    time: Tensor
    audio: Tensor
    frames: int
    guided: bool


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
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


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
        if step.guided:
            count = step.audio.shape[0]
            unconditional, conditional = (x, x) if fork else (x[:count], x[count:])
            attended = self.attn2(self.norm2(conditional), step.audio)
            bias = self.attn2.to_out[0].get_parameter("bias")
            x = torch.cat([unconditional + bias, conditional + attended])
        else:
            x = x + self.attn2(self.norm2(x), step.audio)
        return x + self.ff(self.norm3(x))


class TemporalBlock(nn.Module):
    """Two attentions over the frames of a window and a feed-forward, `(B·F, T, C)`."""

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.attention_blocks = nn.ModuleList(
            [TemporalAttention(width, positions) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
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
        return residual + tokens.transpose(1, 2).reshape(
            tokens.shape[0], tokens.shape[2], *x.shape[2:]
        )


class Stage(nn.Module):
    """The layers of one resolution: each is a resnet, then a spatial and a temporal transformer if
    the stage has them.

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
        inputs: tuple[int, ...],
        *,
        spatial: int,
        motion: bool = False,
        resample: str | None = None,
    ) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(
            [Resnet(entering, width, config.time_width) for entering in inputs]
        )
        self.attentions = nn.ModuleList(
            [
                Transformer(width, SpatialBlock(width, config.audio_width), kernel_dims=2)
                for _ in range(spatial)
            ]
        )
        self.motion_modules = nn.ModuleList()
        for _ in inputs if motion else ():
            temporal = Transformer(width, TemporalBlock(width, config.positions), kernel_dims=0)
            self.motion_modules.append(nn.ModuleDict({"temporal_transformer": temporal}))
        self.downsamplers = nn.ModuleList()
        self.upsamplers = nn.ModuleList()
        if resample is not None:
            conv = nn.Conv2d(width, width, 3, stride=2 if resample == "down" else 1, padding=1)
            resamplers = self.downsamplers if resample == "down" else self.upsamplers
            resamplers.append(nn.ModuleDict({"conv": conv}))

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

    `networks` handles stacked projections and transposed weights, which `Linear` describes.
    """

    channel_axis = 1

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        self.conv_in = nn.Conv2d(INPUT_CHANNELS, config.widths[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(config)
        skips = [config.widths[0]]
        last = len(config.widths) - 1

        def stage(level: int, inputs: tuple[int, ...], motion: bool, resample: str | None) -> Stage:
            spatial = len(inputs) if config.attention[level] else 0
            return Stage(
                config,
                config.widths[level],
                inputs,
                spatial=spatial,
                motion=motion,
                resample=resample,
            )

        self.down_blocks: Any = nn.ModuleList()
        for level, width in enumerate(config.widths):
            inputs = (skips[-1], *[width] * (config.layers - 1))
            self.down_blocks.append(
                stage(level, inputs, config.motion_down[level], "down" if level < last else None)
            )
            skips += [width] * (config.layers + (level < last))
        self.mid_block: nn.Module = Stage(
            config, config.widths[-1], (config.widths[-1],) * 2, spatial=1
        )
        self.up_blocks: Any = nn.ModuleList()
        for depth, level in enumerate(range(last, -1, -1)):
            entering = (
                config.widths[min(level + 1, last)],
                *[config.widths[level]] * config.layers,
            )
            inputs = tuple(inner + skips.pop() for inner in entering)
            self.up_blocks.append(
                stage(level, inputs, config.motion_up[depth], "up" if level > 0 else None)
            )
        self.conv_norm_out = GroupNorm(config.widths[0])
        self.conv_out = nn.Conv2d(config.widths[0], LATENT_CHANNELS, 3, padding=1)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        audio: Tensor,
        hidden: Tensor | None = None,
        *,
        frames: int,
        guided: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The noise `(B·F, 4, h, w)`, and `hidden (B·F, C, h, w)`, the input of the last layer.

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
        return self._head(
            self.up_blocks[-1], torch.cat([hidden, skip], self.channel_axis), step
        ), hidden

    def tail(self) -> "UNet":
        """This network reduced to the parts that run with `hidden`; parameters are shared and keep
        their names.
        """
        part: UNet = shallow_copy(self)
        part.down_blocks = nn.ModuleList()
        part.mid_block = nn.Identity()
        part.up_blocks = nn.ModuleList(
            [*(nn.Identity() for _ in self.up_blocks[:-1]), self.up_blocks[-1]]
        )
        return part

    def _all_but_last_layer(self, entry: Tensor, step: StepInputs) -> Tensor:
        x = entry
        skips = []  # the skip connection from `entry` itself belongs to the last layer
        for depth, stage in enumerate(self.down_blocks):
            for index in range(len(stage.resnets)):
                x = self._layers(stage, (index,), x, step, fork=step.guided and depth == index == 0)
                skips.append(x)
            for downsampler in stage.downsamplers:
                x = self._conv(downsampler.conv, x)
                skips.append(x)
        x = self._layers(self.mid_block, (0, 1), x, step)
        for stage in self.up_blocks:
            for index in range(len(stage.resnets) - (stage is self.up_blocks[-1])):
                x = self._layers(
                    stage, (index,), torch.cat([x, skips.pop()], self.channel_axis), step
                )
            for upsampler in stage.upsamplers:
                x = self._upsample(upsampler.conv, x)
        return x

    # `CudaUNet` overrides the following methods.

    def _conv(self, conv: nn.Module, x: Tensor) -> Tensor:
        return conv(x)

    def _upsample(self, conv: nn.Module, x: Tensor) -> Tensor:
        return conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))

    def _layers(
        self, stage: Any, indices: tuple[int, ...], x: Tensor, step: StepInputs, fork: bool = False
    ) -> Tensor:
        for index in indices:
            x = stage.layer(index, x, step, fork)
        return x

    def _head(self, stage: Stage, x: Tensor, step: StepInputs) -> Tensor:
        x = stage.layer(len(stage.resnets) - 1, x, step)
        return self.conv_out(F.silu(self.conv_norm_out(x, step.frames)))


def shallow_copy(module: nn.Module) -> Any:
    """A copy that shares parameters and submodules, but whose submodules can be replaced."""
    made = copy.copy(module)
    # PyTorch itself has deep copies only; a copy of the object shares the table of its submodules.
    made._modules = dict(module._modules)
    return made


class DenoiseStep(nn.Module):
    """The whole network, or with `cached` only its last layer, applied to `hidden` of an earlier
    step.

    Without `guided` the unconditional half is omitted and `guidance` has no effect.
    """

    def __init__(self, unet: UNet, *, guided: bool, cached: bool = False) -> None:
        super().__init__()
        # Tracing time grows with all parameters in a module, used or not.
        self.unet = unet.tail() if cached else unet
        self.guided = guided

    def forward(
        self,
        latents: Tensor,
        conditioning: Tensor,
        audio: Tensor,
        timestep: Tensor,
        guidance: Tensor,
        history: Tensor,
        coefficients: Tensor,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """One step: `next_latents`, `next_history` and, without `cached`, `hidden`.

        All are float32, except `timestep` (int64) and `hidden` (the network's own precision).

        Args:
            latents, history: `(B, 4, F, h, w)`, noisy latents and the scheduler's state.
            conditioning: `(B, 9, F, h, w)`: mask 1, masked image 4, reference image 4.
            audio: `(B, F, S, D)`.
            timestep, guidance: `()`.
            coefficients: `(5)`: c_x, c_eps, c_history, d_x, d_eps.
            hidden: with `cached`, the output of an earlier full step, `(G, B, F, C, h, w)`; G = 2
                halves with guidance (unconditional first), else 1.
        """
        windows, channels, frames, height, width = latents.shape
        dtype = self.unet.conv_in.weight.dtype
        # Frames go into the batch: `sample (B·F, 13, h, w)`, `tokens (B·F, S, D)`.
        sample = torch.cat([latents, conditioning], 1).to(dtype).transpose(1, 2).flatten(0, 1)
        tokens = audio.to(dtype).flatten(0, 1)
        state = None if hidden is None else hidden.flatten(0, 2)
        noise, state = self.unet(sample, timestep, tokens, state, frames=frames, guided=self.guided)
        halves = noise.float().reshape(
            2 if self.guided else 1, windows, frames, channels, height, width
        )
        eps = halves[0]
        if self.guided:
            eps = eps + guidance * (halves[1] - eps)
        eps = eps.transpose(1, 2)
        c_x, c_eps, c_history, d_x, d_eps = (coefficients[i] for i in range(5))
        updated = c_x * latents + c_eps * eps + c_history * history, d_x * latents + d_eps * eps
        if hidden is not None:
            return updated
        return *updated, state.reshape(2 if self.guided else 1, windows, frames, *state.shape[1:])
