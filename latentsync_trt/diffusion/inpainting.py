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
class PreparedWindow:
    """A window as the VAE takes it: `images` and the same `masked`, float32 `(F, 3, H, W)` in [−1, 1]."""

    images: Float32Array
    masked: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class Inpainter:
    """Paints the mouths of aligned faces to go with their speech.

    `mask (H, W)` float32, 1 = kept; `latent_mask (h, w)` float32; `noise (1, 4, 1, h, w)` float32, the same for every
    window of a run; `schedule` and `plan` have an entry for every step; `windows_per_batch` are denoised together.
    """

    codec: ImageCodec
    denoiser: Denoiser
    mask: Float32Array
    latent_mask: Float32Array
    noise: Float32Array
    guidance: float
    schedule: tuple[Step, ...]
    plan: tuple[PlannedStep, ...]
    windows_per_batch: int = 1

    def prepare(self, faces: UInt8Array) -> PreparedWindow:
        """Aligned faces, uint8 `(F, H, W, 3)` RGB, as the networks take them. Runs no network."""
        images = np.ascontiguousarray(faces.transpose(0, 3, 1, 2), np.float32)
        images /= np.float32(127.5)
        images -= np.float32(1)
        return PreparedWindow(images, images * self.mask)

    def paint(self, windows: Sequence[tuple[UInt8Array, Float32Array]]) -> list[Float32Array]:
        """Generated faces of each window, float32 `(F, H, W, 3)`, about [−1, 1].

        Args:
            windows: aligned faces, uint8 `(F, H, W, 3)` RGB, and what each frame hears, float32 `(F, S, D)`.
        """
        return self.paint_prepared([(self.prepare(faces), audio) for faces, audio in windows])

    def paint_prepared(self, windows: Sequence[tuple[PreparedWindow, Float32Array]]) -> list[Float32Array]:
        """Generated faces of each window, as `paint`.

        All windows go through one network before any goes through the next, so that networks can take turns in memory.

        Args:
            windows: what `prepare` made, and what each frame hears, float32 `(F, S, D)`.
        """
        told = [self._conditioning(prepared) for prepared, _ in windows]
        latents: list[Float32Array] = []
        for start in range(0, len(windows), self.windows_per_batch):
            batch = slice(start, start + self.windows_per_batch)
            latents += self._denoise(np.stack(told[batch]), np.stack([audio for _, audio in windows[batch]]))
        return [self._decode(window) for window in latents]

    def _conditioning(self, window: PreparedWindow) -> Float32Array:
        masked = self.codec.encode(window.masked)
        reference = self.codec.encode(window.images)
        return conditioning(self.latent_mask, masked[None], reference[None])[0]

    def _denoise(self, known: Float32Array, audio: Float32Array) -> list[Float32Array]:
        return list(denoise(self.denoiser, self.noise, known, audio, self.guidance, self.schedule, self.plan))

    def _decode(self, latents: Float32Array) -> Float32Array:
        decoded = self.codec.decode(np.ascontiguousarray(latents.transpose(1, 0, 2, 3)))
        return decoded.transpose(0, 2, 3, 1)
