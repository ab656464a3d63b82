"""Operations of the CUDA form, computed with the modules that hold the weights.

The CUDA provider spends more than half of a portable graph's time on layout changes around
convolutions, on norms in a dozen float32 passes, and on biases and residual sums. Here activations
are channels-last: images `(N, h, w, C)` and tokens `(N, T, C)`, with N frames of all windows.
Kernels of the domain com.microsoft fuse such passes (docs/performance.md). A residual sum stays an
unevaluated `Sum` until the next kernel needs it, which may compute it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.onnx import ops

DOMAIN = "com.microsoft"

LAYOUT_DOMAIN = "com.ms.internal.nhwc"
"""ONNX's own operators on channels-last images, as ONNX Runtime writes them with `prefer_nhwc`. Its
convolutions take kernels in ONNX's layout and transpose them on the GPU, in milliseconds;
com.microsoft's need them channels-last, and folding 66 transposes on the CPU was half of the time
to open a U-Net.
"""

VERSIONS = {DOMAIN: 1, LAYOUT_DOMAIN: 23, "": 23}
"""Versions of the operators by domain; "" is ONNX's own."""

SPLIT_GELU_WIDTHS = frozenset({2560, 5120, 6144, 10240, 12288})
"""Widths, before the split, for which the kernel of BiasSplitGelu is compiled."""

BIAS_ADD_WIDTHS = frozenset({320, 640, 1280})
"""Widths for which the kernel of BiasAdd is compiled."""

PACKED_PIXELS = 4
"""How many pixels have their frames in one sequence of the attention among frames, with a mask
between pixels: the 16 frames of one pixel would leave the kernel's tile mostly empty.
"""

_CHANNELS_OF_TENSOR_CORES = 8
"""Convolutions use Hopper's kernels where their images have a multiple of this many channels: 0.32
instead of 0.82 ms for the VAE's first one.
"""

_WIDEST_HEAD = 256
"""The widest head that kernels of fused attention take; for wider ones, two products and a softmax
are three times as fast as ONNX Runtime's fallback.
"""

FEW_KEYS = 256
"""The most keys for which attention does without cuDNN, which takes 40 ms to set up a shape, each
time that a bundle is opened, and gains nothing with so few keys.
"""

_MASKED = -30000.0
"""Value of masked scores: finite in half precision, and exactly zero after the softmax."""

Attributes = Mapping[str, int | float | Sequence[int]]
"""Attributes of an operator by name."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum `base + delta + bias`, which is not evaluated before a kernel needs it."""

    delta: Tensor
    """Images `(N, h, w, C)` or tokens `(N, T, C)`."""
    bias: Tensor | None = None
    """`(C,)`, or None."""
    base: Tensor | None = None
    """A residual of the shape of `delta`, or None; for `group_norm` also one pixel for each image
    of the norm, `(N, 1, 1, C)`.
    """


@dataclass(frozen=True, slots=True)
class Normed:
    """A sum that has been evaluated and normalized by one kernel."""

    normed: Tensor
    """The sum after the norm, of the sum's shape."""
    total: Tensor
    """The sum itself."""


