"""The U-Net and the VAE's two networks in the CUDA form: inputs, outputs and modules as in the portable form.

They can only be traced: PyTorch has no kernels for the operations of `cuda_ops`. Images are `(N, h, w, C)` within.
"""

from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.export import cuda_ops as ops
from latentsync_trt.export.cuda_ops import Sum
from latentsync_trt.export.layers import HEADS
from latentsync_trt.export.unet import UNet
from latentsync_trt.export.unet_blocks import Resampler, StepInputs, double

_HALVING_PADS = (0, 0, 1, 1)
"""Padding by diffusers before the encoder's convolutions that halve the size: top, left, bottom, right."""

_SUPPORTED = {
    "down_block_types": "DownEncoderBlock2D",
    "up_block_types": "UpDecoderBlock2D",
    "act_fn": "silu",
    "mid_block_add_attention": True,
}


class CudaUNet(UNet):
    """Inherits the order of the blocks."""

    channel_axis = 3

    def __init__(self, unet: UNet) -> None:
        nn.Module.__init__(self)
        self.config = unet.config
        self._modules = dict(unet._modules)
        # Not in `forward`, where they would be traced.
        self._doubling = {
            resampler: ops.DoublingConv(resampler.conv)
            for resampler in unet.up_blocks.modules()
            if isinstance(resampler, Resampler) and resampler.up
        }

    def forward(
        self, sample: Tensor, timestep: Tensor, audio: Tensor, hidden: Tensor | None = None, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """As in `UNet`."""
        state = None if hidden is None else _channels_last(hidden)
        noise, state = super().forward(_channels_last(sample), timestep, audio, state, **how)
        return _channels_first(noise), _channels_first(state)

    def _conv(self, module: nn.Module, x: Tensor) -> Tensor:
        return ops.conv(module, x)

    def _resample(self, resampler: Any, x: Tensor) -> Tensor:
        return ops.total(self._doubling[resampler](x)) if resampler.up else ops.conv(resampler.conv, x)

    def _layer(self, stage: Any, index: int, x: Tensor, step: StepInputs, fork: bool = False) -> Tensor:
        return ops.total(_layer(stage, index, x, step, fork))

    def _middle(self, x: Tensor, step: StepInputs) -> Tensor:
        block: Any = self.mid_block
        parts = ops.resnet(block.resnets[0], Sum(x), step.frames, step.time)
        parts = _spatial(block.attentions[0], parts, step)
        return ops.total(ops.resnet(block.resnets[1], parts, step.frames, step.time))

    def _head(self, stage: Any, x: Tensor, step: StepInputs) -> Tensor:
        parts = _layer(stage, len(stage.resnets) - 1, x, step)
        normed, _ = ops.group_norm(self.conv_norm_out, parts, frames=step.frames, silu=True)
        return ops.conv(self.conv_out, normed)


def _layer(stage: Any, index: int, x: Tensor, step: StepInputs, fork: bool = False) -> Sum:
    """A layer of a `Stage`."""
    parts = ops.resnet(stage.resnets[index], Sum(x), step.frames, step.time)
    if stage.attentions:
        parts = _spatial(stage.attentions[index], parts, step, fork)
    if stage.motion_modules:
        parts = _temporal(stage.motion_modules[index].temporal_transformer, parts, step.frames)
    return parts


def _spatial(module: Any, parts: Sum, step: StepInputs, fork: bool = False) -> Sum:
    """A `SpatialTransformer`."""
    normed, image = ops.group_norm(module.norm, parts, silu=False)
    count, height, width, channels = normed.shape
    block = module.transformer_blocks[0]
    tokens = ops.project(module.proj_in, normed.reshape(count, height * width, channels))
    normed, x = ops.layer_norm(block.norm1, tokens)
    attended = ops.attend(*ops.project_apart(block.attn1.to_qkv, normed), heads=HEADS)
    normed, x = _attend_audio(block, ops.project(block.attn1.to_out[0], attended, x), step, fork)
    x = ops.total(ops.feed_forward(block.ff, normed, x))
    back = ops.project(module.proj_out, x)
    residual = double(image) if fork else image
    return Sum(back.delta.reshape(residual.shape), back.bias, residual)


def _attend_audio(block: Any, parts: Sum, step: StepInputs, fork: bool) -> tuple[Tensor, Tensor]:
    """The audio attention of a `SpatialBlock`: the sum normalized for the feed-forward, and the sum."""
    normed, x = ops.layer_norm(block.norm2, parts)
    if fork:
        x = double(x)
    elif step.guided:
        normed = normed[step.audio.shape[0] :]
    query = torch.matmul(normed, block.attn2.to_q.weight)
    key, value = ops.project_apart(block.attn2.to_kv, step.audio)
    conditional = ops.project(block.attn2.to_out[0], ops.attend(query, key, value, heads=HEADS))
    # The unconditional half gets only the bias, which the sum adds to both halves.
    delta = conditional.delta
    if step.guided:
        delta = torch.cat([torch.zeros_like(delta), delta])
    return ops.layer_norm(block.norm3, Sum(delta, conditional.bias, x))


def _temporal(module: Any, parts: Sum, frames: int) -> Sum:
    """A `TemporalTransformer`."""
    normed, image = ops.group_norm(module.norm, parts, silu=False)
    count, height, width, channels = normed.shape
    windows, pixels = count // frames, height * width
    # Everything between the two transposes processes single tokens, or the frames of one pixel.
    moved = normed.reshape(windows, frames, pixels, channels).transpose(1, 2)
    packed = ops.PACKED_PIXELS if pixels % ops.PACKED_PIXELS == 0 else 1
    block = module.transformer_blocks[0]
    parts = ops.project(module.proj_in, moved.reshape(-1, packed * frames, channels))
    for attention, norm in zip(block.attention_blocks, block.norms, strict=True):
        normed, x = ops.layer_norm(norm, parts)
        positions = attention.pos_encoder(frames).reshape(frames, channels).repeat(packed, 1)
        qkv = ops.project_apart(attention.to_qkv, normed + positions)
        parts = ops.project(attention.to_out[0], ops.attend_frames(*qkv, heads=HEADS, frames=frames), x)
    normed, x = ops.layer_norm(block.ff_norm, parts)
    back = ops.project(module.proj_out, ops.total(ops.feed_forward(block.ff, normed, x)))
    delta = back.delta.reshape(windows, pixels, frames, channels).transpose(1, 2)
    return Sum(delta.reshape(image.shape), back.bias, image)


class _CudaHalf(nn.Module):
    """The parts that encoder and decoder share."""

    def __init__(self, half: Any) -> None:
        super().__init__()
        self._modules = dict(half._modules)

    def middle(self, block: Any, parts: Sum) -> Sum:
        """A `UNetMidBlock2D`."""
        attention = block.attentions[0]
        normed, x = ops.group_norm(attention.group_norm, ops.resnet(block.resnets[0], parts), silu=False)
        count, height, width, channels = normed.shape
        tokens = normed.reshape(count, height * width, channels)
        projected = [projection(tokens) for projection in (attention.to_q, attention.to_k, attention.to_v)]
        attended = ops.attend(*projected, heads=attention.heads)
        out = attention.to_out[0]
        delta = torch.matmul(attended, out.weight.t()).reshape(normed.shape)
        return ops.resnet(block.resnets[1], Sum(delta, out.bias, x))

    def head(self, parts: Sum) -> Tensor:
        """The last norm and convolution, `(N, C, h, w)`."""
        modules: Any = self
        normed, _ = ops.group_norm(modules.conv_norm_out, parts, silu=True)
        return _channels_first(ops.conv(modules.conv_out, normed))


class CudaEncoder(_CudaHalf):
    """diffusers' `Encoder`, `(N, 3, H, W)` → moments `(N, 8, h, w)`."""

    def forward(self, image: Tensor) -> Tensor:
        modules: Any = self
        parts = Sum(ops.conv(modules.conv_in, _channels_last(image)))
        for block in modules.down_blocks:
            for module in block.resnets:
                parts = ops.resnet(module, parts, summed=bool(block.downsamplers) and module is block.resnets[-1])
            for down in block.downsamplers or ():
                parts = Sum(ops.conv(down.conv, ops.total(parts), pads=_HALVING_PADS))
        return self.head(self.middle(modules.mid_block, parts))


class CudaDecoder(_CudaHalf):
    """diffusers' `Decoder`, `(N, 4, h, w)` → `(N, 3, H, W)`."""

    def __init__(self, half: Any) -> None:
        super().__init__(half)
        # Not in `forward`, where they would be traced.
        self._doubling = {up: ops.DoublingConv(up.conv) for block in half.up_blocks for up in block.upsamplers or ()}

    def forward(self, latent: Tensor) -> Tensor:
        modules: Any = self
        parts = self.middle(modules.mid_block, Sum(ops.conv(modules.conv_in, _channels_last(latent))))
        for block in modules.up_blocks:
            for module in block.resnets:
                parts = ops.resnet(module, parts, summed=bool(block.upsamplers) and module is block.resnets[-1])
            for up in block.upsamplers or ():
                parts = self._doubling[up](ops.total(parts))
        return self.head(parts)


class PointwiseConv(nn.Module):
    """A 1×1 convolution of `(N, C, h, w)` as a matrix product, since cuDNN fuses no bias for so few channels."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias

    def forward(self, image: Tensor) -> Tensor:
        product = torch.matmul(_channels_last(image), self.weight.flatten(1).t())
        return _channels_first(product + self.bias)


def vae_obstacle(vae: Any) -> str | None:
    """The reason why the VAE has no CUDA form (an unsupported setting or norm); None if it has one."""
    for setting, supported in _SUPPORTED.items():
        given = vae.config[setting]
        if {*given} != {supported} if isinstance(given, tuple | list) else given != supported:
            return f"its {setting} is {given}, not {supported}"
    return ops.norm_obstacle(vae)


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)
