"""The open sessions of one bundle, opened on demand and in parallel, and the threads that run them."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

from latentsync_trt.bundle.manifest import FULL_STEP, UNGUIDED_GRAPHS, VAE_DECODER, VAE_ENCODER
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from latentsync_trt.runtime.sessions.session import Session, give_back_gpu_memory
from latentsync_trt.types import EngineTime

Beside = Callable[[Mapping[str, Future[Any]]], Sequence[Future[Any]]]
"""Gets the opening of each graph, and starts what uses them while others are opened."""

# Opening reads, verifies and uploads weights; more threads would only wait for the disk.
_OPENERS = 3

# Those whose opening and first run take longest; others follow.
_OPENED_FIRST = (FULL_STEP, UNGUIDED_GRAPHS[0], VAE_DECODER, VAE_ENCODER)

T = TypeVar("T")

Stage = Literal["encode", "denoise", "decode"]

# Waits are cut into pieces, as Windows cannot deliver Ctrl-C inside an untimed one.
_POLL_S = 0.1


class SessionPool:
    """Sessions of the graphs of `engines`' bundle.

    A session is closed without waiting for its users.

    Args:
        low_memory: keep one network's sessions open at a time.
        on_close: called with the graphs whose sessions will be closed, to drop buffers bound to them.
        past: time spent on engines of earlier pools, by graph and provider.
    """

    def __init__(
        self,
        engines: Engines,
        *,
        low_memory: bool,
        on_close: Callable[[tuple[str, ...]], None],
        past: Mapping[tuple[str, str], EngineTime],
    ) -> None:
        self.engines, self.low_memory, self._on_close = engines, low_memory, on_close
        self._opened: dict[str, OpenedEngine] = {}
        self._lock = threading.RLock()
        self._opening = {graph: threading.Lock() for graph in engines.bundle.manifest.graphs}
        self._past = past

    def session(self, graph: str) -> Session:
        """The session of a graph; the first call opens it, and builds its engine if there is none.

        Raises:
            BundleError: the bundle has no such graph. Others as `Engines.open`.
        """
        self.engines.bundle.graph_path(graph)
        with self._opening[graph]:
            session = self.opened(graph)
            if session is None:
                self._make_room(graph)
                opened = self.engines.open(graph)
                with self._lock:
                    self._opened[graph] = opened
                session = opened.session
            return session

    def opened(self, graph: str) -> Session | None:
        """The session of a graph, if it is open."""
        with self._lock:
            return self._opened[graph].session if graph in self._opened else None

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` without an engine in the cache; raises `BundleError` if the bundle lacks one of them."""
        for graph in graphs:
            self.engines.bundle.graph_path(graph)
        return self.engines.missing(graphs)

    def build(self, graphs: tuple[str, ...]) -> None:
        """Builds missing engines one by one, as builds time kernels. Raises as `session`."""
        for graph in self.missing(graphs):
            self._make_room(graph)
            self.engines.build(graph)

    def prepare(self, graphs: Iterable[str], beside: Beside = lambda _: ()) -> None:
        """Opens all of `graphs` in parallel; `build` comes first.

        With one network at a time, they are opened one after another, to detect errors now, without
        `beside`. Raises as `session`.
        """
        graphs = tuple(graphs)
        if not self._opened:  # while memory is free
            give_back_gpu_memory(self.engines.selection)  # whose first call allocates some itself
            for graph in graphs:
                self.engines.settle_form(graph)
        if self.low_memory:
            for graph in graphs:
                self.session(graph)
            return
        with ThreadPoolExecutor(_OPENERS, thread_name_prefix="open") as openers:
            ordered = [graph for graph in _OPENED_FIRST if graph in graphs]
            ordered += [graph for graph in graphs if graph not in ordered]
            opening: dict[str, Future[Any]] = {graph: openers.submit(self.session, graph) for graph in ordered}
            results([*opening.values(), *beside(opening)])

    def times(self) -> Mapping[tuple[str, str], EngineTime]:
        """Time spent on each engine, including closed ones, by graph and provider, in the order they were opened."""
        with self._lock:
            return self._times(self._opened)

    def close(self, *, all_but: str | None = None) -> None:
        """Closes all sessions but those on the weights `all_but`, and returns their memory to the device.

        `session` opens them again.
        """
        with self._lock:
            graphs = self.engines.bundle.manifest.graphs
            taken = {name: opened for name, opened in self._opened.items() if graphs[name].weights != all_but}
            self._past = self._times(taken)
            for graph in taken:
                del self._opened[graph]
        if not taken:
            return
        self._on_close(tuple(taken))
        for opened in taken.values():
            opened.session.close()
        give_back_gpu_memory(self.engines.selection)

    def _make_room(self, graph: str) -> None:
        """Where one network at a time is open, closes those of which `graph` is not a part."""
        if self.low_memory:
            self.close(all_but=self.engines.bundle.manifest.graphs[graph].weights)

    def _times(self, opened: Mapping[str, OpenedEngine]) -> dict[tuple[str, str], EngineTime]:
        """Of closed engines and of those that are `opened`."""
        times, provider = dict(self._past), self.engines.selection.name
        for graph, engine in opened.items():
            more, key = engine.times(graph, provider), (graph, provider)
            times[key] = times[key].merged(more) if key in times else more
        return times


