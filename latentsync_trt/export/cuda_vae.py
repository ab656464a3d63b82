"""The VAE's two networks in the CUDA form, over `cuda_ops`: they take, give and hold what diffusers' do."""

from typing import Any

import torch
from torch import Tensor, nn

from latentsync_trt.export.cuda_form import CudaForm, group_norm_obstacle
from latentsync_trt.export.cuda_ops import CudaOps, Sum, double_size

_HALVING_PADS = (0, 0, 1, 1)
"""What diffusers pads before an encoder's convolution that halves the size: top, left, bottom, right."""

_USUAL = {
    "down_block_types": "DownEncoderBlock2D",
    "up_block_types": "UpDecoderBlock2D",
    "act_fn": "silu",
    "mid_block_add_attention": True,
}


class _CudaHalf(nn.Module):
    """What encoder and decoder share. Images are independent of one another: windows of one frame."""

    def __init__(self, half: Any, form: CudaForm) -> None:
        super().__init__()
        self.ops = CudaOps(form, frames=1)
        self._modules = dict(half._modules)

    def resnet(self, module: Any, parts: Sum) -> Sum:
        """A `ResnetBlock2D`."""
        normed, x = self.ops.group_norm(module.norm1, parts, silu=True)
        hidden = self.ops.conv(module.conv1, normed)
        normed, _ = self.ops.group_norm(module.norm2, Sum(hidden), silu=True)
        shortcut = x if module.conv_shortcut is None else self.ops.conv(module.conv_shortcut, x)
        return Sum(self.ops.conv(module.conv2, normed), base=shortcut)

    def middle(self, block: Any, parts: Sum) -> Sum:
        """A `UNetMidBlock2D`."""
        attention = block.attentions[0]
        normed, x = self.ops.group_norm(attention.group_norm, self.resnet(block.resnets[0], parts), silu=False)
        count, height, width, channels = normed.shape
        tokens = normed.reshape(count, height * width, channels)
        projected = [projection(tokens) for projection in (attention.to_q, attention.to_k, attention.to_v)]
        attended = self.ops.attend(*projected, heads=attention.heads)
        out = attention.to_out[0]
        delta = torch.matmul(attended, out.weight.t()).reshape(normed.shape)
        return self.resnet(block.resnets[1], Sum(delta, out.bias, x))

    def end(self, parts: Sum) -> Tensor:
        """The last norm and convolution, `(N, C, h, w)`."""
        modules: Any = self
        normed, _ = self.ops.group_norm(modules.conv_norm_out, parts, silu=True)
        return self.ops.conv(modules.conv_out, normed).permute(0, 3, 1, 2)


class CudaEncoder(_CudaHalf):
    """diffusers' `Encoder`, `(N, 3, H, W)` → moments `(N, 8, h, w)`."""

    def forward(self, image: Tensor) -> Tensor:
        """One pass."""
        modules: Any = self
        parts = Sum(self.ops.conv(modules.conv_in, image.permute(0, 2, 3, 1)))
        for block in modules.down_blocks:
            for resnet in block.resnets:
                parts = self.resnet(resnet, parts)
            for down in block.downsamplers or ():
                parts = Sum(self.ops.conv(down.conv, self.ops.total(parts), pads=_HALVING_PADS))
        return self.end(self.middle(modules.mid_block, parts))


class CudaDecoder(_CudaHalf):
    """diffusers' `Decoder`, `(N, 4, h, w)` → `(N, 3, H, W)`."""

    def forward(self, latent: Tensor) -> Tensor:
        """One pass."""
        modules: Any = self
        parts = self.middle(modules.mid_block, Sum(self.ops.conv(modules.conv_in, latent.permute(0, 2, 3, 1))))
        for block in modules.up_blocks:
            for resnet in block.resnets:
                parts = self.resnet(resnet, parts)
            for up in block.upsamplers or ():
                parts = Sum(self.ops.conv(up.conv, double_size(self.ops.total(parts))))
        return self.end(parts)


class PixelProduct(nn.Module):
    """A convolution of single pixels, `(N, C, h, w)`, as a matrix product: cuDNN fuses no bias with so few channels."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias

    def forward(self, image: Tensor) -> Tensor:
        """One pass."""
        product = torch.matmul(image.permute(0, 2, 3, 1), self.weight.flatten(1).t())
        return (product + self.bias).permute(0, 3, 1, 2)


def vae_obstacle(vae: Any) -> str | None:
    """Why the VAE has no CUDA form, None if it has one: a kernel refuses a width, or it is not built as is usual."""
    for setting, usual in _USUAL.items():
        given = vae.config[setting]
        if {*given} != {usual} if isinstance(given, tuple | list) else given != usual:
            return f"its {setting} is {given}, not {usual}"
    norms = {(norm.num_channels, norm.num_groups) for norm in vae.modules() if isinstance(norm, nn.GroupNorm)}
    found = (group_norm_obstacle(channels, groups) for channels, groups in sorted(norms))
    return next((obstacle for obstacle in found if obstacle), None)