def total(parts: Sum) -> Tensor:
    """Returns the evaluated sum."""
    delta = parts.delta
    if parts.bias is None:
        return delta if parts.base is None else parts.base + delta
    if parts.base is None:
        return delta + parts.bias
    width = delta.shape[-1]
    if width not in BIAS_ADD_WIDTHS:
        return parts.base + (delta + parts.bias)
    flat = (delta.shape[0], delta[0].numel() // width, width)
    inputs = (delta.reshape(flat), parts.bias, parts.base.reshape(flat))
    return _call("BiasAdd", inputs, flat).reshape(delta.shape)


def layer_norm(norm: Any, parts: Sum) -> Normed:
    """Returns the sum and what an `nn.LayerNorm` makes of it."""
    delta = parts.delta
    bias = parts.bias
    base = parts.base
    shape = delta.shape
    width = shape[-1]
    if base is None and bias is not None:
        # The kernel needs a residual to add a bias; it broadcasts a residual over the batch, so the
        # bias becomes one.
        delta = delta.reshape(-1, 1, width)
        base = bias.reshape(1, 1, width)
        bias = None
    inputs = [delta, base, norm.weight, norm.bias]
    if bias is not None:
        inputs.append(bias)
    rows = (*delta.shape[:-1], 1)
    normed, _, _, added = ops.symbolic_multi_out(
        f"{DOMAIN}::SkipLayerNormalization",
        inputs,
        {"epsilon": norm.eps},
        dtypes=(delta.dtype, torch.float32, torch.float32, delta.dtype),
        shapes=(delta.shape, rows, rows, delta.shape),
        version=1,
    )
    return Normed(normed.reshape(shape), added.reshape(shape))


def group_norm(norm: Any, parts: Sum, *, frames: int = 1, silu: bool) -> Normed:
    """Returns the sum of images and what an `nn.GroupNorm` makes of it.

    Args:
        frames: how many consecutive images have their statistics in common.
        silu: whether the normalized images go through the activation, too.
    """
    shape = parts.delta.shape
    count, height, width, channels = shape
    # Stacked vertically, the frames of a window are one image to the kernel: its statistics cover
    # the window.
    stacked = (count // frames, frames * height, width, channels)
    inputs = [parts.delta.reshape(stacked), norm.weight.float(), norm.bias.float()]
    attributes = {
        "epsilon": norm.eps,
        "groups": norm.num_groups,
        "activation": int(silu),
        "channels_last": 1,
    }
    bias = parts.bias
    base = parts.base
    if base is None:
        if bias is None:
            normed = _call("GroupNorm", inputs, stacked, attributes)
            return Normed(normed.reshape(shape), parts.delta)
        # The kernel needs a residual, of which it broadcasts a single pixel.
        base = bias.expand(stacked[0], 1, 1, channels)
        bias = None
    elif base.numel() != stacked[0] * channels:
        base = base.reshape(stacked)
    inputs.append(base)
    if bias is not None:
        inputs.append(bias)
    normed, added = ops.symbolic_multi_out(
        f"{DOMAIN}::SkipGroupNorm",
        inputs,
        attributes,
        dtypes=(parts.delta.dtype,) * 2,
        shapes=(stacked, stacked),
        version=1,
    )
    return Normed(normed.reshape(shape), added.reshape(shape))


def conv(
    module: Any, image: Tensor, pads: Sequence[int] | None = None, *, biased: bool = True
) -> Tensor:
    """Returns what an `nn.Conv2d` makes of images.

    Args:
        pads: top, left, bottom and right, in place of the module's own.
        biased: whether the module's bias is added. cuDNN compiles a kernel for a convolution with a
            bias when it first runs, 50 ms for each; without one it has them.
    """
    pads = pads or (*module.padding, *module.padding)
    sizes = [
        (image.shape[1 + axis] + pads[axis] + pads[axis + 2] - kernel) // stride + 1
        for axis, (kernel, stride) in enumerate(zip(module.kernel_size, module.stride, strict=True))
    ]
    attributes: Attributes = {
        "kernel_shape": module.kernel_size,
        "strides": module.stride,
        "pads": pads,
        "dilations": [1, 1],
        "group": 1,
    }
    weight = module.weight
    missing = -image.shape[3] % _CHANNELS_OF_TENSOR_CORES
    if missing:
        image = F.pad(image, (0, missing))
        weight = F.pad(weight, (0, 0, 0, 0, 0, missing))
    inputs = [image, weight]
    if biased:
        inputs.append(module.bias)
    shape = (image.shape[0], *sizes, module.out_channels)
    return _call("Conv", inputs, shape, attributes, LAYOUT_DOMAIN)


class DoublingConv(nn.Module):
    """A nearest-neighbor doubling of images and the 3×3 convolution after it, as one transposed
    convolution.

    Each pixel of the result sees at most 2×2 pixels of the image, so 4 of 9 multiply-adds and the
    doubled image are saved. The kernel is the convolution's, mirrored and summed over pairs of
    neighbors: `(C_in, C_out, 4, 4)`.
    """

    weight: Tensor

    def __init__(self, conv: Any) -> None:
        super().__init__()
        mirrored = conv.weight.detach().float().flip(2, 3)
        columns = F.pad(mirrored, (0, 1)) + F.pad(mirrored, (1, 0))
        summed = F.pad(columns, (0, 0, 0, 1)) + F.pad(columns, (0, 0, 1, 0))
        self.register_buffer("weight", summed.transpose(0, 1).to(conv.weight.dtype).contiguous())
        self.bias = conv.bias

    def forward(self, image: Tensor) -> Sum:
        """Images `(N, h, w, C)` → `(N, 2h, 2w, C)`; the bias is deferred, as cuDNN has no such
        kernel with one.
        """
        count, height, width, _ = image.shape
        attributes: Attributes = {
            "kernel_shape": [4, 4],
            "strides": [2, 2],
            "pads": [1, 1, 1, 1],
            "dilations": [1, 1],
        }
        shape = (count, 2 * height, 2 * width, self.weight.shape[1])
        doubled = _call("ConvTranspose", (image, self.weight), shape, attributes, LAYOUT_DOMAIN)
        return Sum(doubled, self.bias)


def project(linear: Any, x: Tensor, base: Tensor | None = None) -> Sum:
    """Returns the sum that a `Linear` makes, of which its bias and the residual `base` are not yet
    added.
    """
    return Sum(torch.matmul(x, linear.weight), linear.bias, base)


def project_apart(linear: Any, x: Tensor) -> list[Tensor]:
    """Returns the outputs of a `Linear` that stacks several projections, computed one by one."""
    outputs = linear.weight.shape[1]
    width = outputs // len(linear.sources)
    starts = range(0, outputs, width)
    return [torch.matmul(x, linear.weight[:, start : start + width]) for start in starts]


def feed_forward(module: Any, tokens: Normed) -> Sum:
    """Returns the sum that a `FeedForward` makes, of which its last bias and the residual are not
    yet added.
    """
    gate, _, back = module.net
    value_and_gate = torch.matmul(tokens.normed, gate.proj.weight)
    width = value_and_gate.shape[-1]
    if width in SPLIT_GELU_WIDTHS:
        shape = (*tokens.normed.shape[:-1], gate.outputs)
        inner = _call("BiasSplitGelu", (value_and_gate, gate.proj.bias), shape)
    else:
        left, right = (value_and_gate + gate.proj.bias).chunk(2, -1)
        inner = left * F.gelu(right)
    return project(back, inner, tokens.total)


def fused_attention(query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
    """Returns the attention of `query (N, T, C)` over `key`, `value (N, S, C)`; of many keys as an
    operator that can use cuDNN.
    """
    width = query.shape[-1]
    keys = key.shape[1]
    if heads == 1 and width > _WIDEST_HEAD:
        attributes = {"transB": 1, "alpha": width**-0.5}
        scores = _call("FusedMatMul", (query, key), (*query.shape[:2], keys), attributes)
        return torch.matmul(scores.softmax(-1), value)
    if keys <= FEW_KEYS:
        return _attention((query, key, value), heads)
    return _call("MultiHeadAttention", (query, key, value), query.shape, {"num_heads": heads})


def attention_among_frames(qkv: Sequence[Tensor], *, heads: int, frames: int) -> Tensor:
    """Returns the attention among the `frames` of each pixel.

    Args:
        qkv: query, key and value, each `(P, T, C)`, where T counts the frames of all pixels in a
            sequence.
    """
    length = qkv[0].shape[1]
    if length == frames:
        return _attention(qkv, heads)
    pixel = torch.arange(length) // frames
    scores = torch.where(pixel[:, None] == pixel[None], 0.0, _MASKED)
    return _attention([*qkv, scores.to(qkv[0].dtype)[None, None]], heads)


def _attention(inputs: Sequence[Tensor], heads: int) -> Tensor:
    """Returns what ONNX's own operator computes, by the memory-efficient kernel."""
    attributes = {"q_num_heads": heads, "kv_num_heads": heads}
    return _call("Attention", inputs, inputs[0].shape, attributes, "")


def _call(
    op: str,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    attributes: Attributes | None = None,
    domain: str = DOMAIN,
) -> Tensor:
    """Returns the one output of an operator, which has the dtype of its first input."""
    name = f"{domain}::{op}".removeprefix("::")
    dtype = inputs[0].dtype
    return ops.symbolic(
        name, inputs, dict(attributes or {}), dtype=dtype, shape=shape, version=VERSIONS[domain]
    )
