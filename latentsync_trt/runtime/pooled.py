"""A denoiser over the pool of sessions: on whatever engines there are when a batch of windows begins."""

import numpy as np

from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines import Engines, Notice
from latentsync_trt.runtime.pool import SessionPool
from latentsync_trt.types import Float32Array

# Providers record a CUDA graph at the second or third run; by then all runs are replays.
_RUNS_BEFORE_REPLAY = 4

# A replay computes the same kernels on the same numbers. Only reductions may add in another order.
_SAME = 1e-2

_TIMESTEP = 501
_COEFFICIENTS = np.array([1.02, -0.31, 0.12, 1.4, -0.9], np.float32)


class Denoisers:
    """Makes the `GraphDenoiser`s of a pool.

    A recorded CUDA graph knows the addresses of the buffers it was recorded with, so where graphs are replayed there is
    one denoiser for all clips. Before it is used it is tried: a provider that records an operator wrongly computes
    something else, without an error. Then the engines go on without CUDA graphs, and that is told.
    """

    def __init__(self, pool: SessionPool, on_notice: Notice) -> None:
        self._pool = pool
        self._notice = on_notice
        self._replaying: dict[tuple[Engines, bool], GraphDenoiser] = {}

    def get(self, inputs: tuple[Float32Array, Float32Array, Float32Array, float]) -> GraphDenoiser:
        """A denoiser for windows like `inputs`, which are what `GraphDenoiser.begin` takes; it has not begun."""
        engines = self._pool.engines
        if not engines.cuda_graph:
            return self._make(engines)
        key = engines, inputs[3] > 1.0
        if key not in self._replaying:
            denoiser = self._make(engines)
            if not replays_faithfully(denoiser, *inputs):
                self._notice(
                    f"CUDA graphs: {engines.selection.name} computes something else when it replays one; going on "
                    "without them"
                )
                self._replaying.clear()
                self._pool.switch(engines.without_cuda_graph())
                return self._make(self._pool.engines)
            self._replaying[key] = denoiser
        return self._replaying[key]

    def release(self) -> None:
        """Lets go of sessions that are about to close."""
        for denoiser in self._replaying.values():
            denoiser.release()

    def _make(self, engines: Engines) -> GraphDenoiser:
        selection = engines.selection
        return GraphDenoiser(self._pool.session, selection.device, selection.device_id, cuda_graph=engines.cuda_graph)


def replays_faithfully(
    denoiser: GraphDenoiser,
    latents: Float32Array,
    conditioning: Float32Array,
    audio: Float32Array,
    guidance: float,
) -> bool:
    """Whether a full and a cached step give again what they gave at first, after runs on other numbers between."""

    def steps(sign: float) -> Float32Array:
        denoiser.begin(np.float32(sign) * latents, np.float32(sign) * conditioning, audio, guidance)
        denoiser.step(_TIMESTEP, _COEFFICIENTS, cached=False)
        denoiser.step(_TIMESTEP - 1, -_COEFFICIENTS, cached=True)
        return denoiser.latents()

    first = steps(1.0)
    for _ in range(_RUNS_BEFORE_REPLAY):
        steps(-1.0)
    again = steps(1.0)
    return bool(np.abs(again - first).max() <= _SAME * np.abs(first).max())


class PooledDenoiser:
    """The denoiser of one clip; see `diffusion.loop.Denoiser`."""

    def __init__(self, pool: SessionPool, denoisers: Denoisers) -> None:
        self._pool = pool
        self._denoisers = denoisers
        self._engines: Engines | None = None
        self._denoiser: GraphDenoiser

    def begin(self, latents: Float32Array, conditioning: Float32Array, audio: Float32Array, guidance: float) -> None:
        """As `GraphDenoiser.begin`; raises `InputError` where the engines do not take so many windows or frames."""
        self._pool.engines.check(windows=latents.shape[0], frames=latents.shape[2])
        if self._pool.engines is not self._engines or self._engines.cuda_graph:
            self._denoiser = self._denoisers.get((latents, conditioning, audio, guidance))
            self._engines = self._pool.engines
        self._denoiser.begin(latents, conditioning, audio, guidance)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool) -> None:
        """As `GraphDenoiser.step`."""
        self._denoiser.step(timestep, coefficients, cached=cached)

    def latents(self) -> Float32Array:
        """As `GraphDenoiser.latents`."""
        return self._denoiser.latents()

    def release(self) -> None:
        """As `GraphDenoiser.release`."""
        if self._engines is not None:
            self._denoiser.release()
