"""The U-Net and the VAE's halves in the CUDA form: inputs, outputs and parameters as in the
portable form.

They can only be traced: PyTorch has no kernels for the operations of `cuda_ops`. Images are `(N, h,
w, C)` within.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import HEADS
from latentsync_trt.export import cuda_ops as ops
from latentsync_trt.export.cuda_ops import Sum
from latentsync_trt.export.networks import VaeDecoder, VaeEncoder
from latentsync_trt.export.unet import DenoiseStep, StepInputs, UNet, shallow_copy

_CHANNELS_PER_THREAD = 2  # of the GroupNorm kernel

_HALVING_PADS = (0, 0, 1, 1)
"""Padding by diffusers before the encoder's convolutions that halve the size: top, left, bottom,
right.
"""


def obstacle(network: nn.Module) -> str | None:
    """The reason why the U-Net or VAE has no CUDA form (a norm that the kernel does not take); None
    if it has one.
    """
    norms = {
        (norm.num_channels, norm.num_groups)
        for norm in network.modules()
        if isinstance(norm, nn.GroupNorm)
    }
    for channels, groups in sorted(norms):
        if channels // groups % _CHANNELS_PER_THREAD:
            return (
                "GroupNorm's kernel takes groups of an even number "
                f"of channels, not {channels} channels in {groups}"
            )
    return None


def cuda_module(module: nn.Module) -> nn.Module:
    """The CUDA form of a graph's module; it shares the parameters."""
    made: Any = shallow_copy(module)
    if isinstance(module, DenoiseStep):
        made.unet = CudaUNet(made.unet)
    elif isinstance(module, VaeEncoder):
        made.encoder = CudaHalf(made.encoder)
        made.quant_conv = PointwiseConv(made.quant_conv)
    elif isinstance(module, VaeDecoder):
        made.decoder = CudaHalf(made.decoder)
        made.post_quant_conv = PointwiseConv(made.post_quant_conv)
    return made


class CudaUNet(UNet):
    """Inherits the order of the blocks."""

    channel_axis = 3

    def __init__(self, unet: UNet) -> None:
        nn.Module.__init__(self)
        self.config = unet.config
        for name, module in unet.named_children():
            self.add_module(name, module)
        self._doubling = _doubling(unet.up_blocks)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        audio: Tensor,
        hidden: Tensor | None = None,
        **how: Any,
    ) -> tuple[Tensor, Tensor]:
        state = None if hidden is None else _channels_last(hidden)
        noise, state = super().forward(_channels_last(sample), timestep, audio, state, **how)
        return _channels_first(noise), _channels_first(state)

    def _conv(self, module: nn.Module, x: Tensor) -> Tensor:
        return ops.total(_conv(module, x))

    def _upsample(self, conv: nn.Module, x: Tensor) -> Tensor:
        return ops.total(self._doubling[conv](x))

    def _layers(
        self, stage: Any, indices: tuple[int, ...], x: Tensor, step: StepInputs, fork: bool = False
    ) -> Tensor:
        parts = Sum(x)
        for index in indices:
            parts = _layer(stage, index, parts, step, fork)
        return ops.total(parts)

    def _head(self, stage: Any, x: Tensor, step: StepInputs) -> Tensor:
        parts = _layer(stage, len(stage.resnets) - 1, Sum(x), step)
        normed, _ = ops.group_norm(self.conv_norm_out, parts, frames=step.frames, silu=True)
        return ops.total(_conv(self.conv_out, normed))


