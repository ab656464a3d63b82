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
"""By domain; "" is ONNX's own."""

# Widths for which the kernels are compiled: of the GELU's before the split.
SPLIT_GELU_WIDTHS = frozenset({2560, 5120, 6144, 10240, 12288})
BIAS_ADD_WIDTHS = frozenset({320, 640, 1280})

PACKED_PIXELS = 4
"""The frames of this many pixels form one sequence in the attention among frames, with a mask
between pixels: 16 frames alone would leave the kernel's tile mostly empty."""

_CHANNELS_OF_TENSOR_CORES = 8
"""Convolutions of images with a multiple of these channels use Hopper's kernels: 0.32 instead of
0.82 ms for the VAE's first one."""

_WIDEST_HEAD = 256
"""What kernels of fused attention take; for wider heads, two products and a softmax are three times
as fast as ONNX Runtime's fallback."""

FEW_KEYS = 256
"""cuDNN takes 40 ms to set up a shape, each time that a bundle is opened, and gains nothing with so
few keys.
"""

_MASKED = -30000.0
"""Value of masked scores: finite in half precision, and exactly zero after the softmax."""

Attributes = Mapping[str, int | float | Sequence[int]]


@dataclass(frozen=True, slots=True)
class Sum:
    """`base + delta + bias`, not yet evaluated; `base` and `bias (C,)` are optional.

    `base` is shaped like `delta` or, for `group_norm` only, one pixel for each image of the norm,
    `(N, 1, 1, C)`.
    """

    delta: Tensor
    bias: Tensor | None = None
    base: Tensor | None = None


