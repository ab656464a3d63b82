"""What happens to one window of faces: encode, denoise, decode."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from latentsync_trt.diffusion.loop import Denoiser, conditioning, denoise
from latentsync_trt.diffusion.scheduler import Step
from latentsync_trt.types import Float32Array, UInt8Array


class ImageCodec(Protocol):
    """The VAE."""

    def encode(self, images: Float32Array) -> Float32Array:
        """Images `(N, 3, H, W)` in [−1, 1] → scaled latents `(N, 4, h, w)`."""
        ...

    def decode(self, latents: Float32Array) -> Float32Array:
        """Scaled latents `(N, 4, h, w)` → images `(N, 3, H, W)`, about [−1, 1]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Inpainter:
    """Paints the mouths of a window of aligned faces to go with its speech.

    `mask (H, W)` float32, 1 = kept; `latent_mask (h, w)` float32; `noise (1, 4, 1, h, w)` float32, the same for every
    window of a run; `schedule` and `plan` (True = full step) as long as there are steps.
    """

    codec: ImageCodec
    denoiser: Denoiser
    mask: Float32Array
    latent_mask: Float32Array
    noise: Float32Array
    guidance: float
    schedule: tuple[Step, ...]
    plan: tuple[bool, ...]

    def paint(self, faces: UInt8Array, audio: Float32Array) -> Float32Array:
        """Generated faces, float32 `(F, H, W, 3)`, about [−1, 1].

        Args:
            faces: uint8 `(F, H, W, 3)` RGB, aligned. audio: float32 `(F, S, D)`, what each frame hears.
        """
        images = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32) / np.float32(127.5) - np.float32(1)
        masked = self.codec.encode(images * self.mask)
        reference = self.codec.encode(images)
        latents = denoise(
            self.denoiser,
            self.noise,
            conditioning(self.latent_mask, masked[None], reference[None]),
            audio[None],
            self.guidance,
            self.schedule,
            self.plan,
        )
        decoded = self.codec.decode(np.ascontiguousarray(latents[0].transpose(1, 0, 2, 3)))
        return decoded.transpose(0, 2, 3, 1)