class StageThreads:
    """A thread for each stage of painting, from its first use until `close`, after which `start` begins it again.

    ONNX Runtime's CUDA provider keeps handles of cuBLAS and cuDNN, and recorded CUDA graphs, for each thread.

    Args:
        wanted: whether actions run there; if not, in the caller's thread.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._threads = _stage_threads()

    def start(self, stage: Stage, action: Callable[[], T]) -> Future[T]:
        """Runs `action` in the thread of `stage`, after those that were given before."""
        return self._threads[stage].submit(action)

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """As `start`, and waits for the result."""
        if not self._wanted() or threading.current_thread().name.startswith(f"{stage} of painting"):
            return action()
        return results([self.start(stage, action)])[0]

    def close(self) -> None:
        """Ends the threads, each after what it runs."""
        threads, self._threads = self._threads, _stage_threads()
        for each in threads.values():
            each.shutdown(cancel_futures=True)


def _stage_threads() -> dict[Stage, ThreadPoolExecutor]:
    return {stage: ThreadPoolExecutor(1, f"{stage} of painting") for stage in get_args(Stage)}


class Gate:
    """Lets in any number of threads that share, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._alone = 0, False

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """A block beside others that share, or beside no other: then, those that want to enter wait from now on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True
                self._changed.wait_for(lambda: not self._sharing)
            else:
                self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()


def results(futures: Iterable[Future[T]]) -> list[T]:
    """The results of all; once one fails, those that have not begun are canceled, and the first error is raised.

    Returns only when none of them runs any more.
    """
    futures = list(futures)
    error = None
    try:
        while wait(futures, _POLL_S, FIRST_EXCEPTION).not_done and _first_error(futures) is None:
            pass
    finally:
        deque(map(Future.cancel, futures), maxlen=0)
        wait(futures)
    try:
        error = _first_error(futures)
        if error is not None:
            raise error
        return [future.result() for future in futures]
    finally:
        # Else the error's traceback, and this frame in it, would keep the error, and with it
        # sessions that ran: no other name here may hold a future.
        del futures, error


def _first_error(futures: Sequence[Future[Any]]) -> BaseException | None:
    """The first error so far; that of an action which waited for one that was canceled only if there is no other."""
    ended = [future for future in futures if future.done()]
    errors = (CancelledError() if future.cancelled() else future.exception() for future in ended)
    return min(filter(None, errors), key=lambda error: isinstance(error, CancelledError), default=None)
