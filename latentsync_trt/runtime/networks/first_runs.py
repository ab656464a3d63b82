"""First runs on random numbers: a GPU provider loads and chooses its kernels then, for seconds."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, STEP_GRAPHS, VAE_DECODER, VAE_ENCODER, step_graph
from latentsync_trt.runtime.networks.codec import VaeCodec
from latentsync_trt.runtime.networks.denoiser import PooledDenoiser
from latentsync_trt.runtime.providers.table import TENSORRT
from latentsync_trt.runtime.sessions.pool import SessionPool, Stage, StageThreads
from latentsync_trt.runtime.sessions.profiles import at_resolution
from latentsync_trt.runtime.sessions.session import Array, Session
from latentsync_trt.runtime.sessions.trial import random_inputs
from latentsync_trt.types import WindowBatch

_STAGES: dict[str, Stage] = {VAE_ENCODER: "encode", AUDIO_ENCODER: "encode", VAE_DECODER: "decode"}
_KINDS = [(guided, cached) for guided in (True, False) for cached in (False, True)]
_TIMESTEP = 500


class FirstRuns:
    """Runs each graph as a clip will: in the thread of its stage, and with the same buffers.

    `resolution_px`: of the pictures, where the bundle has several.
    """

    def __init__(
        self,
        pool: SessionPool,
        codec: VaeCodec,
        denoiser: PooledDenoiser,
        threads: StageThreads,
    ) -> None:
        self._pool, self._codec, self._denoiser, self._threads = pool, codec, denoiser, threads
        self.resolution_px = pool.engines.bundle.manifest.resolution_px
        self._done: WeakSet[Session] = WeakSet()

    def missing(self, graphs: Iterable[str]) -> tuple[str, ...]:
        """Those of `graphs` that have not run; of steps all or none: cached ones need a full one."""
        graphs = tuple(graphs)
        new = {graph for graph in graphs if self._pool.opened(graph) not in self._done}
        steps = not new.isdisjoint(STEP_GRAPHS)
        return tuple(graph for graph in graphs if graph in new or (steps and graph in STEP_GRAPHS))

    def beside(self, graphs: Sequence[str], opening: Mapping[str, Future[Any]]) -> list[Future[None]]:
        """Starts the first run of each of `graphs`, in its stage's thread, as soon as it is open.

        Without recording CUDA graphs, during which no other thread may use the GPU.
        """
        cuda_graph, provider = self._pool.engines.cuda_graph, self._pool.engines.selection.provider
        started = [
            self._threads.start(stage, partial(self._network, graph, opening[graph].result))
            for graph, stage in _STAGES.items()
            if graph in graphs
        ]
        if not (cuda_graph and provider is TENSORRT):  # which records in any run
            steps = partial(self._steps, graphs, lambda graph: opening[graph].result(), recorded=not cuda_graph)
            started.append(self._threads.start("denoise", steps))
        return started

    def in_turn(self, graphs: Sequence[str]) -> None:
        """Runs each of `graphs`, one after another; records CUDA graphs of the steps."""
        for graph, stage in _STAGES.items():
            if graph in graphs:
                self._threads.run(stage, partial(self._network, graph))
        self._threads.run("denoise", partial(self._steps, graphs))

    def _network(self, graph: str, opened: Callable[[], object] = lambda: None) -> None:
        opened()
        given = self._random(graph)
        if graph == VAE_ENCODER:
            count, _, *size = given["image"].shape
            self._codec.encode_faces(np.zeros((count, *size, 3), np.uint8), np.ones(size, np.float32))
        elif graph == VAE_DECODER:
            self._codec.decode_faces(given["latent"])
        else:
            self._pool.session(graph).run(given)
        self._done.add(self._pool.session(graph))

    def _steps(
        self,
        graphs: Sequence[str],
        opened: Callable[[str], object] = lambda _: None,
        *,
        recorded: bool = True,
    ) -> None:
        kinds = {step_graph(guided=guided, cached=cached): (guided, cached) for guided, cached in _KINDS}
        kinds = {graph: kind for graph, kind in kinds.items() if graph in graphs}
        step: Callable[..., None] | None = None
        for graph, (guided, cached) in kinds.items():
            opened(graph)
            step = step or self._begin(kinds.values(), recorded=recorded)
            step(_TIMESTEP, np.zeros(5, np.float32), cached=cached, guided=guided)
            self._done.add(self._pool.session(graph))

    def _begin(self, kinds: Collection[tuple[bool, bool]], *, recorded: bool) -> Callable[..., None]:
        """Begins a batch of windows for steps (guided, cached); returns what runs one."""
        guided = any(kind for kind, _ in kinds)
        known = self._random(step_graph(guided=guided, cached=False))
        batch = WindowBatch(
            known["latents"],
            known["conditioning"],
            known["audio"],
            guidance=2.0 if guided else 1.0,
            unguided_too=guided and not all(kind for kind, _ in kinds),
        )
        if recorded:
            self._denoiser.begin(batch)
            return self._denoiser.step
        return partial(self._denoiser.begin_unrecorded(batch).step, recorded=False)

    def _random(self, graph: str) -> dict[str, Array]:
        ranges = at_resolution(self._pool.engines.ranges, self.resolution_px)
        return random_inputs(self._pool.session(graph).inputs, ranges)
