"""One step of denoising as a module: guidance, the U-Net and the scheduler's update."""

import torch
from torch import Tensor, nn

from latentsync_trt.export.unet import UNet


class DenoiseStep(nn.Module):
    """The whole network, or with `cached` only its last layer, applied to `hidden` of an earlier
    step.

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
        """Returns `next_latents`, `next_history` and, without `cached`, `hidden`.

        All are float32, except `timestep` (int64) and `hidden` (the network's own precision).

        Args:
            latents, history: `(B, 4, F, h, w)`, noisy latents and the scheduler's state.
            conditioning: `(B, 9, F, h, w)`: mask 1, masked image 4, reference image 4.
            audio: `(B, F, S, D)`.
            timestep, guidance: `()`.
            coefficients: `(5)`: c_x, c_eps, c_history, d_x, d_eps.
            hidden: with `cached`, the output of an earlier full step, `(G, B, F, C, h, w)`; G = 2
                halves with guidance (unconditional first), else 1.
        """
        windows, channels, frames, *size = latents.shape
        dtype = self.unet.conv_in.weight.dtype
        # Frames go into the batch: `sample (B·F, 13, h, w)`, `tokens (B·F, S, D)`.
        sample = torch.cat([latents, conditioning], 1).to(dtype).transpose(1, 2).flatten(0, 1)
        tokens = audio.to(dtype).flatten(0, 1)
        state = None if hidden is None else hidden.flatten(0, 2)
        predicted = self.unet(sample, timestep, tokens, state, frames=frames, guided=self.guided)
        halves = (2 if self.guided else 1, windows, frames)
        noise = predicted.noise.float().reshape(*halves, channels, *size)
        eps = noise[0]
        if self.guided:
            eps = eps + guidance * (noise[1] - eps)
        outputs = _update(latents, eps.transpose(1, 2), history, coefficients)
        if hidden is not None:
            return outputs
        state = predicted.hidden
        return *outputs, state.reshape(*halves, *state.shape[1:])


def _update(
    latents: Tensor, eps: Tensor, history: Tensor, coefficients: Tensor
) -> tuple[Tensor, ...]:
    """Returns `next_latents` and `next_history`, by the noise `eps (B, 4, F, h, w)`."""
    c_x, c_eps, c_history, d_x, d_eps = [coefficients[index] for index in range(5)]
    next_latents = c_x * latents + c_eps * eps + c_history * history
    return next_latents, d_x * latents + d_eps * eps
