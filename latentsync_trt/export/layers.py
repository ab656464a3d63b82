"""Layers of the networks: projections, norms, the gated feed-forward and attention.

Activations are `(N, C, h, w)` or tokens `(N, T, C)`; N counts the frames of all windows, `N = B·F`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

from latentsync_trt.bundle.manifest import HEADS

NORM_GROUPS = 32
"""Groups of channels in each group normalization of the U-Net."""

_FUSED_HEAD_DIMS = range(16, 257, 8)
"""Head widths for which TensorRT supports the operator `Attention` and fused kernels exist."""

_FEW_VALUES = 32
"""The fewest values of a group for which `GroupNormalization` is exported. In smaller groups values
may be nearly equal: ONNX Runtime computes the variance as a difference of two large numbers, which
then has no correct digit, or is negative, and the result is NaN.
"""


class Linear(nn.Module):
    """`x @ weight + bias` with the weight stored `(in, out)`, which exports as one MatMul without a
    Transpose.

    Args:
        sources: sibling modules in the checkpoint whose outputs this layer stacks; empty: the
            module of its own name.
        unbiased: those of `sources` without a bias in the checkpoint.
        kernel_dims: trailing size-1 dimensions of the checkpoint's weight (2 for a 1×1
            convolution).
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
        if self.bias is None:
            return product
        return product + self.bias


class GroupNorm(nn.GroupNorm):
    """Group normalization of each frame separately, or with statistics across all frames and pixels
    of a window.

    The statistics are combined from those of the single frames (law of total variance), so that
    frames stay in the batch and nothing is transposed. They are float32 in every precision: a group
    has up to 10 M values per window.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(NORM_GROUPS, width, eps=eps)

    def forward(self, x: Tensor, frames: int = 1) -> Tensor:
        """`x (B·F, C, h, w)` → the same shape; statistics are across `frames`."""
        if frames == 1 and self._groups_are_large(x):
            return super().forward(x)
        windows = x.shape[0] // frames
        width = self.num_channels
        pixels = x.shape[2] * x.shape[3]
        wide = x.float()
        grouped = wide.reshape(windows, frames, NORM_GROUPS, width // NORM_GROUPS * pixels)
        mean, variance = self._statistics(grouped)
        per_group = (NORM_GROUPS, width // NORM_GROUPS)
        scale = torch.rsqrt(variance + self.eps) * self.weight.float().reshape(per_group)
        shift = self.bias.float().reshape(per_group) - mean * scale
        normed = wide.reshape(windows, frames, width, pixels) * scale.reshape(windows, 1, width, 1)
        normed = normed + shift.reshape(windows, 1, width, 1)
        return normed.to(x.dtype).reshape(x.shape)

    @staticmethod
    def _statistics(grouped: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and variance of the groups of windows, `(B, 1, groups, 1)`, from their
        values in each frame, `(B, F, groups, n)`.
        """
        frame_mean = grouped.mean(3, keepdim=True)
        # Not torch.square, which would be exported as a general Pow.
        apart = grouped - frame_mean
        frame_variance = (apart * apart).mean(3, keepdim=True)
        mean = frame_mean.mean(1, keepdim=True)
        apart = frame_mean - mean
        return mean, (frame_variance + apart * apart).mean(1, keepdim=True)

    @staticmethod
    def _groups_are_large(x: Tensor) -> bool:
        """Returns whether every group has enough values for the operator `GroupNormalization`."""
        height: Any
        _, width, height, breadth = x.shape
        enough = NORM_GROUPS * _FEW_VALUES
        if isinstance(height, torch.SymInt):
            enough *= 4  # the tracer assumes twice the least height and width, where that is 64 px
        return statically_known_true(width * height * breadth >= enough)


