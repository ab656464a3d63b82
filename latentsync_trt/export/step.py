"""One denoising step as a module: guidance, the U-Net, the guided sum and the scheduler's update.

Inputs and outputs are float32, except `timestep` (int64) and `hidden` (the network's own precision). B counts windows,
F frames; `hidden (G, B, F, C, h, w)` has G = 2 halves with guidance (unconditional first), else G = 1.
"""

import torch
from torch import Tensor, nn

from latentsync_trt.export.unet import UNet


class DenoiseStep(nn.Module):
    """The whole network, or with `cached` only its last layer, applied to `hidden` of an earlier step.

    Without `guided` the unconditional half is omitted and `guidance` has no effect.
    """

    def __init__(self, unet: UNet, *, guided: bool, cached: bool = False) -> None:
        super().__init__()
        # Tracing time grows with all parameters in a module, used or not.
        self.unet = unet.tail() if cached else unet
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
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """One step.

        Args:
            latents: `(B, 4, F, h, w)`, noisy.
            conditioning: `(B, 9, F, h, w)`: mask 1, masked image 4, reference image 4.
            audio: `(B, F, S, D)`.
            timestep: `()` int64.
            guidance: `()`.
            history: `(B, 4, F, h, w)`, the scheduler's state.
            coefficients: `(5)`: c_x, c_eps, c_history, d_x, d_eps.
            hidden: with `cached`, the output of an earlier full step.

        Returns:
            `next_latents`, `next_history` and, without `cached`, `hidden`.
        """
        windows, _, frames = latents.shape[:3]
        dtype = self.unet.conv_in.weight.dtype
        # Frames go into the batch: `sample (B·F, 13, h, w)`, `tokens (B·F, S, D)`.
        sample = torch.cat([latents, conditioning], 1).to(dtype).transpose(1, 2).flatten(0, 1)
        tokens = audio.to(dtype).flatten(0, 1)
        state = None if hidden is None else hidden.flatten(0, 2)
        noise, state = self.unet(sample, timestep, tokens, state, frames=frames, guided=self.guided)
        eps = self._guided_sum(noise, latents, guidance)
        c_x, c_eps, c_history, d_x, d_eps = (coefficients[i] for i in range(5))
        updated = c_x * latents + c_eps * eps + c_history * history, d_x * latents + d_eps * eps
        if hidden is not None:
            return updated
        return *updated, state.reshape(2 if self.guided else 1, windows, frames, *state.shape[1:])

    def _guided_sum(self, noise: Tensor, latents: Tensor, guidance: Tensor) -> Tensor:
        """float32, in the shape of `latents`."""
        batch, channels, frames, height, width = latents.shape
        halves = noise.float().reshape(2 if self.guided else 1, batch, frames, channels, height, width)
        eps = halves[0]
        if self.guided:
            eps = eps + guidance * (halves[1] - eps)
        return eps.transpose(1, 2)
