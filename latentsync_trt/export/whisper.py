"""Whisper's encoder, whose hidden states LatentSync uses."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.export.layers import Linear, attend, join_heads, split_heads


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """The shape of an encoder: mel bands, positions (50 per second), width, attention heads, blocks."""

    mels: int
    positions: int
    width: int
    heads: int
    blocks: int

    @property
    def layers(self) -> int:
        """Number of hidden states in a feature: one before the first block and one after each."""
        return self.blocks + 1


class WhisperAttention(nn.Module):
    """Self-attention over the positions, `(N, T, D)` → the same. Keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = Linear(width, 3 * width, sources=("query", "key", "value"), unbiased=("key",))
        self.out = Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        qkv = split_heads(self.qkv(x), 3, self.heads)
        return self.out(join_heads(attend(qkv[0], qkv[1], qkv[2])))


class WhisperBlock(nn.Module):
    """Attention and a feed-forward of four times the width, each with a norm before it and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.ModuleList([Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width)])
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x))
        hidden = self.mlp_ln(x)
        for layer in self.mlp:
            hidden = layer(hidden)
        return x + hidden


class WhisperEncoder(nn.Module):
    """Log-mel segments → stacked hidden states; without the final normalization."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.mels, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(config.positions, config.width))
        self.blocks = nn.ModuleList([WhisperBlock(config.width, config.heads) for _ in range(config.blocks)])

    def forward(self, mel: Tensor) -> Tensor:
        """`mel (N, 80, 3000)` → `features (N, 1500, L, D)`, both float32 in every precision."""
        x = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2) + self.positional_embedding
        states = [x]
        for block in self.blocks:
            states.append(block(states[-1]))
        return torch.stack(states, 2).float()
