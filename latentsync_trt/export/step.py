"""One denoising step as one module: guidance, the U-Net, the guided sum and the scheduler's update.

Everything is float32 at the boundary but `timestep` (int64) and `hidden`, which has the network's own precision. B
counts windows, F frames; `hidden (G, B, F, C, h, w)` has G = 2 halves with guidance (unheard first), 1 without.
"""

import torch
from torch import Tensor, nn

from latentsync_trt.export.unet import UNet

INPUTS = ("latents", "conditioning", "audio", "timestep", "guidance", "history", "coefficients")
OUTPUTS = ("next_latents", "next_history")
HIDDEN = "hidden"


class DenoiseStep(nn.Module):
    """The whole network. Without `guided` the unconditional half is left out and `guidance` has no effect."""

    def __init__(self, unet: UNet, *, guided: bool) -> None:
        super().__init__()
        self.unet = unet
        self.guided = guided

    def forward(
        self,
        latents: Tensor,
        conditioning: Tensor,
        audio: Tensor,
        timestep: Tensor,
        guidance: Tensor,
        history: Tensor,
        coefficients: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step.

        Args:
            latents: `(B, 4, F, h, w)`, noisy.
            conditioning: `(B, 9, F, h, w)`: mask 1, masked image 4, reference image 4.
            audio: `(B, F, S, D)`.
            timestep: `()` int64.
            guidance: `()`.
            history: `(B, 4, F, h, w)`, what the scheduler remembers.
            coefficients: `(5)`: c_x, c_eps, c_history, d_x, d_eps.

        Returns:
            `next_latents`, `next_history`, and `hidden` for `CachedDenoiseStep`.
        """
        sample, tokens = self._fold(latents, conditioning, audio)
        frames = latents.shape[2]
        noise, hidden = self.unet(sample, timestep, tokens, frames=frames, guided=self.guided)
        halves = 2 if self.guided else 1
        kept = hidden.reshape(halves, latents.shape[0], frames, *hidden.shape[1:])
        return *self._advance(noise, latents, guidance, history, coefficients), kept

    def _fold(self, latents: Tensor, conditioning: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        """Frames into the batch: `sample (B·F, 13, h, w)` and `audio (B·F, S, D)` in the network's precision."""
        dtype = self.unet.conv_in.weight.dtype
        sample = torch.cat([latents, conditioning], 1).to(dtype)
        return sample.transpose(1, 2).flatten(0, 1), audio.to(dtype).flatten(0, 1)

    def _advance(
        self, noise: Tensor, latents: Tensor, guidance: Tensor, history: Tensor, coefficients: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Guided sum and update, in float32."""
        batch, channels, frames, height, width = latents.shape
        halves = noise.float().reshape(2 if self.guided else 1, batch, frames, channels, height, width)
        eps = halves[0]
        if self.guided:
            eps = eps + guidance * (halves[1] - eps)
        eps = eps.transpose(1, 2)
        c_x, c_eps, c_history, d_x, d_eps = (coefficients[i] for i in range(5))
        return c_x * latents + c_eps * eps + c_history * history, d_x * latents + d_eps * eps


class CachedDenoiseStep(DenoiseStep):
    """The last layer alone, on what the whole network left in `hidden`."""

    def __init__(self, unet: UNet, *, guided: bool) -> None:
        # Tracing time grows with the parameters that a module holds, used or not.
        super().__init__(unet.tail(), guided=guided)

    def forward(  # type: ignore[override]
        self,
        latents: Tensor,
        conditioning: Tensor,
        audio: Tensor,
        timestep: Tensor,
        guidance: Tensor,
        history: Tensor,
        coefficients: Tensor,
        hidden: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """As in `DenoiseStep`, with its `hidden` of an earlier step; returns `next_latents`, `next_history`."""
        sample, tokens = self._fold(latents, conditioning, audio)
        frames = latents.shape[2]
        kept = hidden.flatten(0, 2)
        noise = self.unet.forward_cached(sample, timestep, tokens, kept, frames=frames, guided=self.guided)
        return self._advance(noise, latents, guidance, history, coefficients)