def total(parts: Sum) -> Tensor:
    delta = parts.delta
    bias = parts.bias
    base = parts.base
    if base is None:
        if bias is None:
            return delta
        return delta + bias
    if bias is None:
        return base + delta
    width = delta.shape[-1]
    if width not in BIAS_ADD_WIDTHS:
        return base + (delta + bias)
    flat = (delta.shape[0], delta[0].numel() // width, width)
    return _call("BiasAdd", (delta.reshape(flat), bias, base.reshape(flat)), flat).reshape(
        delta.shape
    )


def layer_norm(norm: Any, parts: Sum) -> tuple[Tensor, Tensor]:
    """The sum normalized by an `nn.LayerNorm`, and the sum."""
    delta = parts.delta
    bias = parts.bias
    base = parts.base
    shape = delta.shape
    width = delta.shape[-1]
    if base is None and bias is not None:
        # The kernel needs a residual to add a bias; it broadcasts a residual over the batch, so the
        # bias becomes one.
        delta = delta.reshape(-1, 1, width)
        base = bias.reshape(1, 1, width)
        bias = None
    rows = (*delta.shape[:-1], 1)
    normed, _, _, added = ops.symbolic_multi_out(
        f"{DOMAIN}::SkipLayerNormalization",
        (delta, base, norm.weight, norm.bias)
        if bias is None
        else (delta, base, norm.weight, norm.bias, bias),
        {"epsilon": norm.eps},
        dtypes=(delta.dtype, torch.float32, torch.float32, delta.dtype),
        shapes=(delta.shape, rows, rows, delta.shape),
        version=1,
    )
    return normed.reshape(shape), added.reshape(shape)


def group_norm(norm: Any, parts: Sum, *, frames: int = 1, silu: bool) -> tuple[Tensor, Tensor]:
    """The sum of images, normalized by an `nn.GroupNorm` over `frames` at a time (and activated),
    and the sum.
    """
    count, height, width, channels = shape = parts.delta.shape
    # Stacked vertically, the frames of a window are one image to the kernel: its statistics cover
    # the window.
    view = count // frames, frames * height, width, channels
    delta = parts.delta.reshape(view)
    bias = parts.bias
    base = parts.base
    weight = norm.weight.float()
    offset = norm.bias.float()
    attributes = {
        "epsilon": norm.eps,
        "groups": norm.num_groups,
        "activation": int(silu),
        "channels_last": 1,
    }
    if base is None:
        if bias is None:
            return _call("GroupNorm", (delta, weight, offset), view, attributes).reshape(
                shape
            ), parts.delta
        # The kernel needs a residual, of which it broadcasts a single pixel.
        base = bias.expand(view[0], 1, 1, channels)
        bias = None
    elif base.numel() != view[0] * channels:
        base = base.reshape(view)
    inputs = (delta, weight, offset, base)
    normed, added = ops.symbolic_multi_out(
        f"{DOMAIN}::SkipGroupNorm",
        inputs if bias is None else (*inputs, bias),
        attributes,
        dtypes=(delta.dtype,) * 2,
        shapes=(view, view),
        version=1,
    )
    return normed.reshape(shape), added.reshape(shape)


def conv(
    module: Any, image: Tensor, pads: tuple[int, ...] | None = None, *, biased: bool = True
) -> Tensor:
    """An `nn.Conv2d` of images; `pads` (top, left, bottom, right) replace its own. `biased=False`
    leaves its bias out.

    cuDNN compiles a kernel for a convolution with a bias when it first runs, 50 ms for each;
    without one it has them.
    """
    top, left, bottom, right = pads or (*module.padding, *module.padding)
    (rows, columns), (down, across) = module.kernel_size, module.stride
    count, height, width, channels = image.shape
    out_height = (height + top + bottom - rows) // down + 1
    out_width = (width + left + right - columns) // across + 1
    attributes: Attributes = {
        "kernel_shape": [rows, columns],
        "strides": [down, across],
        "pads": [top, left, bottom, right],
        "dilations": [1, 1],
        "group": 1,
    }
    weight = module.weight
    missing = -channels % _CHANNELS_OF_TENSOR_CORES
    if missing:
        image = F.pad(image, (0, missing))
        weight = F.pad(weight, (0, 0, 0, 0, 0, missing))
    inputs = (image, weight, module.bias) if biased else (image, weight)
    return _call(
        "Conv",
        inputs,
        (count, out_height, out_width, module.out_channels),
        attributes,
        LAYOUT_DOMAIN,
    )


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
        return Sum(
            _call("ConvTranspose", (image, self.weight), shape, attributes, LAYOUT_DOMAIN),
            self.bias,
        )


def project(linear: Any, x: Tensor, base: Tensor | None = None) -> Sum:
    """A `Linear` whose bias, and the residual `base`, are deferred to the sum."""
    return Sum(torch.matmul(x, linear.weight), linear.bias, base)


def project_apart(linear: Any, x: Tensor) -> list[Tensor]:
    """The outputs of a `Linear` that stacks several projections, computed one by one."""
    parts = len(linear.sources)
    width = linear.weight.shape[1] // parts
    return [
        torch.matmul(x, linear.weight[:, part * width : (part + 1) * width])
        for part in range(parts)
    ]


def feed_forward(module: Any, tokens: Tensor, base: Tensor) -> Sum:
    """A `FeedForward` with the residual `base`; its last bias is deferred to the sum."""
    gate, _, back = module.net
    both = torch.matmul(tokens, gate.proj.weight)
    if both.shape[-1] in SPLIT_GELU_WIDTHS:
        inner = _call("BiasSplitGelu", (both, gate.proj.bias), (*both.shape[:-1], gate.outputs))
    else:
        left, right = (both + gate.proj.bias).chunk(2, -1)
        inner = left * F.gelu(right)
    return project(back, inner, base)


def attend(query: Tensor, key: Tensor, value: Tensor, *, heads: int) -> Tensor:
    """Attention of `query (N, T, C)` over `key`, `value (N, S, C)`; of many keys as an operator
    that can use cuDNN.
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


def attend_frames(query: Tensor, key: Tensor, value: Tensor, *, heads: int, frames: int) -> Tensor:
    """Attention among the frames of each pixel, `(P, T, C)`; T counts the frames of all pixels in a
    sequence.
    """
    length = query.shape[1]
    inputs = [query, key, value]
    if length != frames:
        pixel = torch.arange(length) // frames
        inputs.append(
            torch.where(pixel[:, None] == pixel[None], 0.0, _MASKED).to(query.dtype)[None, None]
        )
    return _attention(inputs, heads)


def _attention(inputs: Sequence[Tensor], heads: int) -> Tensor:
    """ONNX's own operator, which uses the memory-efficient kernel."""
    return _call(
        "Attention", inputs, inputs[0].shape, {"q_num_heads": heads, "kv_num_heads": heads}, ""
    )


def _call(
    op: str,
    inputs: Sequence[Tensor],
    shape: Sequence[int],
    attributes: Attributes | None = None,
    domain: str = DOMAIN,
) -> Tensor:
    """Calls an operator; its one output has the dtype of its first input."""
    name = f"{domain}::{op}".removeprefix("::")
    kind = inputs[0].dtype
    return ops.symbolic(
        name, inputs, dict(attributes or {}), dtype=kind, shape=shape, version=VERSIONS[domain]
    )
