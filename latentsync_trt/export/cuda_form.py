"""The U-Net and the VAE's halves in the CUDA form: inputs, outputs and parameters as in the
portable form.

They can only be traced: PyTorch has no kernels for the operations of `cuda_ops`. Images are `(N, h,
w, C)` within.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import HEADS
from latentsync_trt.export import cuda_ops as ops
from latentsync_trt.export.cuda_ops import Normed, Sum
from latentsync_trt.export.denoise_step import DenoiseStep
from latentsync_trt.export.networks import VaeDecoder, VaeEncoder
from latentsync_trt.export.unet import Prediction, StepInputs, UNet, shallow_copy

_CHANNELS_PER_THREAD = 2
"""Channels that a thread of the GroupNorm kernel computes: it takes groups of a multiple."""

_HALVING_PADS = (0, 0, 1, 1)
"""Padding by diffusers before the encoder's convolutions that halve the size: top, left, bottom,
right.
"""


def obstacle(network: nn.Module) -> str | None:
    """Returns why the U-Net or VAE has no CUDA form, which is a norm that the kernel does not take;
    None if it has one.
    """
    for norm in network.modules():
        if not isinstance(norm, nn.GroupNorm):
            continue
        if norm.num_channels // norm.num_groups % _CHANNELS_PER_THREAD:
            return (
                "GroupNorm's kernel takes groups of an even number "
                f"of channels, not {norm.num_channels} channels in {norm.num_groups}"
            )
    return None


def cuda_module(module: nn.Module) -> nn.Module:
    """Returns the CUDA form of a graph's module; it shares the parameters."""
    form: Any = shallow_copy(module)
    if isinstance(module, DenoiseStep):
        form.unet = CudaUNet(form.unet)
    elif isinstance(module, VaeEncoder):
        form.encoder = CudaVaeEncoder(form.encoder)
        form.quant_conv = PointwiseConv(form.quant_conv)
    elif isinstance(module, VaeDecoder):
        form.decoder = CudaVaeDecoder(form.decoder)
        form.post_quant_conv = PointwiseConv(form.post_quant_conv)
    return form


class CudaUNet(UNet):
    """The U-Net's blocks, in the order of the portable form."""

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
        **options: Any,
    ) -> Prediction:
        if hidden is not None:
            hidden = _channels_last(hidden)
        predicted = super().forward(_channels_last(sample), timestep, audio, hidden, **options)
        return Prediction(_channels_first(predicted.noise), _channels_first(predicted.hidden))

    def _conv(self, conv: nn.Module, x: Tensor) -> Tensor:
        return ops.total(_conv(conv, x))

    def _upsample(self, conv: nn.Module, x: Tensor) -> Tensor:
        return ops.total(self._doubling[conv](x))

    def _layers(
        self, block: Any, indices: Sequence[int], x: Tensor, step: StepInputs, fork: bool = False
    ) -> Tensor:
        parts = Sum(x)
        for index in indices:
            parts = _layer(block, index, parts, step, fork)
        return ops.total(parts)

    def _head(self, block: Any, x: Tensor, step: StepInputs) -> Tensor:
        parts = _layer(block, len(block.resnets) - 1, Sum(x), step)
        out = ops.group_norm(self.conv_norm_out, parts, frames=step.frames, silu=True)
        return self._conv(self.conv_out, out.normed)


