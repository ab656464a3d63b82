"""The VAE's two networks in the CUDA form: inputs, outputs and modules of diffusers' own, computed by `cuda_ops`."""

from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.export import cuda_ops as ops
from latentsync_trt.export.cuda_ops import Sum

_HALVING_PADS = (0, 0, 1, 1)
"""Padding by diffusers before the encoder's convolutions that halve the size: top, left, bottom, right."""

_SUPPORTED = {
    "down_block_types": "DownEncoderBlock2D",
    "up_block_types": "UpDecoderBlock2D",
    "act_fn": "silu",
    "mid_block_add_attention": True,
}


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
        return ops.conv(modules.conv_out, normed).permute(0, 3, 1, 2)


class CudaEncoder(_CudaHalf):
    """diffusers' `Encoder`, `(N, 3, H, W)` → moments `(N, 8, h, w)`."""

    def forward(self, image: Tensor) -> Tensor:
        modules: Any = self
        parts = Sum(ops.conv(modules.conv_in, image.permute(0, 2, 3, 1)))
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
        parts = self.middle(modules.mid_block, Sum(ops.conv(modules.conv_in, latent.permute(0, 2, 3, 1))))
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
        product = torch.matmul(image.permute(0, 2, 3, 1), self.weight.flatten(1).t())
        return (product + self.bias).permute(0, 3, 1, 2)


def vae_obstacle(vae: Any) -> str | None:
    """The reason why the VAE has no CUDA form (an unsupported setting or norm); None if it has one."""
    for setting, supported in _SUPPORTED.items():
        given = vae.config[setting]
        if {*given} != {supported} if isinstance(given, tuple | list) else given != supported:
            return f"its {setting} is {given}, not {supported}"
    return ops.norm_obstacle(vae)
