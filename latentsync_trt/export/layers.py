"""Small layers of the networks: projections, norms, the gated feed-forward.

Activations are `(N, C, h, w)` or tokens `(N, T, C)`; N counts the frames of all windows, `N = B·F`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

NORM_GROUPS = 32

_FEW_VALUES = 32
"""In smaller groups values may be nearly equal. ONNX Runtime computes the variance in `GroupNormalization` as a
difference of two large numbers, which then has no correct digit, or is negative: the result is NaN."""


class Linear(nn.Module):
    """`x @ weight + bias` with the weight stored `(in, out)`, which exports as one MatMul without a Transpose.

    Args:
        sources: sibling modules in the checkpoint whose outputs this layer stacks; empty: the module of its own name.
        unbiased: those of `sources` without a bias in the checkpoint.
        kernel_dims: trailing size-1 dimensions of the checkpoint's weight (2 for a 1×1 convolution).
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        sources: tuple[str, ...] = (),
        unbiased: tuple[str, ...] = (),
        kernel_dims: int = 0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.sources = sources
        self.unbiased = unbiased
        self.kernel_dims = kernel_dims

    def forward(self, x: Tensor) -> Tensor:
        product = torch.matmul(x, self.weight)
        return product if self.bias is None else product + self.bias


class FrameNorm(nn.GroupNorm):
    """Group normalization of each frame separately."""

    def __init__(self, width: int) -> None:
        super().__init__(NORM_GROUPS, width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """`x (B·F, C, h, w)` → the same shape."""
        height: Any
        _, width, height, breadth = x.shape
        enough = NORM_GROUPS * _FEW_VALUES
        if isinstance(height, torch.SymInt):
            enough *= 4  # the tracer assumes twice the least height and width, where that is 64 px
        if statically_known_true(width * height * breadth >= enough):
            return super().forward(x)
        return _two_pass_norm(self, x, 1)


class WindowNorm(nn.GroupNorm):
    """Group normalization with statistics across all frames and pixels of a window.

    The statistics are combined from those of the single frames (law of total variance), so that frames stay in the
    batch and nothing is transposed. They are float32 in every precision: a group has up to 10 M values per window.
    """

    def __init__(self, width: int) -> None:
        super().__init__(NORM_GROUPS, width, eps=1e-5)

    def forward(self, x: Tensor, frames: int) -> Tensor:  # type: ignore[override]
        """`x (B·F, C, h, w)` → the same shape."""
        return _two_pass_norm(self, x, frames)


def _two_pass_norm(norm: nn.GroupNorm, x: Tensor, frames: int) -> Tensor:
    """Group normalization of `x (B·F, C, h, w)` over `frames` at a time; the variance is that about the mean."""
    count, width, height, breadth = x.shape
    windows = count // frames
    pixels = height * breadth
    wide = x.float()
    grouped = wide.reshape(windows, frames, NORM_GROUPS, width // NORM_GROUPS * pixels)
    frame_mean = grouped.mean(3, keepdim=True)
    frame_variance = _square(grouped - frame_mean).mean(3, keepdim=True)
    mean = frame_mean.mean(1, keepdim=True)
    variance = (frame_variance + _square(frame_mean - mean)).mean(1, keepdim=True)
    per_group = (NORM_GROUPS, width // NORM_GROUPS)
    scale = torch.rsqrt(variance + norm.eps) * norm.weight.float().reshape(per_group)
    shift = norm.bias.float().reshape(per_group) - mean * scale
    by_channel = wide.reshape(windows, frames, width, pixels)
    normed = by_channel * scale.reshape(windows, 1, width, 1) + shift.reshape(windows, 1, width, 1)
    return normed.to(x.dtype).reshape(x.shape)


class GatedProjection(nn.Module):
    """GEGLU: a projection to twice the width, half of which gates the other through an exact GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = Linear(inputs, 2 * outputs)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        # The bias is added to each half: NVIDIA's compiler does not cut up a sum for compute capability 7.5.
        both, bias = torch.matmul(x, self.proj.weight), self.proj.get_parameter("bias")
        value = both[..., : self.outputs] + bias[: self.outputs]
        gate = both[..., self.outputs :] + bias[self.outputs :]
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    """Gated projection to four times the width, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Index 1 was dropout in training; the checkpoint's parameter names include it in the count.
        self.net = nn.ModuleList([GatedProjection(width, 4 * width), nn.Identity(), Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.net:
            x = layer(x)
        return x


def _square(x: Tensor) -> Tensor:
    # torch.square would be exported as a general Pow.
    return x * x


def to_tokens(x: Tensor) -> Tensor:
    """`(N, C, h, w)` → `(N, h·w, C)`."""
    return x.flatten(2).transpose(1, 2)


def to_image(tokens: Tensor, like: Tensor) -> Tensor:
    """`(N, h·w, C)` → `(N, C, h, w)` with the height and width of `like`."""
    _, _, height, width = like.shape
    return tokens.transpose(1, 2).reshape(tokens.shape[0], tokens.shape[2], height, width)
