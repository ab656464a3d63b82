"""Paints the mouths of windows of aligned faces: encode, denoise, decode."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    PIXELS_PER_LATENT,
    VAE_DECODER,
    VAE_ENCODER,
    resolution_of,
    step_graph,
)
from latentsync_trt.config import SyncOptions
from latentsync_trt.diffusion import SOLVERS, conditioning, denoise, initial_noise, plan_for
from latentsync_trt.face.align import latent_mask, mouth_mask
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.types import Denoiser, Float32Array, UInt8Array, UInt16Array

if TYPE_CHECKING:
    from latentsync_trt.runtime.model import Model
    from latentsync_trt.runtime.networks import VaeCodec


@dataclass(frozen=True, slots=True, eq=False)
class Inpainter:
    """Paints the mouths of aligned faces to match their speech; `make_inpainter` assembles one.

    `side_px`: of a face. `noise (1, 4, 1, h, w)` float32, the same for every window of a run. `run(stage, action)`
    returns the result of an action in the thread of that stage: all methods are to be called within it.
    """

    codec: "VaeCodec"
    denoiser: Denoiser
    options: SyncOptions
    side_px: int
    noise: Float32Array
    run: Callable[[Stage, Callable[[], Any]], Any] = lambda _, action: action()

    def encode(self, faces: UInt8Array) -> Float32Array:
        """What the denoiser knows of a window, float32 `(9, F, h, w)`, from its faces, uint8 `(F, H, W, 3)` RGB."""
        return conditioning(latent_mask(self.side_px), *self.codec.encode_faces(faces, mouth_mask(self.side_px)))

    def denoise(
        self, known: Float32Array, audio: Float32Array, on_step: Callable[[int, int], None] | None = None
    ) -> Float32Array:
        """The latents of a window, float32 `(4, F, h, w)`, from the audio features of each frame, float32
        `(F, S, D)`; `on_step` as for `diffusion.denoise`."""
        options = self.options
        schedule = SOLVERS[options.sampling.solver](options.sampling.steps)
        window = self.noise, known, audio
        return denoise(self.denoiser, *window, options.guidance, schedule, plan_for(options), on_step)

    def decode(self, latents: Float32Array) -> list[UInt16Array]:
        """The faces of a window, as `VaeCodec.decode_faces` returns them."""
        return self.codec.decode_faces(np.ascontiguousarray(latents.transpose(1, 0, 2, 3)))


def paint_window(inpainter: Inpainter, faces: UInt8Array, audio: Float32Array) -> list[UInt16Array]:
    """The new faces of one window by itself, from arguments as those of `Inpainter.encode` and `Inpainter.denoise`."""
    known = inpainter.run("encode", partial(inpainter.encode, faces))
    latents = inpainter.run("denoise", partial(inpainter.denoise, known, audio))
    painted: list[UInt16Array] = inpainter.run("decode", partial(inpainter.decode, latents))
    return painted


def make_inpainter(model: "Model", options: SyncOptions, noise: Float32Array | None = None) -> Inpainter:
    """The inpainter of an open model; `noise`, float32 `(1, 4, 1, h, w)`, replaces that of the seed."""
    side_px = resolution_of(model.bundle.manifest, options)
    latent_px = side_px // PIXELS_PER_LATENT
    noise = initial_noise(options.seed, latent_px, latent_px) if noise is None else noise
    return Inpainter(model.vae, model.denoiser, options, side_px, noise, model.run)


def graphs_for(options: SyncOptions) -> tuple[str, ...]:
    steps = {step_graph(guided=options.guidance > 1.0, cached=not full) for full in plan_for(options)}
    return (AUDIO_ENCODER, VAE_ENCODER, *sorted(steps), VAE_DECODER)
