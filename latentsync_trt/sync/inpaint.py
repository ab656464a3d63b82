"""Paints the mouths of windows of aligned faces: encode, denoise, decode."""

from collections.abc import Callable, Iterator, Sequence
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
from latentsync_trt.diffusion import (
    LATENT_CHANNELS,
    conditioning,
    denoise,
    initial_noise,
    plan_for,
    solver_schedule,
)
from latentsync_trt.errors import InputError
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.runtime.stages import Stage
from latentsync_trt.types import Denoiser, Float32Array, UInt8Array, UInt16Array

if TYPE_CHECKING:
    from latentsync_trt.runtime.model import Model
    from latentsync_trt.runtime.vae import VaeCodec


@dataclass(frozen=True, slots=True, eq=False)
class Inpainter:
    """Paints the mouths of aligned faces to match their speech; `make_inpainter` assembles one.

    `side_px`: of a face. `noise (1, 4, 1, h, w)` float32, the same for every window of a run. `run(stage, action)`
    returns the result of what uses `codec` or `denoiser`, run in the thread of that stage.
    """

    codec: "VaeCodec"
    denoiser: Denoiser
    options: SyncOptions
    side_px: int
    noise: Float32Array
    run: Callable[[Stage, Callable[[], Any]], Any] = lambda _, action: action()

    @property
    def mask(self) -> Float32Array:
        """Of a face, float32 `(H, W)`, 1 = kept."""
        return mouth_mask(self.side_px)

    def encode(self, windows: Sequence[UInt8Array]) -> list[Float32Array]:
        """What the denoiser knows of each window, float32 `(9, F, h, w)`, from its faces, uint8 `(F, H, W, 3)` RGB."""
        mask, small = self.mask, latent_mask(self.side_px)
        encoded = self.run("encode", lambda: [self.codec.encode_faces(faces, mask) for faces in windows])
        return [conditioning(small, masked[None], whole[None])[0] for masked, whole in encoded]

    def denoise(
        self,
        known: Sequence[Float32Array],
        audio: Sequence[Float32Array],
        on_step: Callable[[int, int], None] | None = None,
    ) -> list[Float32Array]:
        """The latents of each window, float32 `(4, F, h, w)`, from the audio features of each frame, float32
        `(F, S, D)`; `on_step` as for `diffusion.denoise`."""
        options = self.options
        schedule = solver_schedule(options.sampling.solver, options.sampling.steps)
        fixed = options.guidance, schedule, plan_for(options)

        def denoise_all() -> Iterator[Float32Array]:
            for window, heard in zip(known, audio, strict=True):
                yield denoise(self.denoiser, self.noise, window[None], heard[None], *fixed, on_step)[0]

        latents: list[Float32Array] = self.run("denoise", lambda: list(denoise_all()))
        return latents

    def decode(self, latents: Sequence[Float32Array]) -> list[Sequence[UInt16Array]]:
        """The faces of each window, as `VaeCodec.decode_faces` returns them."""
        pictures = [np.ascontiguousarray(window.transpose(1, 0, 2, 3)) for window in latents]
        return self.run("decode", lambda: [self.codec.decode_faces(each) for each in pictures])

    def decode_faces(self, latents: Float32Array) -> Sequence[UInt16Array]:
        """As `VaeCodec.decode_faces`."""
        return self.run("decode", partial(self.codec.decode_faces, latents))


def make_inpainter(model: "Model", options: SyncOptions, noise: Float32Array | None = None) -> Inpainter:
    """The inpainter of an open model; `noise`, float32 `(1, 4, 1, h, w)`, replaces that of the seed."""
    side_px = resolution_of(model.bundle.manifest, options)
    latent_px = side_px // PIXELS_PER_LATENT
    noise = initial_noise(options.seed, latent_px, latent_px) if noise is None else noise
    return Inpainter(model.vae, model.denoiser, options, side_px, noise, model.run)


def check_noise(resolution_px: int, noise: Float32Array | None) -> None:
    """Raises `InputError` unless `noise` is None or has the shape that a run of this resolution needs."""
    shape = (1, LATENT_CHANNELS, 1, *[resolution_px // PIXELS_PER_LATENT] * 2)
    if noise is not None and noise.shape != shape:
        raise InputError(f"noise: its shape is {noise.shape}, and a run at {resolution_px} px needs {shape}")


def graphs_for(options: SyncOptions) -> tuple[str, ...]:
    steps = {step_graph(guided=options.guidance > 1.0, cached=not full) for full in plan_for(options)}
    return (AUDIO_ENCODER, VAE_ENCODER, *sorted(steps), VAE_DECODER)
