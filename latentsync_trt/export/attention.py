"""Attention: the product in the form that exports best, and the three kinds in the U-Net."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.bundle.manifest import AttentionForm
from latentsync_trt.export.layers import Linear

HEADS = 8
"""Attention heads at every level of the U-Net."""

_FUSED_HEAD_DIMS = range(16, 257, 8)
"""Head widths for which TensorRT supports the operator `Attention` and fused kernels exist."""

_FORM: ContextVar[AttentionForm] = ContextVar("attention_form", default="fused")


@contextmanager
def traced_as(form: AttentionForm) -> Iterator[None]:
    """Attention has this form in graphs traced within the context, in this thread.

    The form belongs to the trace, like `torch.compiler.is_exporting`, not to the modules.
    """
    token = _FORM.set(form)
    try:
        yield
    finally:
        _FORM.reset(token)


def exports_fused(dtype: torch.dtype, head_dim: int) -> bool:
    """Whether a trace contains the ONNX operator `Attention`; TensorRT supports it in half precision only."""
    return _FORM.get() == "fused" and dtype == torch.float16 and head_dim in _FUSED_HEAD_DIMS


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention of `query (N, heads, T, d)` over `key`, `value (N, heads, S, d)` → `(N, heads, T, d)`."""
    head_dim = query.shape[-1]
    # Outside an export PyTorch's own product gives the same and does not store the whole matrix.
    if exports_fused(query.dtype, head_dim) or not torch.compiler.is_exporting():
        return F.scaled_dot_product_attention(query, key, value)
    # Scaling the query, not the product, and a float32 softmax avoid overflow in half precision.
    logits = torch.matmul(query * head_dim**-0.5, key.transpose(-1, -2))
    weights = torch.softmax(logits.float(), -1).to(value.dtype)
    return torch.matmul(weights, value)


def split_heads(x: Tensor, parts: int, heads: int) -> Tensor:
    """`(N, T, parts·heads·d)` → `(parts, N, heads, T, d)`."""
    count, length, width = x.shape
    return x.reshape(count, length, parts, heads, width // parts // heads).permute(2, 0, 3, 1, 4)


def join_heads(x: Tensor) -> Tensor:
    """`(N, heads, T, d)` → `(N, T, heads·d)`."""
    count, heads, length, head_dim = x.shape
    return x.transpose(1, 2).reshape(count, length, heads * head_dim)


class SelfAttention(nn.Module):
    """Attention among the pixels of one frame, `(N, T, C)` → the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_qkv = Linear(width, 3 * width, bias=False, sources=("to_q", "to_k", "to_v"))
        self.to_out = nn.ModuleList([Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        qkv = split_heads(self.to_qkv(x), 3, HEADS)
        return self.to_out[0](join_heads(attend(qkv[0], qkv[1], qkv[2])))


class AudioAttention(nn.Module):
    """Attention from the pixels of each frame to that frame's audio tokens `(N, S, D)`."""

    def __init__(self, width: int, audio_width: int) -> None:
        super().__init__()
        self.to_q = Linear(width, width, bias=False)
        self.to_kv = Linear(audio_width, 2 * width, bias=False, sources=("to_k", "to_v"))
        self.to_out = nn.ModuleList([Linear(width, width)])

    def forward(self, x: Tensor, audio: Tensor) -> Tensor:
        query = split_heads(self.to_q(x), 1, HEADS)
        kv = split_heads(self.to_kv(audio), 2, HEADS)
        return self.to_out[0](join_heads(attend(query[0], kv[0], kv[1])))

    def unconditional(self) -> Tensor:
        """The result for all-zero audio: the output bias `(C,)`, as keys and values have no bias."""
        return self.to_out[0].get_parameter("bias")


class PositionTable(nn.Module):
    """The checkpoint's position table, `pe (1, P, C)`."""

    pe: Tensor

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.register_buffer("pe", torch.empty(1, positions, width))

    def forward(self, frames: int) -> Tensor:
        """Positions of the first `frames` frames, `(1, F, 1, C)`."""
        return self.pe[:, :frames].unsqueeze(2)


class TemporalAttention(nn.Module):
    """Attention among the frames of a window, separately for each pixel; `(B·F, T, C)` → the same."""

    def __init__(self, width: int, positions: int) -> None:
        super().__init__()
        self.to_qkv = Linear(width, 3 * width, bias=False, sources=("to_q", "to_k", "to_v"))
        self.to_out = nn.ModuleList([Linear(width, width)])
        self.pos_encoder = PositionTable(positions, width)

    def forward(self, x: Tensor, frames: int) -> Tensor:
        count, pixels, width = x.shape
        windows = count // frames
        positioned = x.reshape(windows, frames, pixels, width) + self.pos_encoder(frames)
        # Splitting heads needs one transpose anyway; it also moves the frames next to the head's channels.
        packed = self.to_qkv(positioned).reshape(windows, frames, pixels, 3, HEADS, width // HEADS)
        qkv = packed.permute(3, 0, 2, 4, 1, 5).reshape(3, windows * pixels, HEADS, frames, width // HEADS)
        attended = attend(qkv[0], qkv[1], qkv[2]).reshape(windows, pixels, HEADS, frames, width // HEADS)
        joined = attended.permute(0, 3, 1, 2, 4).reshape(count, pixels, width)
        return self.to_out[0](joined)
