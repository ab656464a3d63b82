"""Paints the mouths of a window of aligned faces: encode, denoise, decode."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT, resolution_of
from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import conditioning, denoise, denoising_plan, initial_noise
from latentsync_trt.face.align import latent_mask, mouth_mask
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.types import Denoiser, Float32Array, UInt8Array, UInt16Array

if TYPE_CHECKING:
    from latentsync_trt.runtime.model import Model
    from latentsync_trt.runtime.vae import VaeCodec

T = TypeVar("T")
Converted = TypeVar("Converted")


@dataclass(frozen=True, slots=True, eq=False)
class Inpainter:
    """Paints windows; `make_inpainter` assembles one.

    `encode_faces`, `denoise` and `decode_faces` are to be called by `run` or `run_each`.
    """

    codec: "VaeCodec"
    denoiser: Denoiser
    options: SyncOptions
    side_px: int
    """Side of a face."""
    noise: Float32Array
    """The same for every window of a run, `(1, 4, 1, h, w)`."""
    run: Callable[[Stage, Callable[[], Any]], Any]
    """Returns the result of an action, which runs in the thread of a stage."""

    def run_each(
        self, stage: Stage, change: Callable[[T], Converted], items: Iterable[T]
    ) -> list[Converted]:
        """Returns each of the items changed, all in one turn of the stage's thread."""

        def change_all() -> list[Converted]:  # a stage may call it again
            return [change(item) for item in items]

        changed: list[Converted] = self.run(stage, change_all)
        return changed

    def encode_faces(self, faces: UInt8Array) -> Float32Array:
        """Returns the conditioning of a window, float32 `(9, F, h, w)`, from its faces, uint8 `(F,
        H, W, 3)` RGB.
        """
        masked, reference = self.codec.encode_faces(faces, mouth_mask(self.side_px))
        return conditioning(latent_mask(self.side_px), masked, reference)

    def denoise(
        self,
        conditioned_on: Float32Array,
        audio: Float32Array,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Float32Array:
        """Returns the latents of a window, float32 `(4, F, h, w)`.

        Args:
            conditioned_on: what `encode_faces` returned.
            audio: the features of each frame, float32 `(F, S, D)`.
            on_step: as for `diffusion.denoise`.
        """
        plan = denoising_plan(self.options)
        return denoise(self.denoiser, self.noise, conditioned_on, audio, plan, on_step)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """Returns the faces of a window, as `VaeCodec.decode_faces` does."""
        return self.codec.decode_faces(np.ascontiguousarray(latents.transpose(1, 0, 2, 3)))


def make_inpainter(
    model: "Model", options: SyncOptions, noise: Float32Array | None = None
) -> Inpainter:
    """Returns the inpainter of an open model; `noise`, float32 `(1, 4, 1, h, w)`, replaces that of
    the seed.
    """
    side_px = resolution_of(model.bundle.manifest, options)
    latent_px = side_px // PIXELS_PER_LATENT
    if noise is None:
        noise = initial_noise(options.seed, latent_px, latent_px)
    return Inpainter(model.vae, model.denoiser, options, side_px, noise, model.run)
