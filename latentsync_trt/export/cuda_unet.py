"""The U-Net in the CUDA form: the same modules in the same order, over `cuda_ops`."""

from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.export.attention import HEADS
from latentsync_trt.export.cuda_form import CudaForm, group_norm_obstacle
from latentsync_trt.export.cuda_ops import CudaOps, Sum, double_size, project, project_apart
from latentsync_trt.export.layers import NORM_GROUPS, FrameNorm, WindowNorm
from latentsync_trt.export.unet import UNet
from latentsync_trt.export.unet_blocks import StepInputs, double


class CudaUNet(UNet):
    """Takes, gives and holds what `unet` does; made for tracing alone, as its operations have no other kernels."""

    def __init__(self, unet: UNet, form: CudaForm) -> None:
        nn.Module.__init__(self)
        self.config = unet.config
        self.form = form
        self._modules = dict(unet._modules)

    def forward(
        self, sample: Tensor, timestep: Tensor, audio: Tensor, *, frames: int, guided: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As in `UNet`."""
        run = _Run(CudaOps(self.form, frames), self._step(timestep, audio, frames, guided))
        entry = run.ops.conv(self.conv_in, _channels_last(sample))
        x, skips = run.descend(self.down_blocks, entry)
        x = run.middle(self.mid_block, x)
        stages: Any = self.up_blocks
        for stage in stages:
            x = run.ascend(stage, x, skips, len(stage.resnets) - (stage is stages[-1]))
        return self._end(run, x, entry), _channels_first(x)

    def forward_cached(
        self, sample: Tensor, timestep: Tensor, audio: Tensor, hidden: Tensor, *, frames: int, guided: bool = False
    ) -> Tensor:
        """As in `UNet`."""
        run = _Run(CudaOps(self.form, frames), self._step(timestep, audio, frames, guided))
        entry = run.ops.conv(self.conv_in, _channels_last(sample))
        return self._end(run, _channels_last(hidden), entry)

    def _end(self, run: "_Run", hidden: Tensor, entry: Tensor) -> Tensor:
        last: Any = self.up_blocks[-1]
        skip = double(entry) if run.step.guided else entry
        parts = run.layer(last, len(last.resnets) - 1, Sum(torch.cat([hidden, skip], -1)))
        normed, _ = run.ops.group_norm(self.conv_norm_out, parts, silu=True)
        return _channels_first(run.ops.conv(self.conv_out, normed))


class _Run:
    """One pass through the blocks."""

    def __init__(self, ops: CudaOps, step: StepInputs) -> None:
        self.ops, self.step = ops, step

    def descend(self, stages: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips: list[Tensor] = []
        for depth, stage in enumerate(stages):
            for index in range(len(stage.resnets)):
                x = self.ops.total(self.layer(stage, index, Sum(x), self.step.guided and depth == index == 0))
                skips.append(x)
            for downsampler in stage.downsamplers:
                x = self.ops.conv(downsampler.conv, x)
                skips.append(x)
        return x, skips

    def middle(self, block: Any, x: Tensor) -> Tensor:
        parts = self.resnet(block.resnets[0], Sum(x))
        return self.ops.total(self.resnet(block.resnets[1], self.spatial(block.attentions[0], parts)))

    def ascend(self, stage: Any, x: Tensor, skips: list[Tensor], layers: int) -> Tensor:
        for index in range(layers):
            x = self.ops.total(self.layer(stage, index, Sum(torch.cat([x, skips.pop()], -1))))
        for upsampler in stage.upsamplers:
            x = self.ops.conv(upsampler.conv, double_size(x))
        return x

    def layer(self, stage: Any, index: int, parts: Sum, fork: bool = False) -> Sum:
        """A layer of a `Stage`."""
        parts = self.resnet(stage.resnets[index], parts)
        if stage.attentions:
            parts = self.spatial(stage.attentions[index], parts, fork)
        if stage.motion_modules:
            parts = self.temporal(stage.motion_modules[index].temporal_transformer, parts)
        return parts

    def resnet(self, module: Any, parts: Sum) -> Sum:
        """A `Resnet`."""
        normed, x = self.ops.group_norm(module.norm1, parts, silu=True)
        # One timestep serves all windows, so its embedding is a bias, and the convolution adds it along with its own.
        time = module.time_emb_proj(self.step.time).flatten()
        hidden = self.ops.conv(module.conv1, normed, module.conv1.bias + time)
        normed, _ = self.ops.group_norm(module.norm2, Sum(hidden), silu=True)
        shortcut = x if module.conv_shortcut is None else self.ops.conv(module.conv_shortcut, x)
        return Sum(self.ops.conv(module.conv2, normed), base=shortcut)

    def spatial(self, module: Any, parts: Sum, fork: bool = False) -> Sum:
        """A `SpatialTransformer`."""
        normed, image = self.ops.group_norm(module.norm, parts, silu=False)
        count, height, width, channels = normed.shape
        block = module.transformer_blocks[0]
        tokens = project(module.proj_in, normed.reshape(count, height * width, channels))
        normed, x = self.ops.layer_norm(block.norm1, tokens)
        attended = self.ops.attend(*project_apart(block.attn1.to_qkv, normed), heads=HEADS)
        normed, x = self.listen(block, project(block.attn1.to_out[0], attended, x), fork)
        x = self.ops.total(self.ops.feed_forward(block.ff, normed, x))
        back = project(module.proj_out, x)
        residual = double(image) if fork else image
        return Sum(back.delta.reshape(residual.shape), back.bias, residual)

    def listen(self, block: Any, parts: Sum, fork: bool) -> tuple[Tensor, Tensor]:
        """The audio attention of a `SpatialBlock`: its result, normalized for the feed-forward, and as it is."""
        normed, x = self.ops.layer_norm(block.norm2, parts)
        if fork:
            x = double(x)
        elif self.step.guided:
            normed = normed[self.step.audio.shape[0] :]
        query = torch.matmul(normed, block.attn2.to_q.weight)
        key, value = project_apart(block.attn2.to_kv, self.step.audio)
        heard = project(block.attn2.to_out[0], self.ops.attend(query, key, value, heads=HEADS))
        # What the unconditional half gets is the bias alone, which the sum adds to both.
        delta = torch.cat([torch.zeros_like(heard.delta), heard.delta]) if self.step.guided else heard.delta
        return self.ops.layer_norm(block.norm3, Sum(delta, heard.bias, x))

    def temporal(self, module: Any, parts: Sum) -> Sum:
        """A `TemporalTransformer`."""
        normed, image = self.ops.group_norm(module.norm, parts, silu=False)
        frames, (count, height, width, channels) = self.ops.frames, normed.shape
        windows, pixels = count // frames, height * width
        # Between the two transposes everything is of single tokens, or of one pixel's frames.
        moved = normed.reshape(windows, frames, pixels, channels).transpose(1, 2)
        packed = self.ops.form.packed_pixels if pixels % self.ops.form.packed_pixels == 0 else 1
        block = module.transformer_blocks[0]
        parts = project(module.proj_in, moved.reshape(-1, packed * frames, channels))
        for attention, norm in zip(block.attention_blocks, block.norms, strict=True):
            normed, x = self.ops.layer_norm(norm, parts)
            positions = attention.pos_encoder(frames).reshape(frames, channels).repeat(packed, 1)
            attended = self.ops.attend_frames(*project_apart(attention.to_qkv, normed + positions), heads=HEADS)
            parts = project(attention.to_out[0], attended, x)
        normed, x = self.ops.layer_norm(block.ff_norm, parts)
        back = project(module.proj_out, self.ops.total(self.ops.feed_forward(block.ff, normed, x)))
        delta = back.delta.reshape(windows, pixels, frames, channels).transpose(1, 2)
        return Sum(delta.reshape(image.shape), back.bias, image)


def unet_obstacle(unet: UNet) -> str | None:
    """Why the U-Net has no CUDA form, None if it has one."""
    widths = {module.weight.shape[0] for module in unet.modules() if isinstance(module, WindowNorm | FrameNorm)}
    found = (group_norm_obstacle(width, NORM_GROUPS) for width in sorted(widths))
    return next((obstacle for obstacle in found if obstacle), None)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)
