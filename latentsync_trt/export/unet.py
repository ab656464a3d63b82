"""LatentSync's U-Net, Stable Diffusion 1.5's per frame with audio cross-attention and temporal attention, and one step.

Inputs and outputs of a step are float32, except `timestep` (int64) and `hidden` (the network's own precision). B counts
windows, F frames; `hidden (G, B, F, C, h, w)` has G = 2 halves with guidance (unconditional first), else G = 1.
"""

import copy
import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.export.layers import Linear, WindowNorm
from latentsync_trt.export.unet_blocks import MidBlock, Stage, StepInputs, UNetConfig, double

INPUT_CHANNELS = 13
"""4 noisy latents, 1 mask, 4 masked-image latents, 4 reference-image latents."""

LATENT_CHANNELS = 4
_LONGEST_PERIOD = 10000

ModuleT = TypeVar("ModuleT", bound=nn.Module)


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


class UNet(nn.Module):
    """Predicts the noise in windows of frames. Parameters have the names of the published checkpoints.

    `checkpoint` handles stacked projections and transposed weights, which `Linear` describes.
    """

    channel_axis = 1

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        self.conv_in = nn.Conv2d(INPUT_CHANNELS, config.widths[0], 3, padding=1)
        self.time_embedding = TimeEmbedding(config)
        skips, last = [config.widths[0]], len(config.widths) - 1
        self.down_blocks = nn.ModuleList()
        for level, width in enumerate(config.widths):
            inputs = (skips[-1], *[width] * (config.layers - 1))
            resample = "down" if level < last else None
            self.down_blocks.append(Stage(config, level, inputs, motion=config.motion_down[level], resample=resample))
            skips += [width] * (config.layers + (level < last))
        self.mid_block: nn.Module = MidBlock(config)
        self.up_blocks = nn.ModuleList()
        for stage, level in enumerate(range(last, -1, -1)):
            entering = (config.widths[min(level + 1, last)], *[config.widths[level]] * config.layers)
            inputs = tuple(inner + skips.pop() for inner in entering)
            resample = "up" if level > 0 else None
            self.up_blocks.append(Stage(config, level, inputs, motion=config.motion_up[stage], resample=resample))
        self.conv_norm_out = WindowNorm(config.widths[0])
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
            sample: `(B·F, 13, h, w)`.
            timestep: `()` int64.
            audio: `(B·F, S, D)`.
            hidden: output of an earlier step; then only the last layer runs.
            frames: F.
            guided: also predict with all-zero audio; outputs then have 2·B·F frames, the unconditional half first.
        """
        step = StepInputs(F.silu(self.time_embedding(timestep)), audio, frames, guided)
        entry = self._conv(self.conv_in, sample)
        if hidden is None:
            hidden = self._all_but_last_layer(entry, step)
        skip = double(entry) if guided else entry
        return self._head(_stages(self.up_blocks)[-1], torch.cat([hidden, skip], self.channel_axis), step), hidden

    def tail(self) -> "UNet":
        """This network reduced to the parts that run with `hidden`; parameters are shared and keep their names."""
        part = shallow_copy(self)
        part.down_blocks = nn.ModuleList()
        part.mid_block = nn.Identity()
        part.up_blocks = nn.ModuleList([*(nn.Identity() for _ in self.up_blocks[:-1]), self.up_blocks[-1]])
        return part

    def _all_but_last_layer(self, entry: Tensor, step: StepInputs) -> Tensor:
        x, skips = entry, []  # the skip connection from `entry` itself belongs to the last layer
        for depth, stage in enumerate(_stages(self.down_blocks)):
            for index in range(len(stage.resnets)):
                x = self._layer(stage, index, x, step, fork=step.guided and depth == index == 0)
                skips.append(x)
            for downsampler in stage.downsamplers:
                x = self._resample(downsampler, x)
                skips.append(x)
        x = self._middle(x, step)
        stages = _stages(self.up_blocks)
        for stage in stages:
            for index in range(len(stage.resnets) - (stage is stages[-1])):
                x = self._layer(stage, index, torch.cat([x, skips.pop()], self.channel_axis), step)
            for upsampler in stage.upsamplers:
                x = self._resample(upsampler, x)
        return x

    # `CudaUNet` overrides the following methods.

    def _conv(self, conv: nn.Module, x: Tensor) -> Tensor:
        return conv(x)

    def _resample(self, resampler: nn.Module, x: Tensor) -> Tensor:
        return resampler(x)

    def _layer(self, stage: Stage, index: int, x: Tensor, step: StepInputs, fork: bool = False) -> Tensor:
        return stage.layer(index, x, step, fork)

    def _middle(self, x: Tensor, step: StepInputs) -> Tensor:
        return self.mid_block(x, step)

    def _head(self, stage: Stage, x: Tensor, step: StepInputs) -> Tensor:
        x = stage.layer(len(stage.resnets) - 1, x, step)
        return self.conv_out(F.silu(self.conv_norm_out(x, step.frames)))


def shallow_copy(module: ModuleT) -> ModuleT:
    """A copy that shares parameters and submodules, but whose submodules can be replaced."""
    made = copy.copy(module)
    made._modules = dict(module._modules)
    return made


def _stages(blocks: nn.ModuleList) -> list[Stage]:
    return [block for block in blocks if isinstance(block, Stage)]


class DenoiseStep(nn.Module):
    """The whole network, or with `cached` only its last layer, applied to `hidden` of an earlier step.

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

        Args:
            latents, history: `(B, 4, F, h, w)`, noisy latents and the scheduler's state.
            conditioning: `(B, 9, F, h, w)`: mask 1, masked image 4, reference image 4.
            audio: `(B, F, S, D)`.
            timestep, guidance: `()`.
            coefficients: `(5)`: c_x, c_eps, c_history, d_x, d_eps.
            hidden: with `cached`, the output of an earlier full step.
        """
        windows, channels, frames, height, width = latents.shape
        dtype = self.unet.conv_in.weight.dtype
        # Frames go into the batch: `sample (B·F, 13, h, w)`, `tokens (B·F, S, D)`.
        sample = torch.cat([latents, conditioning], 1).to(dtype).transpose(1, 2).flatten(0, 1)
        tokens = audio.to(dtype).flatten(0, 1)
        state = None if hidden is None else hidden.flatten(0, 2)
        noise, state = self.unet(sample, timestep, tokens, state, frames=frames, guided=self.guided)
        halves = noise.float().reshape(2 if self.guided else 1, windows, frames, channels, height, width)
        eps = halves[0]
        if self.guided:
            eps = eps + guidance * (halves[1] - eps)
        eps = eps.transpose(1, 2)
        c_x, c_eps, c_history, d_x, d_eps = (coefficients[i] for i in range(5))
        updated = c_x * latents + c_eps * eps + c_history * history, d_x * latents + d_eps * eps
        if hidden is not None:
            return updated
        return *updated, state.reshape(2 if self.guided else 1, windows, frames, *state.shape[1:])
