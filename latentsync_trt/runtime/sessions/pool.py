"""The open sessions of one bundle, opened on demand and in parallel, and the threads that run them."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

from latentsync_trt.bundle.manifest import FULL_STEP, UNGUIDED_GRAPHS, VAE_DECODER, VAE_ENCODER
from latentsync_trt.runtime.sessions.engines import Engines, OpenedEngine
from latentsync_trt.runtime.sessions.memory import give_back_gpu_memory
from latentsync_trt.runtime.sessions.session import Session
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
    """

    def __init__(self, engines: Engines, *, low_memory: bool, on_close: Callable[[tuple[str, ...]], None]) -> None:
        self.engines = engines
        self.low_memory = low_memory
        self._on_close = on_close
        self._opened: dict[str, OpenedEngine] = {}
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
                opened = self._open(graph)
            return opened.session

    def opened(self, graph: str) -> Session | None:
        """The session of a graph, if it is open."""
        with self._lock:
            opened = self._opened.get(graph)
        return None if opened is None else opened.session

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` without an engine in the cache; raises `BundleError` if the bundle lacks one of them."""
        for graph in graphs:
            self.engines.bundle.graph_path(graph)
        return self.engines.missing(graphs)

    def build(self, graphs: tuple[str, ...]) -> None:
        """Builds missing engines one by one, as builds time kernels. Raises as `session`."""
        for graph in self.missing(graphs):
            if self.low_memory:
                self._close_others(graph)
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
        self.engines = engines

    def close(self) -> None:
        """Closes all sessions; `session` opens them again."""
        self._close(tuple(self._opened))

    def _open(self, graph: str) -> OpenedEngine:
        opened = self.engines.open(graph)
        with self._lock:
            self._opened[graph] = opened
        return opened

    def _close_others(self, graph: str) -> None:
        graphs = self.engines.bundle.manifest.graphs
        network = graphs[graph].weights
        with self._lock:
            others = tuple(name for name in self._opened if graphs[name].weights != network)
        self._close(others)

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


class StageThreads:
    """A thread for each stage of painting, from its first use until `close`.

    ONNX Runtime's CUDA provider keeps handles of cuBLAS and cuDNN, and recorded CUDA graphs, for each thread.

    Args:
        wanted: whether actions run there; if not, in the caller's thread.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._threads: dict[Stage, ThreadPoolExecutor] = {}
        self._here = threading.local()
        self._lock = threading.Lock()

    def start(self, stage: Stage, action: Callable[[], T]) -> Future[T]:
        """Runs `action` in the thread of `stage`, after those that were given before."""
        with self._lock:
            if stage not in self._threads:
                self._threads[stage] = ThreadPoolExecutor(
                    1, thread_name_prefix=stage, initializer=self._begin, initargs=(stage,)
                )
            return self._threads[stage].submit(action)

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """As `start`, and waits for the result."""
        if not self._wanted() or getattr(self._here, "stage", None) == stage:
            return action()
        return results([self.start(stage, action)])[0]

    def close(self) -> None:
        """Ends the threads, each after what it runs; `start` begins them again."""
        with self._lock:
            threads, self._threads = self._threads, {}
        for each in threads.values():
            each.shutdown(cancel_futures=True)

    def _begin(self, stage: Stage) -> None:
        self._here.stage = stage


class InThreads:
    """An object some of whose methods run in the threads of `stages`."""

    def __init__(self, target: object, stages: Mapping[str, Stage], threads: StageThreads) -> None:
        self._target, self._stages, self._threads = target, stages, threads

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in self._stages:
            return found
        return lambda *given, **named: self._threads.run(self._stages[name], partial(found, *given, **named))


class Gate:
    """Lets in any number of threads that share, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._alone = 0, False

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """A block beside others that share."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block beside no other; others that want to enter wait from now on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: not self._sharing)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


def results(futures: Iterable[Future[T]]) -> list[T]:
    """The results of all; once one fails, those that have not begun are canceled, and the first error is raised.

    Returns only when none of them runs any more.
    """
    futures = list(futures)
    waiting, error = set(futures), None
    try:
        while waiting and _first_error(futures) is None:
            waiting = wait(waiting, _POLL_S, FIRST_EXCEPTION).not_done
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
        del futures, waiting, error


def _first_error(futures: Sequence[Future[Any]]) -> BaseException | None:
    """The first error so far; that of an action which waited for one that was canceled only if there is no other."""
    ended = [future for future in futures if future.done()]
    errors = (CancelledError() if future.cancelled() else future.exception() for future in ended)
    return min(filter(None, errors), key=lambda error: isinstance(error, CancelledError), default=None)