def resnet(
    module: Any, parts: Sum, frames: int = 1, time: Tensor | None = None, *, summed: bool = False
) -> Sum:
    """A `Resnet` of the U-Net, or diffusers' `ResnetBlock2D`; `time (1, E)` is the activated time
    embedding.

    `summed`: the caller evaluates the sum, where a bias within the convolution costs least.
    """
    normed, x = ops.group_norm(module.norm1, parts, frames=frames, silu=True)
    inner = _conv(module.conv1, normed)
    if time is not None:
        # One timestep serves all windows: a residual of one pixel.
        windows = time.expand(inner.delta.shape[0] // frames, -1)
        inner = replace(inner, base=module.time_emb_proj(windows)[:, None, None])
    normed, _ = ops.group_norm(module.norm2, inner, frames=frames, silu=True)
    outer = ops.conv(module.conv2, normed, biased=summed)
    bias = None if summed else module.conv2.bias
    if module.conv_shortcut is None:
        return Sum(outer, bias, x)
    shortcut = ops.conv(module.conv_shortcut, x, biased=summed)
    return Sum(outer, None if summed else module.conv2.bias + module.conv_shortcut.bias, shortcut)


def _layer(stage: Any, index: int, parts: Sum, step: StepInputs, fork: bool = False) -> Sum:
    parts = resnet(stage.resnets[index], parts, step.frames, step.time)
    if index < len(stage.attentions):
        parts = _spatial(stage.attentions[index], parts, step, fork)
    if stage.motion_modules:
        parts = _temporal(stage.motion_modules[index].temporal_transformer, parts, step.frames)
    return parts


def _spatial(module: Any, parts: Sum, step: StepInputs, fork: bool = False) -> Sum:
    normed, image = ops.group_norm(module.norm, parts, silu=False)
    count, height, width, channels = normed.shape
    block = module.transformer_blocks[0]
    tokens = ops.project(module.proj_in, normed.reshape(count, height * width, channels))
    normed, x = ops.layer_norm(block.norm1, tokens)
    attended = ops.attend(*ops.project_apart(block.attn1.to_qkv, normed), heads=HEADS)
    normed, x = _attend_audio(block, ops.project(block.attn1.to_out[0], attended, x), step, fork)
    x = ops.total(ops.feed_forward(block.ff, normed, x))
    back = ops.project(module.proj_out, x)
    residual = torch.cat([image, image]) if fork else image
    return Sum(back.delta.reshape(residual.shape), back.bias, residual)


def _attend_audio(block: Any, parts: Sum, step: StepInputs, fork: bool) -> tuple[Tensor, Tensor]:
    """The audio attention of a `SpatialBlock`: the sum normalized for the feed-forward, and the
    sum.
    """
    normed, x = ops.layer_norm(block.norm2, parts)
    if fork:
        x = torch.cat([x, x])
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
    normed, image = ops.group_norm(module.norm, parts, silu=False)
    count, height, width, channels = normed.shape
    windows = count // frames
    pixels = height * width
    # Everything between the two transposes processes single tokens, or the frames of one pixel.
    moved = normed.reshape(windows, frames, pixels, channels).transpose(1, 2)
    packed = ops.PACKED_PIXELS if pixels % ops.PACKED_PIXELS == 0 else 1
    block = module.transformer_blocks[0]
    parts = ops.project(module.proj_in, moved.reshape(-1, packed * frames, channels))
    for attention, norm in zip(block.attention_blocks, block.norms, strict=True):
        normed, x = ops.layer_norm(norm, parts)
        positions = attention.positions(frames).reshape(frames, channels).repeat(packed, 1)
        qkv = ops.project_apart(attention.to_qkv, normed + positions)
        parts = ops.project(
            attention.to_out[0], ops.attend_frames(*qkv, heads=HEADS, frames=frames), x
        )
    normed, x = ops.layer_norm(block.ff_norm, parts)
    back = ops.project(module.proj_out, ops.total(ops.feed_forward(block.ff, normed, x)))
    delta = back.delta.reshape(windows, pixels, frames, channels).transpose(1, 2)
    return Sum(delta.reshape(image.shape), back.bias, image)


class CudaHalf(nn.Module):
    """diffusers' `Encoder`, `(N, 3, H, W)` → moments `(N, 8, h, w)`, or `Decoder`, `(N, 4, h, w)` →
    `(N, 3, H, W)`.
    """

    def __init__(self, half: Any) -> None:
        super().__init__()
        self._modules = dict(half._modules)
        self._decodes = "up_blocks" in half._modules
        self._doubling = _doubling(half.up_blocks if self._decodes else ())

    def forward(self, image: Tensor) -> Tensor:
        half: Any = self
        parts = _conv(half.conv_in, _channels_last(image))
        if self._decodes:
            parts = self._middle(half.mid_block, parts)
        for block in half.up_blocks if self._decodes else half.down_blocks:
            resamplers = (block.upsamplers if self._decodes else block.downsamplers) or ()
            for module in block.resnets:
                parts = resnet(
                    module, parts, summed=bool(resamplers) and module is block.resnets[-1]
                )
            for module in resamplers:
                x = ops.total(parts)
                if self._decodes:
                    parts = self._doubling[module.conv](x)
                else:
                    parts = _conv(module.conv, x, _HALVING_PADS)
        if not self._decodes:
            parts = self._middle(half.mid_block, parts)
        normed, _ = ops.group_norm(half.conv_norm_out, parts, silu=True)
        return _channels_first(ops.total(_conv(half.conv_out, normed)))

    def _middle(self, block: Any, parts: Sum) -> Sum:
        attention = block.attentions[0]
        normed, x = ops.group_norm(
            attention.group_norm, resnet(block.resnets[0], parts), silu=False
        )
        count, height, width, channels = normed.shape
        tokens = normed.reshape(count, height * width, channels)
        projected = [
            projection(tokens) for projection in (attention.to_q, attention.to_k, attention.to_v)
        ]
        attended = ops.attend(*projected, heads=attention.heads)
        out = attention.to_out[0]
        delta = torch.matmul(attended, out.weight.t()).reshape(normed.shape)
        return resnet(block.resnets[1], Sum(delta, out.bias, x))


class PointwiseConv(nn.Module):
    """A 1×1 convolution of `(N, C, h, w)` as a matrix product, since cuDNN fuses no bias for so few
    channels.
    """

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.weight = conv.weight
        self.bias = conv.bias

    def forward(self, image: Tensor) -> Tensor:
        product = torch.matmul(_channels_last(image), self.weight.flatten(1).t())
        return _channels_first(product + self.bias)


def _conv(module: Any, x: Tensor, pads: tuple[int, ...] | None = None) -> Sum:
    """A convolution whose bias is deferred to the sum, see `cuda_ops.conv`."""
    return Sum(ops.conv(module, x, pads, biased=False), module.bias)


def _doubling(blocks: Iterable[Any]) -> dict[nn.Module, ops.DoublingConv]:
    """What replaces the convolutions of upsamplers; not made in `forward`, where it would be
    traced.
    """
    convs = [up.conv for block in blocks for up in getattr(block, "upsamplers", None) or ()]
    return {conv: ops.DoublingConv(conv) for conv in convs}


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)
