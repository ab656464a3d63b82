"""diffusers' AutoencoderKL as two graphs: image → scaled latent, scaled latent → image."""

import logging
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.errors import CheckpointError
from latentsync_trt.export.layers import attend
from latentsync_trt.export.unet import LATENT_CHANNELS


class ImageAttention:
    """Attention in the VAE's middle block, `(N, C, h, w)` → the same, as a processor for diffusers' `Attention`."""

    def __call__(self, attention: Any, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        count, width = hidden_states.shape[:2]
        tokens = attention.group_norm(hidden_states.flatten(2)).transpose(1, 2)
        head_dim = width // attention.heads
        projected = [projection(tokens) for projection in (attention.to_q, attention.to_k, attention.to_v)]
        query, key, value = (part.reshape(count, -1, attention.heads, head_dim).transpose(1, 2) for part in projected)
        joined = attend(query, key, value).transpose(1, 2).flatten(2)
        return hidden_states + attention.to_out[0](joined).transpose(1, 2).reshape(hidden_states.shape)


class VaeEncoder(nn.Module):
    """`image (N, 3, H, W)` in [−1, 1] → `latent (N, 4, H/8, W/8)`: posterior mode × scaling factor. Both float32."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.encoder, self.quant_conv = vae.encoder, vae.quant_conv
        self.scale, self.shift = _scaling(vae)

    def forward(self, image: Tensor) -> Tensor:
        moments = self.encoder(image.to(self.encoder.conv_in.weight.dtype))
        if self.quant_conv is not None:
            moments = self.quant_conv(moments)
        mode: Tensor = moments[:, :LATENT_CHANNELS].float()
        return (mode - self.shift) * self.scale


class VaeDecoder(nn.Module):
    """Scaled `latent (N, 4, h, w)` → `image (N, 3, 8h, 8w)`, not clamped. Both float32."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.decoder, self.post_quant_conv = vae.decoder, vae.post_quant_conv
        self.scale, self.shift = _scaling(vae)

    def forward(self, latent: Tensor) -> Tensor:
        unscaled = (latent / self.scale + self.shift).to(self.decoder.conv_in.weight.dtype)
        if self.post_quant_conv is not None:
            unscaled = self.post_quant_conv(unscaled)
        return self.decoder(unscaled).float()


def _scaling(vae: Any) -> tuple[float, float]:
    return float(vae.config.scaling_factor), float(vae.config.shift_factor or 0.0)


def load_vae(folder: Path, dtype: torch.dtype) -> Any:
    """diffusers' AutoencoderKL from `folder` (config.json and weights, old or new parameter names).

    Raises:
        CheckpointError: it is not such a folder, tensors are missing or not finite, or the
            autoencoder is of another kind.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder}: not a VAE folder in diffusers' layout (no config.json)")
    # Its loader warns about the published VAE's old parameter names, but converts them; and it logs what it raises.
    logging.getLogger("diffusers").setLevel(logging.CRITICAL)
    try:
        vae, report = AutoencoderKL.from_pretrained(
            folder, torch_dtype=dtype, local_files_only=True, low_cpu_mem_usage=False, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, TypeError, LookupError, ArithmeticError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{folder}: cannot be loaded as an AutoencoderKL ({reason})") from error
    missing = report["missing_keys"]
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors missing, first {missing[0]}")
    levels = len(vae.config.block_out_channels)
    if vae.config.latent_channels != LATENT_CHANNELS or 2 ** (levels - 1) != PIXELS_PER_LATENT:
        raise CheckpointError(
            f"{folder}: {vae.config.latent_channels} latent channels at 1/{2 ** (levels - 1)} size; "
            f"LatentSync needs {LATENT_CHANNELS} at 1/{PIXELS_PER_LATENT}"
        )
    for name, tensor in vae.state_dict().items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{folder}: {name} has values that are not finite; the weights are damaged")
    vae.set_attn_processor(ImageAttention())
    return vae.eval().requires_grad_(False)
