"""A small AutoencoderKL in plain PyTorch with diffusers' parameter names, so that training does not need diffusers."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

LATENT_CHANNELS = 4
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class VaeConfig:
    """`widths`: channels by level, finest first; four levels, so a latent pixel is eight pixels wide."""

    widths: tuple[int, int, int, int]
    layers: int
    groups: int

    def description(self, scaling_factor: float) -> dict[str, object]:
        """The `config.json` of a folder in diffusers' layout."""
        return {
            "_class_name": "AutoencoderKL",
            "act_fn": "silu",
            "block_out_channels": list(self.widths),
            "down_block_types": ["DownEncoderBlock2D"] * len(self.widths),
            "up_block_types": ["UpDecoderBlock2D"] * len(self.widths),
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": LATENT_CHANNELS,
            "layers_per_block": self.layers,
            "norm_num_groups": self.groups,
            "sample_size": 128,
            "scaling_factor": scaling_factor,
        }


class Resnet(nn.Module):
    """Two convolutions and a residual, `(N, C, h, w)`."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs, eps=_EPS)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, outputs, eps=_EPS)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    """One head over the pixels of each image."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, width, eps=_EPS)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.group_norm(x).flatten(2).transpose(1, 2)[:, None]
        attended = F.scaled_dot_product_attention(self.to_q(tokens), self.to_k(tokens), self.to_v(tokens))
        return x + self.to_out[0](attended[:, 0]).transpose(1, 2).reshape(x.shape)


class Middle(nn.Module):
    """Resnet, attention, resnet."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(width, width, groups) for _ in range(2)])
        self.attentions = nn.ModuleList([Attention(width, groups)])

    def forward(self, x: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Sampler(nn.Module):
    """A convolution that halves the size, or one after a nearest-neighbor doubling."""

    def __init__(self, width: int, *, up: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=1 if up else 2, padding=1 if up else 0)
        self.up = up

    def forward(self, x: Tensor) -> Tensor:
        if self.up:
            return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Level(nn.Module):
    """The resnets of one resolution, and the resampling to the next."""

    def __init__(self, inputs: int, outputs: int, layers: int, groups: int, resample: str | None) -> None:
        super().__init__()
        widths = (inputs, *[outputs] * (layers - 1))
        self.resnets = nn.ModuleList([Resnet(width, outputs, groups) for width in widths])
        if resample == "down":
            self.downsamplers = nn.ModuleList([Sampler(outputs, up=False)])
        elif resample == "up":
            self.upsamplers = nn.ModuleList([Sampler(outputs, up=True)])

    def forward(self, x: Tensor) -> Tensor:
        for resnet in self.resnets:
            x = resnet(x)
        for name in ("downsamplers", "upsamplers"):
            for sampler in getattr(self, name, ()):
                x = sampler(x)
        return x


class Encoder(nn.Module):
    """Image `(N, 3, H, W)` → moments before `quant_conv`, `(N, 8, H/8, W/8)`."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths, last = config.widths, len(config.widths) - 1
        entering = (widths[0], *widths[:-1])
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(
            Level(entering[i], widths[i], config.layers, config.groups, "down" if i < last else None)
            for i in range(len(widths))
        )
        self.mid_block = Middle(widths[-1], config.groups)
        self.conv_norm_out = nn.GroupNorm(config.groups, widths[-1], eps=_EPS)
        self.conv_out = nn.Conv2d(widths[-1], 2 * LATENT_CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    """Latent after `post_quant_conv`, `(N, 4, h, w)` → image `(N, 3, 8h, 8w)`."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths, last = config.widths[::-1], len(config.widths) - 1
        entering = (widths[0], *widths[:-1])
        self.conv_in = nn.Conv2d(LATENT_CHANNELS, widths[0], 3, padding=1)
        self.mid_block = Middle(widths[0], config.groups)
        self.up_blocks = nn.ModuleList(
            Level(entering[i], widths[i], config.layers + 1, config.groups, "up" if i < last else None)
            for i in range(len(widths))
        )
        self.conv_norm_out = nn.GroupNorm(config.groups, widths[-1], eps=_EPS)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(x))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Vae(nn.Module):
    """The autoencoder; latents are not scaled."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.quant_conv = nn.Conv2d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
        self.post_quant_conv = nn.Conv2d(LATENT_CHANNELS, LATENT_CHANNELS, 1)

    def moments(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the posterior, `(N, 4, h, w)` each."""
        mean, log_variance = self.quant_conv(self.encoder(image)).chunk(2, 1)
        return mean, log_variance.clamp(-30, 20)

    def encode(self, image: Tensor) -> Tensor:
        """The posterior's mode, `(N, 4, h, w)`."""
        return self.moments(image)[0]

    def decode(self, latent: Tensor) -> Tensor:
        """The image, `(N, 3, 8h, 8w)`, approximately in [−1, 1]."""
        return self.decoder(self.post_quant_conv(latent))

    def forward(self, image: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A reconstruction from a sample of the posterior, and its KL divergence from a standard normal."""
        mean, log_variance = self.moments(image)
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
        return self.decode(mean + noise * torch.exp(0.5 * log_variance)), divergence


def save_vae(vae: Vae, folder: Path, scaling_factor: float, dtype: torch.dtype = torch.float32) -> None:
    """Writes a folder in diffusers' layout."""
    folder.mkdir(parents=True, exist_ok=True)
    description = json.dumps(vae.config.description(scaling_factor), indent=2)
    (folder / "config.json").write_text(description + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in vae.state_dict().items()}
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
