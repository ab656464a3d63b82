"""Operations of the CUDA form, computed with the modules that hold the weights.

The portable graphs run on every provider, but the CUDA provider spends more than half of their time on layout changes
around convolutions, on norms in a dozen float32 passes, and on biases and residual sums. In the CUDA form activations
are channels-last throughout: images `(N, h, w, C)` and tokens `(N, T, C)`, with N frames of all windows. Kernels of
the domain com.microsoft fuse such passes (docs/performance.md lists their gains). A residual sum stays an unevaluated
`Sum` until its value is needed, so that the next kernel can compute it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.onnx import ops

from latentsync_trt.export.layers import WindowNorm

DOMAIN = "com.microsoft"

SPLIT_GELU_WIDTHS = frozenset({2560, 5120, 6144, 10240, 12288})
"""Widths, before the split, for which BiasSplitGelu is compiled."""

BIAS_ADD_WIDTHS = frozenset({320, 640, 1280})
"""Widths for which BiasAdd is compiled."""

PACKED_PIXELS = 4
"""The frames of this many pixels form one sequence in the attention among frames, with a mask between pixels: 16 frames
alone would leave the kernel's tile mostly empty."""

_CHANNELS_PER_THREAD = 2
_ATTENTION_OPSET = 23
_MASKED = -30000.0
"""Value of masked scores: finite in half precision, and exactly zero after the softmax."""

Attributes = Mapping[str, int | float | Sequence[int]]


def norm_obstacle(network: nn.Module) -> str | None:
    """The reason why the GroupNorm kernel does not support one of the network's norms; None if it supports all."""
    norms = {(norm.num_channels, norm.num_groups) for norm in network.modules() if isinstance(norm, nn.GroupNorm)}
    for channels, groups in sorted(norms):
        if channels // groups % _CHANNELS_PER_THREAD:
            return f"GroupNorm's kernel takes groups of an even number of channels, not {channels} channels in {groups}"
    return None


@dataclass(frozen=True, slots=True)
class Sum:
    """`base + delta + bias`, not yet evaluated; `base` (shaped like `delta`) and `bias (C,)` are optional."""

    delta: Tensor
    bias: Tensor | None = None
    base: Tensor | None = None


