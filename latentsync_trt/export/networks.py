"""The networks of a bundle beside the U-Net: Whisper's encoder, and the VAE's halves."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latentsync_trt.diffusion import LATENT_CHANNELS
from latentsync_trt.export.layers import Linear, attend, join_heads, split_heads


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """The shape of an encoder."""

    mels: int
    """Mel bands of the spectrogram."""
    positions: int
    """Moments that it sees at once, 50 per second."""
    width: int
    heads: int
    blocks: int

    @property
    def layers(self) -> int:
        """Returns the number of hidden states in a feature: one before the first block and one
        after each.
        """
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
    """Attention and a feed-forward of four times the width, each with a norm before it and a
    residual.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn = WhisperAttention(width, heads)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class WhisperEncoder(nn.Module):
    """Log-mel segments → stacked hidden states; without the final normalization."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.mels, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.positional_embedding = nn.Parameter(torch.empty(config.positions, config.width))
        self.blocks = nn.ModuleList(
            [WhisperBlock(config.width, config.heads) for _ in range(config.blocks)]
        )

    def forward(self, mel: Tensor) -> Tensor:
        """`mel (N, 80, 3000)` → `features (N, 1500, L, D)`, both float32 in every precision."""
        x = F.gelu(self.conv1(mel.to(self.conv1.weight.dtype)))
        x = F.gelu(self.conv2(x)).transpose(1, 2) + self.positional_embedding
        states = [x]
        for block in self.blocks:
            states.append(block(states[-1]))
        return torch.stack(states, 2).float()


class ImageAttention:
    """Attention in the VAE's middle block, `(N, C, h, w)` → the same, as a processor for diffusers'
    `Attention`.
    """

    def __call__(self, attention: Any, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        shape = hidden_states.shape
        heads = attention.heads
        tokens = attention.group_norm(hidden_states.flatten(2)).transpose(1, 2)
        projections = (attention.to_q, attention.to_k, attention.to_v)
        projected = [projection(tokens) for projection in projections]
        by_head = (shape[0], -1, heads, shape[1] // heads)
        query, key, value = [part.reshape(by_head).transpose(1, 2) for part in projected]
        joined = attend(query, key, value).transpose(1, 2).flatten(2)
        return hidden_states + attention.to_out[0](joined).transpose(1, 2).reshape(shape)


class VaeEncoder(nn.Module):
    """`image (N, 3, H, W)` in [−1, 1] → `latent (N, 4, H/8, W/8)`: posterior mode × scaling factor.
    Both float32.
    """

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.encoder = vae.encoder
        self.quant_conv = vae.quant_conv
        self.scale = float(vae.config.scaling_factor)

    def forward(self, image: Tensor) -> Tensor:
        moments = self.quant_conv(self.encoder(image.to(self.encoder.conv_in.weight.dtype)))
        mode: Tensor = moments[:, :LATENT_CHANNELS].float()
        return mode * self.scale


class VaeDecoder(nn.Module):
    """Scaled `latent (N, 4, h, w)` → `image (N, 3, 8h, 8w)`, not clamped. Both float32."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.decoder = vae.decoder
        self.post_quant_conv = vae.post_quant_conv
        self.scale = float(vae.config.scaling_factor)

    def forward(self, latent: Tensor) -> Tensor:
        unscaled = (latent / self.scale).to(self.decoder.conv_in.weight.dtype)
        return self.decoder(self.post_quant_conv(unscaled)).float()
