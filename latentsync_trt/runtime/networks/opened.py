"""All that is open on one `Engines`: sessions, the codec and denoiser that use them, and their first runs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, STEP_GRAPHS, VAE_DECODER, VAE_ENCODER, step_graph
from latentsync_trt.runtime.networks.codec import VaeCodec
from latentsync_trt.runtime.networks.denoiser import PooledDenoiser
from latentsync_trt.runtime.providers.table import TENSORRT
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.pool import SessionPool, Stage, StageThreads
from latentsync_trt.runtime.sessions.profiles import at_resolution
from latentsync_trt.runtime.sessions.session import Array, Session
from latentsync_trt.runtime.sessions.trial import random_inputs
from latentsync_trt.types import WindowBatch

_STAGES: dict[str, Stage] = {VAE_ENCODER: "encode", AUDIO_ENCODER: "encode", VAE_DECODER: "decode"}
_KINDS = [(guided, cached) for guided in (True, False) for cached in (False, True)]
_TIMESTEP = 500


class Opened:
    """The networks on `engines`, from their first use until `close`.

    First runs are on random numbers: a GPU provider loads and chooses its kernels then, for seconds. Each graph runs as
    a clip will run it: in the thread of its stage, and with the same buffers.

    Args:
        low_memory: as for `SessionPool`. before: what this replaces, closed.

    `resolution_px`: of the pictures of first runs, where the bundle has several.
    """

    def __init__(
        self, engines: Engines, threads: StageThreads, *, low_memory: bool, before: "Opened | None" = None
    ) -> None:
        self.engines = engines
        self.resolution_px: int = before.resolution_px if before else engines.bundle.manifest.resolution_px
        past = before.pool.times() if before else {}
        self.pool: SessionPool = SessionPool(engines, low_memory=low_memory, on_close=self._release_buffers, past=past)
        self.codec, self.denoiser = VaeCodec(self.pool), PooledDenoiser(self.pool)
        self._threads = threads
        self._done: WeakSet[Session] = WeakSet()

    def close(self) -> None:
        """Frees everything; the next use opens it again."""
        self.codec, self.denoiser = VaeCodec(self.pool), PooledDenoiser(self.pool)  # without the buffers of these
        self.pool.close()

    def _release_buffers(self, graphs: tuple[str, ...]) -> None:
        # Only for its own sessions: features must survive when other networks are closed.
        if not set(graphs).isdisjoint(STEP_GRAPHS):
            self.denoiser.release()

    def open(self, graphs: tuple[str, ...], *, run: bool) -> None:
        """Opens `graphs`; `run`: and runs each of them once. Raises as `SessionPool.session`, and `ReplaysDiffer`."""
        missing = self._not_run(graphs) if run else ()
        self.pool.prepare(graphs, partial(self._beside, missing) if run else lambda _: ())
        if self.engines.cuda_graph:
            self._in_turn([graph for graph in missing if graph in STEP_GRAPHS])

    def warm_up(self, graphs: tuple[str, ...]) -> None:
        """Runs each of `graphs` once, if it has not run. Raises as `open`."""
        self._in_turn(self._not_run(graphs))

    def _not_run(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` that have not run; of steps all or none: cached ones need a full one."""
        new = {graph for graph in graphs if self.pool.opened(graph) not in self._done}
        steps = not new.isdisjoint(STEP_GRAPHS)
        return tuple(graph for graph in graphs if graph in new or (steps and graph in STEP_GRAPHS))

    def _beside(self, graphs: Sequence[str], opening: Mapping[str, Future[Any]]) -> list[Future[None]]:
        """Starts the first run of each of `graphs`, in its stage's thread, as soon as it is open.

        Without recording CUDA graphs, during which no other thread may use the GPU.
        """
        cuda_graph, provider = self.engines.cuda_graph, self.engines.selection.provider
        started = [
            self._threads.start(stage, partial(self._network, graph, opening[graph].result))
            for graph, stage in _STAGES.items()
            if graph in graphs
        ]
        if not (cuda_graph and provider is TENSORRT):  # which records in any run
            steps = partial(self._steps, graphs, lambda graph: opening[graph].result(), recorded=not cuda_graph)
            started.append(self._threads.start("denoise", steps))
        return started

    def _in_turn(self, graphs: Sequence[str]) -> None:
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
            self.codec.encode_faces(np.zeros((count, *size, 3), np.uint8), np.ones(size, np.float32))
        elif graph == VAE_DECODER:
            self.codec.decode_faces(given["latent"])
        else:
            self.pool.session(graph).run(given)
        self._done.add(self.pool.session(graph))

    def _steps(
        self,
        graphs: Sequence[str],
        opened: Callable[[str], object] = lambda _: None,
        *,
        recorded: bool = True,
    ) -> None:
        kinds = {step_graph(guided=guided, cached=cached): (guided, cached) for guided, cached in _KINDS}
        kinds = {graph: kind for graph, kind in kinds.items() if graph in graphs}
        for number, (graph, (guided, cached)) in enumerate(kinds.items()):
            opened(graph)
            if number == 0:
                begin = self.denoiser.begin if recorded else self.denoiser.begin_unchecked
                begin(self._windows(kinds.values()))
            self.denoiser.step(_TIMESTEP, np.zeros(5, np.float32), cached=cached, guided=guided, recorded=recorded)
            self._done.add(self.pool.session(graph))

    def _windows(self, kinds: Collection[tuple[bool, bool]]) -> WindowBatch:
        """A batch of windows for steps (guided, cached)."""
        guided = any(kind for kind, _ in kinds)
        known = self._random(step_graph(guided=guided, cached=False))
        return WindowBatch(
            known["latents"],
            known["conditioning"],
            known["audio"],
            guidance=2.0 if guided else 1.0,
            unguided_too=guided and not all(kind for kind, _ in kinds),
        )

    def _random(self, graph: str) -> dict[str, Array]:
        ranges = at_resolution(self.engines.ranges, self.resolution_px)
        return random_inputs(self.pool.session(graph).inputs, ranges)
