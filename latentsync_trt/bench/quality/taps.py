"""The networks of a real run, with an ear on the faces that come out and on the denoising of the first window."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.cache.engine_cache import Notice
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.networks.pooled import PooledDenoiser
from latentsync_trt.runtime.providers.select import select_provider
from latentsync_trt.types import Float32Array, UInt16Array, WindowBatch

OnFaces = Callable[[Float32Array], None]
"""Takes the faces of one window, `(F, H, W, 3)` in [−1, 1]."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedStep:
    """A step as it was asked for, and the latents `(B, 4, F, h, w)` float32 before and after it."""

    timestep: int
    coefficients: Float32Array
    cached: bool
    guided: bool
    before: Float32Array
    after: Float32Array


class StepRecord:
    """What the first batch of windows of a run went through; all batches after it are left alone.

    `batch`: None before the first one began.
    """

    def __init__(self) -> None:
        self.batch: WindowBatch | None = None
        self.steps: list[RecordedStep] = []
        self._open = False

    def begin(self, batch: WindowBatch) -> None:
        """A batch begins."""
        self._open = self.batch is None
        if self._open:
            latents, conditioning, audio = map(np.array, (batch.latents, batch.conditioning, batch.audio))
            self.batch = replace(batch, latents=latents, conditioning=conditioning, audio=audio)

    @property
    def wanted(self) -> bool:
        """Whether the steps that are taken now are to be recorded."""
        return self._open

    def add(self, step: RecordedStep) -> None:
        """A step was taken."""
        self.steps.append(step)


class TappedNetworks(Networks):
    """The networks of a bundle as `LipSync.from_bundle` opens them, heard by `on_faces` and `record`.

    Args:
        provider: as `from_bundle` takes it. options, on_notice: as `Networks`.

    Raises:
        ProviderUnavailable: a named provider does not load. InputError: as `Networks`.
    """

    def __init__(
        self, bundle: Bundle, provider: str, options: RuntimeOptions, on_notice: Notice | None, on_faces: OnFaces
    ) -> None:
        selection = select_provider(provider, options.device)
        super().__init__(bundle, selection, options, may_pass_over=provider == "auto", on_notice=on_notice)
        self.on_faces = on_faces
        self.record = StepRecord()

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """As `Networks.decode_faces`."""
        faces = super().decode_faces(latents)
        self.on_faces(np.stack(faces) * np.float32(2 / 65535) - np.float32(1))
        return faces

    def denoiser(self) -> PooledDenoiser:
        """As `Networks.denoiser`."""
        denoiser = _TappedDenoiser(self._pool, self._graph_denoisers)
        denoiser.record = self.record
        self._denoisers.add(denoiser)
        return denoiser


class _TappedDenoiser(PooledDenoiser):
    record: StepRecord

    def begin(self, batch: WindowBatch) -> None:
        self.record.begin(batch)
        super().begin(batch)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        if not self.record.wanted:
            super().step(timestep, coefficients, cached=cached, guided=guided)
            return
        before = self.latents()
        super().step(timestep, coefficients, cached=cached, guided=guided)
        self.record.add(RecordedStep(timestep, coefficients, cached, guided, before, self.latents()))
