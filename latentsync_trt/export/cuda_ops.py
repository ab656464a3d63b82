"""The operations of the CUDA form over the modules that hold the weights; which module it is, docstrings say.

Activations are channels-last: images `(N, h, w, C)`, tokens `(N, T, C)`; N counts the frames of all windows. A residual
sum is carried as a `Sum` until something needs it, so that the kernel that comes next can do it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.onnx import ops

from latentsync_trt.export.cuda_form import BIAS_ADD_WIDTHS, DOMAIN, SPLIT_GELU_WIDTHS, AttentionOp, CudaForm
from latentsync_trt.export.layers import FRAME_NORM_EPS, LAYER_NORM_EPS, NORM_GROUPS, WINDOW_NORM_EPS, WindowNorm

_ATTENTION_OPSET = 23

Attributes = Mapping[str, int | float | Sequence[int]]


@dataclass(frozen=True, slots=True)
class Sum:
    """`base + delta + bias`, not yet added up; `base`, of the shape of `delta`, and `bias (C,)` may be missing."""

    delta: Tensor
    bias: Tensor | None = None
    base: Tensor | None = None


@dataclass(frozen=True, slots=True)
class CudaOps:
    """What `form` makes of each operation, for windows of `frames` frames."""

    form: CudaForm
    frames: int

    def total(self, parts: Sum) -> Tensor:
        """The sum, added up."""
        delta, bias, base = parts.delta, parts.bias, parts.base
        if base is None:
            return delta if bias is None else delta + bias
        if bias is None:
            return base + delta
        width = delta.shape[-1]
        if not self.form.bias_add or width not in BIAS_ADD_WIDTHS:
            return base + (delta + bias)
        flat = (delta.shape[0], delta[0].numel() // width, width)
        added = _contrib("BiasAdd", (delta.reshape(flat), bias, base.reshape(flat)), like=delta, shape=flat)
        return added.reshape(delta.shape)

    def layer_norm(self, norm: Any, parts: Sum) -> tuple[Tensor, Tensor]:
        """The sum, normalized by a `LayerNorm`, and the sum."""
        weight, offset = norm.weight, norm.bias
        delta, bias, base = parts.delta, parts.bias, parts.base
        if not self.form.skip_layer_norm or (base is None and bias is None):
            total = self.total(parts)
            return F.layer_norm(total, weight.shape, weight, offset, LAYER_NORM_EPS), total
        shape, width = delta.shape, delta.shape[-1]
        if base is None and bias is not None:
            # The kernel has no bias without a residual, but it broadcasts a residual over what it takes for a batch.
            delta, base, bias = delta.reshape(-1, 1, width), bias.reshape(1, 1, width), None
        rows = (*delta.shape[:-1], 1)
        normed, _, _, total = ops.symbolic_multi_out(
            f"{DOMAIN}::SkipLayerNormalization",
            (delta, base, weight, offset) if bias is None else (delta, base, weight, offset, bias),
            {"epsilon": LAYER_NORM_EPS},
            dtypes=(delta.dtype, torch.float32, torch.float32, delta.dtype),
            shapes=(delta.shape, rows, rows, delta.shape),
            version=1,
        )
        return normed.reshape(shape), total.reshape(shape)

    def group_norm(self, norm: Any, parts: Sum, *, silu: bool) -> tuple[Tensor, Tensor]:
        """The sum of images, normalized by a `WindowNorm`, `FrameNorm` or PyTorch's `GroupNorm` and perhaps activated,
        and the sum."""
        shape = parts.delta.shape
        count, height, width, channels = shape
        groups, epsilon = _grouping(norm)
        # Frames on top of one another are one image to the kernel: its statistics are then those of the window.
        frames = self.frames if isinstance(norm, WindowNorm) else 1
        view = (count // frames, frames * height, width, channels)
        weight, offset = norm.weight.float(), norm.bias.float()
        attributes: dict[str, Any] = {"epsilon": epsilon, "groups": groups, "activation": int(silu), "channels_last": 1}
        if parts.base is None or not self.form.skip_group_norm:
            total = self.total(parts)
            inputs: tuple[Tensor, ...] = (total.reshape(view), weight, offset)
            normed = _contrib("GroupNorm", inputs, like=total, shape=view, attributes=attributes)
            return normed.reshape(shape), total
        inputs = (parts.delta.reshape(view), weight, offset, parts.base.reshape(view))
        normed, total = ops.symbolic_multi_out(
            f"{DOMAIN}::SkipGroupNorm",
            inputs if parts.bias is None else (*inputs, parts.bias),
            attributes,
            dtypes=(parts.delta.dtype,) * 2,
            shapes=(view, view),
            version=1,
        )
        return normed.reshape(shape), total.reshape(shape)

    def conv(self, conv: Any, image: Tensor, bias: Tensor | None = None, pads: tuple[int, ...] | None = None) -> Tensor:
        """A `Conv2d` of images; `bias` instead of its own, `pads` (top, left, bottom, right) likewise."""
        bias = conv.bias if bias is None else bias
        top, left, bottom, right = pads or (*conv.padding, *conv.padding)
        if not self.form.nhwc_conv:
            padded = image.permute(0, 3, 1, 2)
            if pads is not None:
                padded = F.pad(padded, (left, right, top, bottom))
            own = conv.padding if pads is None else 0
            return F.conv2d(padded, conv.weight, bias, conv.stride, own).permute(0, 2, 3, 1)
        (rows, columns), (down, across) = conv.kernel_size, conv.stride
        count, height, width, _ = image.shape
        shape = (
            count,
            (height + top + bottom - rows) // down + 1,
            (width + left + right - columns) // across + 1,
            conv.out_channels,
        )
        attributes: Attributes = {
            "kernel_shape": [rows, columns],
            "strides": [down, across],
            "pads": [top, left, bottom, right],
            "dilations": [1, 1],
            "group": 1,
        }
        inputs = (image, conv.weight.permute(0, 2, 3, 1), bias)
        return _contrib("NhwcConv", inputs, like=image, shape=shape, attributes=attributes)

    def feed_forward(self, module: Any, tokens: Tensor, base: Tensor) -> Sum:
        """A `FeedForward`, with the residual `base`; its last bias is left for the sum."""
        gate, _, back = module.net
        both = torch.matmul(tokens, gate.proj.weight)
        if self.form.geglu and both.shape[-1] in SPLIT_GELU_WIDTHS:
            shape = (*both.shape[:-1], gate.outputs)
            inner = _contrib("BiasSplitGelu", (both, gate.proj.bias), like=both, shape=shape)
        else:
            left, right = (both + gate.proj.bias).chunk(2, -1)
            inner = left * F.gelu(right)
        return project(back, inner, base)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
        """Attention of `query (N, T, C)` over `key`, `value (N, S, C)`."""
        return _attention(self.form.attention, (query, key, value), heads)

    def attend_frames(self, query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
        """Attention among frames; `(P, T, C)`, T being the frames of as many pixels as are packed."""
        length = query.shape[1]
        inputs = (query, key, value)
        if length == self.frames:
            return _attention(self.form.temporal_attention, inputs, heads)
        pixel = torch.arange(length) // self.frames
        # After the softmax has subtracted the maximum, exactly zero in every precision, and finite in each.
        mask = torch.where(pixel[:, None] == pixel[None], 0.0, -30000.0).to(query.dtype)[None, None]
        return _attention(self.form.temporal_attention, inputs, heads, mask)


def project(linear: Any, x: Tensor, base: Tensor | None = None) -> Sum:
    """A `Linear` whose bias, and the residual `base`, are left for the sum."""
    return Sum(torch.matmul(x, linear.weight), linear.bias, base)


def project_apart(linear: Any, x: Tensor) -> list[Tensor]:
    """The parts of a `Linear` that stacks several, each by itself: attention then takes them as they are."""
    parts = len(linear.sources)
    width = linear.weight.shape[1] // parts
    return [torch.matmul(x, linear.weight[:, part * width : (part + 1) * width]) for part in range(parts)]


def double_size(image: Tensor) -> Tensor:
    """Nearest-neighbor doubling of images `(N, h, w, C)`."""
    count, height, width, channels = image.shape
    wide = image[:, :, None, :, None, :].expand(count, height, 2, width, 2, channels)
    return wide.reshape(count, 2 * height, 2 * width, channels)


def _attention(op: AttentionOp, inputs: tuple[Tensor, ...], heads: int, mask: Tensor | None = None) -> Tensor:
    query = inputs[0]
    if op == "MultiHeadAttention":
        masked = inputs if mask is None else (*inputs, None, None, mask)
        return _contrib(op, masked, like=query, shape=query.shape, attributes={"num_heads": heads})
    return ops.symbolic(
        op,
        inputs if mask is None else (*inputs, mask),
        {"q_num_heads": heads, "kv_num_heads": heads},
        dtype=query.dtype,
        shape=query.shape,
        version=_ATTENTION_OPSET,
    )


def _contrib(
    op: str,
    inputs: Sequence[Tensor | None],
    *,
    like: Tensor,
    shape: Sequence[int],
    attributes: Attributes | None = None,
) -> Tensor:
    """One output of the dtype of `like`."""
    return ops.symbolic(f"{DOMAIN}::{op}", inputs, dict(attributes or {}), dtype=like.dtype, shape=shape, version=1)


def _grouping(norm: Any) -> tuple[int, float]:
    """Groups and epsilon of a `WindowNorm`, `FrameNorm` or PyTorch's `GroupNorm`."""
    if isinstance(norm, nn.GroupNorm):
        return norm.num_groups, norm.eps
    return NORM_GROUPS, WINDOW_NORM_EPS if isinstance(norm, WindowNorm) else FRAME_NORM_EPS
