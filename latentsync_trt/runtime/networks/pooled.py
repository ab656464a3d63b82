"""A denoiser over the pool of sessions: on whatever engines there are when a batch of windows begins."""

from dataclasses import replace

import numpy as np

from latentsync_trt.errors import OutOfMemory
from latentsync_trt.runtime.cache.engine_cache import Notice
from latentsync_trt.runtime.networks.denoiser import GraphDenoiser, step_graph
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.pool import SessionPool
from latentsync_trt.types import Float32Array, WindowBatch

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
        self._replaying: dict[Engines, GraphDenoiser] = {}
        self._tried: set[tuple[bool, bool]] = set()

    def get(self, batch: WindowBatch) -> GraphDenoiser:
        """A denoiser for windows like those of `batch`; it has not begun."""
        engines = self._pool.engines
        if not engines.cuda_graph:
            return self._make(engines)
        if engines not in self._replaying:  # what earlier engines were recorded with is of no more use
            self._replaying, self._tried = {engines: self._make(engines)}, set()
        denoiser = self._replaying[engines]
        use = batch.guidance > 1.0, batch.unguided_too
        if use not in self._tried:
            if not replays_faithfully(denoiser, batch):
                self._notice(
                    f"CUDA graphs: {engines.selection.name} computes something else when it replays one; going on "
                    "without them"
                )
                self._replaying.clear()
                self._tried.clear()
                self._pool.switch(engines.without_cuda_graph())
                return self._make(self._pool.engines)
            self._tried.add(use)
        return denoiser

    def release(self) -> None:
        """Lets go of sessions that are about to close."""
        for denoiser in self._replaying.values():
            denoiser.release()

    def _make(self, engines: Engines) -> GraphDenoiser:
        selection = engines.selection
        return GraphDenoiser(self._pool.session, selection.device, selection.device_id, cuda_graph=engines.cuda_graph)


def replays_faithfully(denoiser: GraphDenoiser, batch: WindowBatch) -> bool:
    """Whether full and cached steps give again what they gave at first, after runs on other numbers between.

    Guided steps are tried as `guidance` says, and unguided ones after them where they will be needed, too.
    """

    def steps(sign: float) -> Float32Array:
        latents, known = np.float32(sign) * batch.latents, np.float32(sign) * batch.conditioning
        denoiser.begin(replace(batch, latents=latents, conditioning=known))
        for guided in (True, False) if batch.unguided_too else (True,):
            denoiser.step(_TIMESTEP, _COEFFICIENTS, cached=False, guided=guided)
            denoiser.step(_TIMESTEP - 1, -_COEFFICIENTS, cached=True, guided=guided)
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

    def begin(self, batch: WindowBatch) -> None:
        """As `GraphDenoiser.begin`; raises `InputError` where the engines do not take so many windows or frames."""
        self._pool.engines.check(windows=batch.latents.shape[0], frames=batch.latents.shape[2])
        if self._pool.engines is not self._engines or self._engines.cuda_graph:
            self._denoiser = self._denoisers.get(batch)
            self._engines = self._pool.engines
        self._denoiser.begin(batch)

    def step(self, timestep: int, coefficients: Float32Array, *, cached: bool, guided: bool = True) -> None:
        """As `GraphDenoiser.step`."""
        try:
            self._denoiser.step(timestep, coefficients, cached=cached, guided=guided)
        except OutOfMemory:
            # A new session has no features that a cached step could reuse.
            full = [step_graph(guided=kind, cached=False) for kind in (True, False)]
            if cached or not sum(self._pool.reopen(graph) for graph in full):  # both, not the first that is open
                raise
            self._denoiser.step(timestep, coefficients, cached=cached, guided=guided)

    def latents(self) -> Float32Array:
        """As `GraphDenoiser.latents`."""
        return self._denoiser.latents()

    def release(self) -> None:
        """As `GraphDenoiser.release`."""
        if self._engines is not None:
            self._denoiser.release()