def resnet(
    module: Any, parts: Sum, frames: int = 1, time: Tensor | None = None, *, summed: bool = False
) -> Sum:
    """Returns what a `Resnet` of the U-Net, or diffusers' `ResnetBlock2D`, makes of images.

    Args:
        time: the activated time embedding, `(1, E)`.
        summed: whether the caller evaluates the sum, where a bias within the convolution costs
            least.
    """
    entry = ops.group_norm(module.norm1, parts, frames=frames, silu=True)
    inner = _conv(module.conv1, entry.normed)
    if time is not None:
        # One timestep serves all windows: a residual of one pixel.
        windows = time.expand(inner.delta.shape[0] // frames, -1)
        inner = replace(inner, base=module.time_emb_proj(windows)[:, None, None])
    middle = ops.group_norm(module.norm2, inner, frames=frames, silu=True)
    delta = ops.conv(module.conv2, middle.normed, biased=summed)
    residual = entry.total
    bias = module.conv2.bias
    if module.conv_shortcut is not None:
        residual = ops.conv(module.conv_shortcut, residual, biased=summed)
    if summed:
        return Sum(delta, base=residual)
    if module.conv_shortcut is not None:
        bias = bias + module.conv_shortcut.bias
    return Sum(delta, bias, residual)


def _layer(block: Any, index: int, parts: Sum, step: StepInputs, fork: bool = False) -> Sum:
    parts = resnet(block.resnets[index], parts, step.frames, step.time)
    if index < len(block.attentions):
        parts = _spatial(block.attentions[index], parts, step, fork)
    if block.motion_modules:
        parts = _temporal(block.motion_modules[index].temporal_transformer, parts, step.frames)
    return parts


def _spatial(module: Any, parts: Sum, step: StepInputs, fork: bool) -> Sum:
    image = ops.group_norm(module.norm, parts, silu=False)
    block = module.transformer_blocks[0]
    tokens = ops.layer_norm(block.norm1, ops.project(module.proj_in, image.normed.flatten(1, 2)))
    qkv = ops.project_apart(block.attn1.to_qkv, tokens.normed)
    attended = ops.fused_attention(*qkv, heads=HEADS)
    tokens = _attend_audio(
        block, ops.project(block.attn1.to_out[0], attended, tokens.total), step, fork
    )
    back = ops.project(module.proj_out, ops.total(ops.feed_forward(block.ff, tokens)))
    residual = image.total
    if fork:
        residual = torch.cat([residual, residual])
    return Sum(back.delta.reshape(residual.shape), back.bias, residual)


def _attend_audio(block: Any, parts: Sum, step: StepInputs, fork: bool) -> Normed:
    """Returns the sum after the audio attention of a `SpatialBlock`, normalized for the
    feed-forward.
    """
    tokens = ops.layer_norm(block.norm2, parts)
    residual = tokens.total
    conditional = tokens.normed
    if fork:
        residual = torch.cat([residual, residual])
    elif step.guided:
        conditional = conditional[step.audio.shape[0] :]
    query = torch.matmul(conditional, block.attn2.to_q.weight)
    key, value = ops.project_apart(block.attn2.to_kv, step.audio)
    attended = ops.fused_attention(query, key, value, heads=HEADS)
    out = ops.project(block.attn2.to_out[0], attended)
    # The unconditional half gets only the bias, which the sum adds to both halves.
    delta = out.delta
    if step.guided:
        delta = torch.cat([torch.zeros_like(delta), delta])
    return ops.layer_norm(block.norm3, Sum(delta, out.bias, residual))


def _temporal(module: Any, parts: Sum, frames: int) -> Sum:
    image = ops.group_norm(module.norm, parts, silu=False)
    count, height, width, channels = image.normed.shape
    windows = count // frames
    pixels = height * width
    # Everything between the two transposes processes single tokens, or the frames of one pixel.
    moved = image.normed.reshape(windows, frames, pixels, channels).transpose(1, 2)
    packed = 1 if pixels % ops.PACKED_PIXELS else ops.PACKED_PIXELS
    back = _temporal_tokens(module, moved.reshape(-1, packed * frames, channels), frames, packed)
    delta = back.delta.reshape(windows, pixels, frames, channels).transpose(1, 2)
    return Sum(delta.reshape(image.total.shape), back.bias, image.total)


def _temporal_tokens(module: Any, tokens: Tensor, frames: int, packed: int) -> Sum:
    """Returns what a temporal `Transformer` makes of normalized tokens, without its residual;
    `packed` pixels are in one sequence.
    """
    block = module.transformer_blocks[0]
    parts = ops.project(module.proj_in, tokens)
    for attention, norm in zip(block.attention_blocks, block.norms, strict=True):
        entry = ops.layer_norm(norm, parts)
        positions = attention.positions(frames).reshape(frames, -1).repeat(packed, 1)
        qkv = ops.project_apart(attention.to_qkv, entry.normed + positions)
        attended = ops.attention_among_frames(qkv, heads=HEADS, frames=frames)
        parts = ops.project(attention.to_out[0], attended, entry.total)
    fed = ops.feed_forward(block.ff, ops.layer_norm(block.ff_norm, parts))
    return ops.project(module.proj_out, ops.total(fed))


class CudaVaeEncoder(nn.Module):
    """diffusers' `Encoder`, images `(N, 3, H, W)` → moments `(N, 8, h, w)`."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._modules = dict(encoder._modules)

    def forward(self, image: Tensor) -> Tensor:
        encoder: Any = self
        parts = _conv(encoder.conv_in, _channels_last(image))
        for block in encoder.down_blocks:
            parts = _resnets(block.resnets, parts, summed=bool(block.downsamplers))
            for downsampler in block.downsamplers or ():
                parts = _conv(downsampler.conv, ops.total(parts), _HALVING_PADS)
        return _vae_end(encoder, _vae_middle(encoder.mid_block, parts))


class CudaVaeDecoder(nn.Module):
    """diffusers' `Decoder`, latents `(N, 4, h, w)` → images `(N, 3, H, W)`."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self._modules = dict(decoder._modules)
        self._doubling = _doubling(decoder.up_blocks)

    def forward(self, latent: Tensor) -> Tensor:
        decoder: Any = self
        parts = _conv(decoder.conv_in, _channels_last(latent))
        parts = _vae_middle(decoder.mid_block, parts)
        for block in decoder.up_blocks:
            parts = _resnets(block.resnets, parts, summed=bool(block.upsamplers))
            for upsampler in block.upsamplers or ():
                parts = self._doubling[upsampler.conv](ops.total(parts))
        return _vae_end(decoder, parts)


def _resnets(resnets: Sequence[Any], parts: Sum, *, summed: bool) -> Sum:
    """Returns what resnets of the VAE make of images; `summed`: whether the caller evaluates the
    sum.
    """
    for module in resnets[:-1]:
        parts = resnet(module, parts)
    return resnet(resnets[-1], parts, summed=summed)


def _vae_middle(block: Any, parts: Sum) -> Sum:
    attention = block.attentions[0]
    parts = resnet(block.resnets[0], parts)
    image = ops.group_norm(attention.group_norm, parts, silu=False)
    tokens = image.normed.flatten(1, 2)
    query = attention.to_q(tokens)
    key = attention.to_k(tokens)
    value = attention.to_v(tokens)
    attended = ops.fused_attention(query, key, value, heads=attention.heads)
    out = attention.to_out[0]
    delta = torch.matmul(attended, out.weight.t()).reshape(image.total.shape)
    return resnet(block.resnets[1], Sum(delta, out.bias, image.total))


def _vae_end(half: Any, parts: Sum) -> Tensor:
    out = ops.group_norm(half.conv_norm_out, parts, silu=True)
    return _channels_first(ops.total(_conv(half.conv_out, out.normed)))


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


def _conv(module: Any, x: Tensor, pads: Sequence[int] | None = None) -> Sum:
    """Returns a convolution whose bias is not yet added: `ops.conv` says why."""
    return Sum(ops.conv(module, x, pads, biased=False), module.bias)


def _doubling(blocks: Iterable[Any]) -> dict[nn.Module, ops.DoublingConv]:
    """Returns what replaces the convolutions of upsamplers, by convolution.

    They are not made in `forward`, where their making would be traced.
    """
    replacements = {}
    for block in blocks:
        for upsampler in getattr(block, "upsamplers", None) or ():
            replacements[upsampler.conv] = ops.DoublingConv(upsampler.conv)
    return replacements


def _channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _channels_first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)
