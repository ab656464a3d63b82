"""The open sessions of one bundle: opened on demand, in parallel, and closed when memory runs out."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from latentsync_trt.bundle.manifest import FULL_STEP, UNGUIDED_GRAPHS, VAE_DECODER, VAE_ENCODER
from latentsync_trt.errors import OutOfMemory, OutputError
from latentsync_trt.runtime.cache.store import Notice
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from latentsync_trt.runtime.sessions.memory import give_back_gpu_memory
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.runtime.sessions.threads import Gate, results
from latentsync_trt.types import EngineTime

T = TypeVar("T")

Beside = Callable[[Mapping[str, Future[Any]]], Sequence[Future[Any]]]
"""Gets the opening of each graph, and starts what uses them while others are opened."""

# Opening reads, verifies and uploads weights; more threads would only wait for the disk.
_OPENERS = 3

# Those whose opening and first run take longest; others follow.
_OPENED_FIRST = (FULL_STEP, UNGUIDED_GRAPHS[0], VAE_DECODER, VAE_ENCODER)

_RAN_OUT = "it ran out"


class SessionPool:
    """Sessions of the graphs of `engines`' bundle.

    A session is closed without waiting for its users. So `gate` is entered to share it with other threads, which then
    get `OutOfMemory` where memory could be freed, or alone; without it, only one thread may use the pool.

    Args:
        low_memory: keep one network's sessions open at a time; also set when memory runs out.
        on_notice: called when memory runs out.
        on_close: called with the graphs whose sessions will be closed, to drop buffers bound to them.
    """

    def __init__(
        self,
        engines: Engines,
        *,
        low_memory: bool,
        on_notice: Notice,
        on_close: Callable[[tuple[str, ...]], None],
    ) -> None:
        self.engines = engines
        self.low_memory = low_memory
        self.gate = Gate()
        self._notice = on_notice
        self._on_close = on_close
        self._opened: dict[str, OpenedEngine] = {}
        self._built: set[str] = set()
        self._lock = threading.RLock()
        self._opening = {graph: threading.Lock() for graph in engines.bundle.manifest.graphs}
        self._past: dict[tuple[str, str], EngineTime] = {}

    def session(self, graph: str) -> Session:
        """The session of a graph; the first call opens it, and builds its engine if there is none.

        Raises:
            BundleError: the bundle has no such graph. Others as `Engines.open`.
        """
        self.engines.bundle.graph_path(graph)
        with self._opening[graph]:
            opened = self._opened.get(graph)
            if opened is None:
                if self.low_memory:
                    self._close_others(graph)
                opened = self._retrying(graph, lambda: self._open(graph))
            return opened.session

    def opened(self, graph: str) -> Session | None:
        """The session of a graph, if it is open."""
        with self._lock:
            opened = self._opened.get(graph)
        return None if opened is None else opened.session

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` without an engine in the cache; none where the cache cannot be read.

        Raises:
            BundleError: the bundle lacks one of `graphs`.
        """
        for graph in graphs:
            self.engines.bundle.graph_path(graph)
        with suppress(OutputError):  # opening reports the error, and builds for this run only
            return self.engines.missing(graphs)
        return ()

    def build(self, graphs: tuple[str, ...]) -> bool:
        """Builds missing engines one by one, as builds time kernels; returns whether the cache has all of them then.

        Nothing is built for graphs that are open, which may have engines for this run only. Raises as `session`.
        """
        self.engines.retry_cache()
        with suppress(OutputError):  # as in `missing`
            for graph in self.missing(graphs):
                if graph not in self._opened:
                    self._build(graph)
            return not self.engines.missing(graphs)
        return False

    def prepare(self, graphs: Iterable[str], beside: Beside = lambda _: ()) -> None:
        """Opens all of `graphs` in parallel; `build` comes first.

        With one network at a time, they are opened one after another, to detect errors now, without `beside`. Raises as
        `session`.
        """
        graphs = tuple(graphs)
        if not self._opened:  # while memory is free: the first call allocates some itself
            give_back_gpu_memory(self.engines.selection)
        if not self._opened:
            for graph in graphs:
                self.engines.settle_form(graph)
        if not self.low_memory and self._open_side_by_side(graphs, beside):
            return
        for graph in graphs:
            self.session(graph)

    def reopen(self, graph: str) -> bool:
        """Closes the session of a graph that ran out of memory with no other network open; returns whether it was open.

        A new session can succeed: a session keeps what a provider chose for lack of memory, such as cuDNN's plans.
        """
        with self._lock:
            known = self.low_memory and graph in self._opened
        if known:
            self._close((graph,))
        return known

    def save_memory(self, reason: str) -> None:
        """Keeps one network at a time on the device from now on, with a notice of the reason."""
        if not self.low_memory:
            self.low_memory = True
            self._notice(
                f"memory of the device is short ({reason}): one network at a time is kept on it, which is slower"
            )

    def times(self) -> tuple[EngineTime, ...]:
        """Time spent on each engine, including closed ones, in the order they were opened."""
        with self._lock:
            times = dict(self._past)
            for graph, opened in self._opened.items():
                _add(times, opened.times(graph, self.engines.selection.name))
            return tuple(times.values())

    def switch(self, engines: Engines) -> None:
        """Closes all sessions; new ones come from `engines`."""
        self._close(tuple(self._opened))
        self._built.clear()
        self.engines = engines

    def close(self) -> None:
        """Closes all sessions; `session` opens them again."""
        self._close(tuple(self._opened))

    def _build(self, graph: str) -> None:
        if self.low_memory:
            self._close_others(graph)
        if self._retrying(graph, lambda: self.engines.build(graph)).built:
            self._built.add(graph)

    def _open_side_by_side(self, graphs: tuple[str, ...], beside: Beside) -> bool:
        """False if memory runs out; then none is open, and one network at a time is kept from now on."""
        opening: dict[str, Future[Any]] = {}
        try:
            with (
                self.gate.sharing(wait_for_others=False),
                ThreadPoolExecutor(_OPENERS, thread_name_prefix="open") as openers,
            ):
                ordered = [graph for graph in _OPENED_FIRST if graph in graphs]
                ordered += [graph for graph in graphs if graph not in ordered]
                opening.update({graph: openers.submit(self._open_if_closed, graph) for graph in ordered})
                results([*opening.values(), *beside(opening)])
        except OutOfMemory:
            opening.clear()  # an error that refers to itself would keep sessions
            self._close(tuple(self._opened))
            self.save_memory(_RAN_OUT)
            return False
        return True

    def _open_if_closed(self, graph: str) -> None:
        with self._opening[graph]:
            if graph not in self._opened:
                self._open(graph)

    def _open(self, graph: str) -> OpenedEngine:
        opened = self.engines.open(graph)
        opened.session.free_memory = lambda: self._make_room(graph)
        with self._lock:
            # `prepare` builds first, so opening finds an engine that this run built.
            built = opened.built or graph in self._built
            self._built.discard(graph)
            self._opened[graph] = opened = replace(opened, built=built)
        return opened

    def _retrying(self, graph: str, action: Callable[[], T]) -> T:
        """`action`, retried once if memory runs out and other networks than that of `graph` can be closed."""
        try:
            return action()
        except OutOfMemory:
            if not self._make_room(graph):
                raise
        return action()

    def _make_room(self, graph: str) -> bool:
        """Closes the other networks' sessions; returns whether there were any, and no other thread uses them."""
        if self.gate.shared or not self._close_others(graph):
            return False
        self.save_memory(_RAN_OUT)
        return True

    def _close_others(self, graph: str) -> bool:
        graphs = self.engines.bundle.manifest.graphs
        network = graphs[graph].weights
        with self._lock:
            others = tuple(name for name in self._opened if graphs[name].weights != network)
        self._close(others)
        return bool(others)

    def _close(self, graphs: tuple[str, ...]) -> None:
        """Closes those of `graphs` that are open, and returns their memory to the device."""
        with self._lock:
            taken = {graph: self._opened.pop(graph) for graph in graphs if graph in self._opened}
            for graph, opened in taken.items():
                _add(self._past, opened.times(graph, self.engines.selection.name))
        if not taken:
            return
        self._on_close(tuple(taken))
        for opened in taken.values():
            opened.session.close()
        give_back_gpu_memory(self.engines.selection)


def _add(times: dict[tuple[str, str], EngineTime], more: EngineTime) -> None:
    key = more.graph, more.provider
    times[key] = times[key].merged(more) if key in times else more
