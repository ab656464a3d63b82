"""All that is open on one `Engines`: sessions, the codec and denoiser that use them, and their first runs."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    FULL_STEP,
    STEP_GRAPHS,
    UNGUIDED_GRAPHS,
    VAE_DECODER,
    VAE_ENCODER,
    step_graph,
)
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.networks.codec import VaeCodec
from latentsync_trt.runtime.networks.denoiser import PooledDenoiser
from latentsync_trt.runtime.networks.threads import Stage, StageThreads, results
from latentsync_trt.runtime.providers.table import TENSORRT
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from latentsync_trt.runtime.sessions.session import Array, Session, give_back_gpu_memory
from latentsync_trt.runtime.sessions.trial import random_inputs
from latentsync_trt.types import EngineTime, WindowBatch

T = TypeVar("T")

# Opening reads, verifies and uploads weights; more threads would only wait for the disk.
_OPENERS = 3

# Those whose opening and first run take longest; others follow.
_OPENED_FIRST = (FULL_STEP, UNGUIDED_GRAPHS[0], VAE_DECODER, VAE_ENCODER)

_CACHED_STEPS = {step_graph(guided=guided, cached=True) for guided in (True, False)}
_STAGES: dict[str, Stage] = {VAE_ENCODER: "encode", AUDIO_ENCODER: "encode", VAE_DECODER: "decode"}
_KINDS = [(guided, cached) for guided in (True, False) for cached in (False, True)]
_TIMESTEP = 500


class Opened:
    """The networks on `engines`, each opened at its first use.

    First runs are on random numbers: a GPU provider loads and chooses its kernels then, for seconds. Each graph runs as
    a clip will run it: in the thread of its stage, and with the same buffers.

    Args:
        low_memory: keep one network's sessions open at a time. before: what this replaces, closed.
    """

    def __init__(
        self, engines: Engines, threads: StageThreads, *, low_memory: bool, before: "Opened | None" = None
    ) -> None:
        self.engines, self.low_memory, self._threads = engines, low_memory, threads
        self._opened: dict[str, OpenedEngine] = {}
        self._all: dict[tuple[str, str], OpenedEngine] = before._all if before else {}  # by graph and provider
        self._lock = threading.RLock()
        self._opening = {graph: threading.Lock() for graph in engines.bundle.manifest.graphs}
        self._done: WeakSet[Session] = WeakSet()
        self._cached_steps = False
        self._ahead = self._failed = self._recorded = False
        self.decoded = False
        """Whether a window was decoded. The first ones are to appear soon, so one after that records CUDA graphs."""
        self._begin()

    def _begin(self) -> None:
        """Without the buffers of an earlier codec and denoiser."""
        self.codec = VaeCodec(self.engines, self.session)
        self.denoiser = PooledDenoiser(self.engines, self.session, lambda: self._threads.alone)

    def session(self, graph: str) -> Session:
        """The session of a graph; the first call opens it, and builds its engine if there is none.

        Raises:
            BundleError: the bundle has no such graph. Others as `Engines.open`.
        """
        self.engines.bundle.graph_path(graph)
        with self._opening[graph]:
            session = self._session_of(graph)
            if session is None:
                self._make_room(graph)
                opened, key = self.engines.open(graph), (graph, self.engines.selection.name)
                with self._lock:
                    opened = opened.after(self._all[key]) if key in self._all else opened
                    self._opened[graph] = self._all[key] = opened
                session = opened.session
            return session

    def build(self, graphs: tuple[str, ...]) -> None:
        """Builds missing engines one by one, as builds time kernels. Raises as `session`."""
        for graph in self.engines.missing(graphs):
            self._make_room(graph)
            self.engines.build(graph)

    def open(self, graphs: tuple[str, ...], *, run: bool) -> None:
        """Opens all of `graphs`, in parallel or in low memory one by one, to detect errors now; `build` comes first.

        `run`: and runs each of them once. Raises as `session`, and `ReplaysDiffer`.
        """
        missing = self._not_run(graphs) if run else ()
        self._cached_steps |= not _CACHED_STEPS.isdisjoint(graphs)
        self.denoiser.cached_steps = self._cached_steps
        graphs = tuple(sorted(graphs, key=lambda graph: (*_OPENED_FIRST, graph).index(graph)))
        if not self._opened:  # while memory is free
            give_back_gpu_memory(self.engines.selection)  # whose first call allocates some itself
            with ThreadPoolExecutor(_OPENERS if run else 1, thread_name_prefix="compare") as comparers:
                results([comparers.submit(self.engines.settle_form, graph) for graph in graphs])
        with ThreadPoolExecutor(1 if self.low_memory else _OPENERS, thread_name_prefix="open") as openers:
            opening: dict[str, Future[Any]] = {graph: openers.submit(self.session, graph) for graph in graphs}
            try:
                results([*opening.values(), *self._beside(missing, opening)])
                if self._records_at_opening:
                    self._in_turn([graph for graph in missing if graph in STEP_GRAPHS])
            except BaseException:
                self._failed = True
                self._threads.run("encode", lambda: None)  # after what `ahead` has started
                raise
            finally:
                self._ahead = False

    def ahead(self, action: Callable[[], T]) -> Future[T | None] | None:
        """Starts `action`, which encodes pictures, after the encoder's first run, while `open` goes on; else None.

        Its result is None if it fails, or the others do not open.
        """

        def encode() -> T | None:
            with suppress(LatentSyncError):  # a future would keep the error's traceback, and with it sessions
                return None if self._failed else action()
            return None

        return self._threads.start("encode", encode) if self._ahead else None

    def warm_up(self, graphs: tuple[str, ...]) -> None:
        """Runs each of `graphs` once, if it has not run, and records CUDA graphs. Raises as `open`."""
        new, records = self._not_run(graphs), self.engines.cuda_graph and self._are_unrecorded
        self._in_turn([graph for graph in graphs if graph in new or (graph in STEP_GRAPHS and records)])

    def records(self) -> bool:
        """Whether the next window records CUDA graphs, while no other thread may use the GPU: the first one after a
        window was decoded, for what it uses of the steps that are open. Called once for each window.
        """
        records = self.engines.cuda_graph and self.decoded and not self._recorded and self._are_unrecorded
        self._recorded |= records
        return records

    @property
    def _are_unrecorded(self) -> bool:
        """Whether some of the steps that are open have recorded no CUDA graph."""
        with self._lock:
            return not self._opened.keys() & set(STEP_GRAPHS) <= self.denoiser.recorded

    @property
    def _records_at_opening(self) -> bool:
        """TensorRT records in any run; and nothing of an older clip is to appear soon."""
        return self.engines.cuda_graph and (self.decoded or self.engines.selection.provider is TENSORRT)

    def have_run(self, graphs: tuple[str, ...]) -> bool:
        """Whether all of `graphs` are open and have run."""
        return not self._not_run(graphs)

    def times(self) -> tuple[EngineTime, ...]:
        """Time spent on each engine, including closed ones, in the order they were opened."""
        with self._lock:
            return tuple(engine.times(*key) for key, engine in self._all.items())

    def close(self) -> None:
        """Frees everything; the next use opens it again."""
        self._begin()
        self._close()

    def _close(self, all_but: str | None = None) -> None:
        """Closes all sessions but those on the weights `all_but`, without waiting for their users."""
        graphs = self.engines.bundle.manifest.graphs
        with self._lock:
            taken = {name: opened for name, opened in self._opened.items() if graphs[name].weights != all_but}
            for graph in taken:
                del self._opened[graph]
        if not taken.keys().isdisjoint(STEP_GRAPHS):  # features must survive when other networks are closed
            self.denoiser.release()
        for opened in taken.values():
            opened.session.close()
        if taken:
            give_back_gpu_memory(self.engines.selection)

    def _make_room(self, graph: str) -> None:
        """In low memory, closes the networks of which `graph` is not a part."""
        if self.low_memory:
            self._close(self.engines.bundle.manifest.graphs[graph].weights)

    def _session_of(self, graph: str) -> Session | None:
        with self._lock:
            return self._opened[graph].session if graph in self._opened else None

    def _not_run(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` that have not run; of steps all or none: cached ones need a full one."""
        new = {graph for graph in graphs if self._session_of(graph) not in self._done}
        steps = not new.isdisjoint(STEP_GRAPHS)
        return tuple(graph for graph in graphs if graph in new or (steps and graph in STEP_GRAPHS))

    def _beside(self, graphs: Sequence[str], opening: Mapping[str, Future[Any]]) -> list[Future[None]]:
        """Starts the first run of each of `graphs`, in its stage's thread, as soon as it is open; none that records."""
        started = [
            self._threads.start(stage, partial(self._network, graph, opening[graph].result))
            for graph, stage in _STAGES.items()
            if graph in graphs
        ]
        if not self._records_at_opening:
            plain = not self.engines.cuda_graph
            steps = partial(self._steps, graphs, lambda graph: opening[graph].result(), recorded=plain)
            started.append(self._threads.start("denoise", steps))
        self._ahead = VAE_ENCODER in graphs
        return started

    def _in_turn(self, graphs: Sequence[str]) -> None:
        """Runs each of `graphs`, one after another; records CUDA graphs of the steps."""
        for graph, stage in _STAGES.items():
            if graph in graphs:
                self._threads.run(stage, partial(self._network, graph))
        self._threads.run("denoise", partial(self._steps, graphs), alone=lambda: True)

    def _network(self, graph: str, opened: Callable[[], object] = lambda: None) -> None:
        opened()
        given = self._random(graph)
        if graph == VAE_ENCODER:
            count, _, *size = given["image"].shape
            self.codec.encode_faces(np.zeros((count, *size, 3), np.uint8), np.ones(size, np.float32))
        elif graph == VAE_DECODER:
            self.codec.decode_faces(given["latent"])
        else:
            self.session(graph).run(given)
        self._done.add(self.session(graph))

    def _steps(
        self, graphs: Sequence[str], opened: Callable[[str], object] = lambda _: None, *, recorded: bool = True
    ) -> None:
        kinds = {step_graph(guided=guided, cached=cached): (guided, cached) for guided, cached in _KINDS}
        kinds = {graph: kind for graph, kind in kinds.items() if graph in graphs}
        for number, (graph, (guided, cached)) in enumerate(kinds.items()):
            opened(graph)
            if number == 0:
                begin = self.denoiser.begin if recorded else self.denoiser.begin_unchecked
                begin(self._windows(kinds.values()))
            self.denoiser.step(_TIMESTEP, np.zeros(5, np.float32), cached=cached, guided=guided, recorded=recorded)
            self._done.add(self.session(graph))

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
        return random_inputs(self.session(graph).inputs, self.engines.ranges)