def total(parts: Sum) -> Tensor:
    """Evaluates the sum."""
    delta, bias, base = parts.delta, parts.bias, parts.base
    if base is None:
        return delta if bias is None else delta + bias
    if bias is None:
        return base + delta
    width = delta.shape[-1]
    if width not in BIAS_ADD_WIDTHS:
        return base + (delta + bias)
    flat = (delta.shape[0], delta[0].numel() // width, width)
    added = _contrib("BiasAdd", (delta.reshape(flat), bias, base.reshape(flat)), delta, flat)
    return added.reshape(delta.shape)


def layer_norm(norm: Any, parts: Sum) -> tuple[Tensor, Tensor]:
    """The sum normalized by an `nn.LayerNorm`, and the sum."""
    delta, bias, base = parts.delta, parts.bias, parts.base
    if base is None and bias is None:
        return norm(delta), delta
    shape, width = delta.shape, delta.shape[-1]
    if base is None and bias is not None:
        # The kernel needs a residual to add a bias; it broadcasts a residual over the batch, so the bias becomes one.
        delta, base, bias = delta.reshape(-1, 1, width), bias.reshape(1, 1, width), None
    rows = (*delta.shape[:-1], 1)
    normed, _, _, added = ops.symbolic_multi_out(
        f"{DOMAIN}::SkipLayerNormalization",
        (delta, base, norm.weight, norm.bias) if bias is None else (delta, base, norm.weight, norm.bias, bias),
        {"epsilon": norm.eps},
        dtypes=(delta.dtype, torch.float32, torch.float32, delta.dtype),
        shapes=(delta.shape, rows, rows, delta.shape),
        version=1,
    )
    return normed.reshape(shape), added.reshape(shape)


def group_norm(norm: Any, parts: Sum, *, frames: int = 1, silu: bool) -> tuple[Tensor, Tensor]:
    """The sum of images normalized by an `nn.GroupNorm`, with SiLU if asked for, and the sum.

    Only a `WindowNorm` uses `frames`, the number of frames per window.
    """
    shape = parts.delta.shape
    count, height, width, channels = shape
    # The frames of a window, stacked vertically, are one image to the kernel: its statistics cover the window.
    frames = frames if isinstance(norm, WindowNorm) else 1
    view = (count // frames, frames * height, width, channels)
    weight, offset = norm.weight.float(), norm.bias.float()
    attributes = {"epsilon": norm.eps, "groups": norm.num_groups, "activation": int(silu), "channels_last": 1}
    if parts.base is None:
        added = total(parts)
        normed = _contrib("GroupNorm", (added.reshape(view), weight, offset), added, view, attributes)
        return normed.reshape(shape), added
    inputs = (parts.delta.reshape(view), weight, offset, parts.base.reshape(view))
    normed, added = ops.symbolic_multi_out(
        f"{DOMAIN}::SkipGroupNorm",
        inputs if parts.bias is None else (*inputs, parts.bias),
        attributes,
        dtypes=(parts.delta.dtype,) * 2,
        shapes=(view, view),
        version=1,
    )
    return normed.reshape(shape), added.reshape(shape)


def conv(module: Any, image: Tensor, bias: Tensor | None = None, pads: tuple[int, ...] | None = None) -> Tensor:
    """An `nn.Conv2d` of images; `bias` and `pads` (top, left, bottom, right) replace its own."""
    top, left, bottom, right = pads or (*module.padding, *module.padding)
    (rows, columns), (down, across) = module.kernel_size, module.stride
    count, height, width, _ = image.shape
    out_height, out_width = (height + top + bottom - rows) // down + 1, (width + left + right - columns) // across + 1
    attributes: Attributes = {
        "kernel_shape": [rows, columns],
        "strides": [down, across],
        "pads": [top, left, bottom, right],
        "dilations": [1, 1],
        "group": 1,
    }
    inputs = (image, module.weight.permute(0, 2, 3, 1), module.bias if bias is None else bias)
    return _contrib("NhwcConv", inputs, image, (count, out_height, out_width, module.out_channels), attributes)


def resnet(module: Any, parts: Sum, frames: int = 1, time: Tensor | None = None) -> Sum:
    """A `Resnet` of the U-Net, or diffusers' `ResnetBlock2D`; `time (1, E)` is the activated time embedding."""
    normed, x = group_norm(module.norm1, parts, frames=frames, silu=True)
    # One timestep serves all windows, so its embedding is a bias, merged into that of the convolution.
    bias = None if time is None else module.conv1.bias + module.time_emb_proj(time).flatten()
    normed, _ = group_norm(module.norm2, Sum(conv(module.conv1, normed, bias)), frames=frames, silu=True)
    shortcut = x if module.conv_shortcut is None else conv(module.conv_shortcut, x)
    return Sum(conv(module.conv2, normed), base=shortcut)


def project(linear: Any, x: Tensor, base: Tensor | None = None) -> Sum:
    """A `Linear` whose bias, and the residual `base`, are deferred to the sum."""
    return Sum(torch.matmul(x, linear.weight), linear.bias, base)


def project_apart(linear: Any, x: Tensor) -> list[Tensor]:
    """The outputs of a `Linear` that stacks several projections, computed one by one."""
    parts = len(linear.sources)
    width = linear.weight.shape[1] // parts
    return [torch.matmul(x, linear.weight[:, part * width : (part + 1) * width]) for part in range(parts)]


def feed_forward(module: Any, tokens: Tensor, base: Tensor) -> Sum:
    """A `FeedForward` with the residual `base`; its last bias is deferred to the sum."""
    gate, _, back = module.net
    both = torch.matmul(tokens, gate.proj.weight)
    if both.shape[-1] in SPLIT_GELU_WIDTHS:
        inner = _contrib("BiasSplitGelu", (both, gate.proj.bias), both, (*both.shape[:-1], gate.outputs))
    else:
        left, right = (both + gate.proj.bias).chunk(2, -1)
        inner = left * F.gelu(right)
    return project(back, inner, base)


def attend(query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
    """Attention of `query (N, T, C)` over `key`, `value (N, S, C)`, as an operator that can use cuDNN."""
    return _contrib("MultiHeadAttention", (query, key, value), query, query.shape, {"num_heads": heads})


def attend_frames(query: Tensor, key: Tensor, value: Tensor, *, heads: int, frames: int) -> Tensor:
    """Attention among the frames of each pixel, `(P, T, C)`; T counts the frames of all pixels in a sequence."""
    length = query.shape[1]
    inputs = [query, key, value]
    if length != frames:
        pixel = torch.arange(length) // frames
        inputs.append(torch.where(pixel[:, None] == pixel[None], 0.0, _MASKED).to(query.dtype)[None, None])
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": heads}
    return ops.symbolic("Attention", inputs, attributes, dtype=query.dtype, shape=query.shape, version=_ATTENTION_OPSET)


def double_size(image: Tensor) -> Tensor:
    """Nearest-neighbor doubling of images `(N, h, w, C)`."""
    count, height, width, channels = image.shape
    wide = image[:, :, None, :, None, :].expand(count, height, 2, width, 2, channels)
    return wide.reshape(count, 2 * height, 2 * width, channels)


def _contrib(
    op: str, inputs: Sequence[Tensor], like: Tensor, shape: Sequence[int], attributes: Attributes | None = None
) -> Tensor:
    """Calls an operator of com.microsoft; its one output has the dtype of `like`."""
    return ops.symbolic(f"{DOMAIN}::{op}", inputs, dict(attributes or {}), dtype=like.dtype, shape=shape, version=1)