class GatedProjection(nn.Module):
    """GEGLU: a projection to twice the width, half of which gates the other through an exact
    GELU.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.proj = Linear(inputs, 2 * outputs)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        # The bias is added to each half: NVIDIA's compiler does not cut up a sum for compute
        # capability 7.5.
        product = torch.matmul(x, self.proj.weight)
        bias = self.proj.get_parameter("bias")
        value = product[..., : self.outputs] + bias[: self.outputs]
        gate = product[..., self.outputs :] + bias[self.outputs :]
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    """Gated projection to four times the width, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Index 1 was dropout in training; the checkpoint's parameter names include it in the count.
        self.net = nn.Sequential(
            GatedProjection(width, 4 * width), nn.Identity(), Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Returns the softmax attention of `query (N, heads, T, d)` over `key`, `value (N, heads, S,
    d)`, `(N, heads, T, d)`.
    """
    head_dim = query.shape[-1]
    # TensorRT supports the operator `Attention` in half precision only.
    fused = query.dtype == torch.float16 and head_dim in _FUSED_HEAD_DIMS
    # Outside an export PyTorch's own product gives the same and does not store the whole matrix.
    if fused or not torch.compiler.is_exporting():
        return F.scaled_dot_product_attention(query, key, value)
    # Scaling the query, not the product, and a float32 softmax avoid overflow in half precision.
    logits = torch.matmul(query * head_dim**-0.5, key.transpose(-1, -2))
    weights = torch.softmax(logits.float(), -1).to(value.dtype)
    return torch.matmul(weights, value)


def split_heads(x: Tensor, parts: int, heads: int) -> Tensor:
    """Returns stacked projections `(N, T, parts·heads·d)` as `(parts, N, heads, T, d)`."""
    count, length, width = x.shape
    return x.reshape(count, length, parts, heads, width // parts // heads).permute(2, 0, 3, 1, 4)


def join_heads(x: Tensor) -> Tensor:
    """Returns the outputs of heads, `(N, heads, T, d)`, as `(N, T, heads·d)`."""
    count, heads, length, head_dim = x.shape
    return x.transpose(1, 2).reshape(count, length, heads * head_dim)


class SelfAttention(nn.Module):
    """Attention among the tokens of one frame, `(N, T, C)` → the same. Names as in diffusers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_qkv = Linear(width, 3 * width, bias=False, sources=("to_q", "to_k", "to_v"))
        self.to_out = nn.ModuleList([Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        qkv = split_heads(self.to_qkv(x), 3, HEADS)
        return self.to_out[0](join_heads(attend(qkv[0], qkv[1], qkv[2])))


class AudioAttention(nn.Module):
    """Attention from the pixels of each frame to that frame's audio tokens `(N, S, D)`.

    For all-zero audio the result is the output bias, as keys and values have no bias.
    """

    def __init__(self, width: int, audio_width: int) -> None:
        super().__init__()
        self.to_q = Linear(width, width, bias=False)
        self.to_kv = Linear(audio_width, 2 * width, bias=False, sources=("to_k", "to_v"))
        self.to_out = nn.ModuleList([Linear(width, width)])

    def forward(self, x: Tensor, audio: Tensor) -> Tensor:
        query = split_heads(self.to_q(x), 1, HEADS)
        kv = split_heads(self.to_kv(audio), 2, HEADS)
        return self.to_out[0](join_heads(attend(query[0], kv[0], kv[1])))


class TemporalAttention(SelfAttention):
    """Attention among the frames of a window, separately for each pixel; `(B·F, T, C)` → the
    same.
    """

    def __init__(self, width: int, positions: int) -> None:
        super().__init__(width)
        self.pos_encoder = nn.Module()
        self.pos_encoder.register_buffer("pe", torch.empty(1, positions, width))

    def positions(self, frames: int) -> Tensor:
        """Returns the encoded positions of the first frames, `(1, F, 1, C)`."""
        return self.pos_encoder.get_buffer("pe")[:, :frames].unsqueeze(2)

    def forward(self, x: Tensor, frames: int) -> Tensor:  # type: ignore[override]
        count, pixels, width = x.shape
        windows = count // frames
        head_dim = width // HEADS
        positioned = x.reshape(windows, frames, pixels, width) + self.positions(frames)
        # Splitting heads needs one transpose anyway; it also moves the frames next to the head's
        # channels.
        packed = self.to_qkv(positioned).reshape(windows, frames, pixels, 3, HEADS, head_dim)
        moved = packed.permute(3, 0, 2, 4, 1, 5)
        qkv = moved.reshape(3, windows * pixels, HEADS, frames, head_dim)
        attended = attend(qkv[0], qkv[1], qkv[2])
        apart = attended.reshape(windows, pixels, HEADS, frames, head_dim)
        joined = apart.permute(0, 3, 1, 2, 4).reshape(count, pixels, width)
        return self.to_out[0](joined)
