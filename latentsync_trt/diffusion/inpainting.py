"""What happens to windows of faces: encode, denoise, decode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from latentsync_trt.diffusion.loop import Denoiser, conditioning, denoise
from latentsync_trt.diffusion.plan import PlannedStep
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
    """Paints the mouths of aligned faces to go with their speech.

    `mask (H, W)` float32, 1 = kept; `latent_mask (h, w)` float32; `noise (1, 4, 1, h, w)` float32, the same for every
    window of a run; `schedule` and `plan` have an entry for every step.
    """

    codec: ImageCodec
    denoiser: Denoiser
    mask: Float32Array
    latent_mask: Float32Array
    noise: Float32Array
    guidance: float
    schedule: tuple[Step, ...]
    plan: tuple[PlannedStep, ...]

    def paint(self, windows: Sequence[tuple[UInt8Array, Float32Array]]) -> list[Float32Array]:
        """Generated faces of each window, float32 `(F, H, W, 3)`, about [−1, 1].

        All windows go through one network before any goes through the next, so that networks can take turns in memory.

        Args:
            windows: aligned faces, uint8 `(F, H, W, 3)` RGB, and what each frame hears, float32 `(F, S, D)`.
        """
        told = [self._conditioning(faces) for faces, _ in windows]
        latents = [self._denoise(known, audio) for known, (_, audio) in zip(told, windows, strict=True)]
        return [self._decode(window) for window in latents]

    def _conditioning(self, faces: UInt8Array) -> Float32Array:
        images = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32) / np.float32(127.5) - np.float32(1)
        masked = self.codec.encode(images * self.mask)
        reference = self.codec.encode(images)
        return conditioning(self.latent_mask, masked[None], reference[None])

    def _denoise(self, known: Float32Array, audio: Float32Array) -> Float32Array:
        return denoise(self.denoiser, self.noise, known, audio[None], self.guidance, self.schedule, self.plan)

    def _decode(self, latents: Float32Array) -> Float32Array:
        decoded = self.codec.decode(np.ascontiguousarray(latents[0].transpose(1, 0, 2, 3)))
        return decoded.transpose(0, 2, 3, 1)
