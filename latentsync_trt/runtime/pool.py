"""The open sessions of one bundle: opened when first needed, several at once, and closed where memory is short."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from latentsync_trt.errors import OutOfMemory, OutputError
from latentsync_trt.runtime.engines import Engines, Notice, OpenedEngine
from latentsync_trt.runtime.session import Session
from latentsync_trt.runtime.trace import Trace
from latentsync_trt.types import EngineTime

# Opening reads, verifies and uploads weights; more at once than this only wait for the disk.
_OPENERS = 3


class SessionPool:
    """Sessions of the graphs of `engines`' bundle.

    Args:
        engines: find, build and open.
        low_memory: keeps one network's sessions open at a time. Set when memory runs out, too.
        trace_folder: where sessions write traces of every operator, None for no traces.
        on_notice: told when memory runs out.
        on_close: called before sessions close, for those who hold buffers bound to them.
    """

    def __init__(
        self,
        engines: Engines,
        *,
        low_memory: bool,
        trace_folder: Path | None,
        on_notice: Notice,
        on_close: Callable[[], None],
    ) -> None:
        self.engines = engines
        self.low_memory = low_memory
        self._trace_folder = trace_folder
        self._notice = on_notice
        self._on_close = on_close
        self._opened: dict[str, OpenedEngine] = {}
        self._lock = threading.RLock()
        self._one_at_a_time = {graph: threading.Lock() for graph in engines.bundle.manifest.graphs}
        self.closed: list[tuple[EngineTime, Trace | None]] = []

    def session(self, graph: str) -> Session:
        """The session of a graph, opened, and built if need be, at the first call.

        Raises:
            BundleError: the bundle has no such graph. Else as `Engines.open`.
        """
        self.engines.bundle.graph_path(graph)
        with self._one_at_a_time[graph]:
            if graph not in self._opened:
                if self.low_memory:
                    self._close_others(graph)
                opened = self._open(graph)
                with self._lock:
                    self._opened[graph] = opened
            return self._opened[graph].session

    def prepare(self, graphs: Iterable[str]) -> None:
        """Builds what is missing, one by one, as builds time kernels; then opens all of `graphs` side by side.

        Where memory is low they are opened only when their turn comes. Errors as `session`.
        """
        graphs = tuple(graphs)
        with suppress(OutputError):  # opening tells of a cache that cannot be written, and builds for this run only
            for graph in self.engines.missing(graphs):
                self.engines.build(graph)
        if self.low_memory:
            return
        with ThreadPoolExecutor(_OPENERS, thread_name_prefix="open") as openers:
            list(openers.map(self.session, graphs))

    def times(self) -> tuple[EngineTime, ...]:
        """What the sessions cost so far, closed ones too, in the order they were opened."""
        with self._lock:
            opened = [engine.times(graph, self.engines.selection.name) for graph, engine in self._opened.items()]
            return (*(times for times, _ in self.closed), *opened)

    def switch(self, engines: Engines) -> None:
        """Closes everything; sessions come from `engines` from now on."""
        self.close()
        self.engines = engines

    def close(self) -> None:
        """Closes all sessions; the next call of `session` opens again."""
        self._close(tuple(self._opened))

    def _open(self, graph: str) -> OpenedEngine:
        prefix = None if self._trace_folder is None else self._trace_folder / f"{graph}-{len(self.closed)}"
        try:
            opened = self.engines.open(graph, profile_prefix=prefix)
        except OutOfMemory:
            if not self._relieve(graph):
                raise
            opened = self.engines.open(graph, profile_prefix=prefix)
        opened.session.relieve = lambda: self._relieve(graph)
        return opened

    def _relieve(self, graph: str) -> bool:
        """Closes the other networks' sessions; says whether there were any."""
        if not self._close_others(graph):
            return False
        if not self.low_memory:
            self.low_memory = True
            self._notice(
                "memory of the device is short: from here on one network at a time is kept on it, which is slower"
            )
        return True

    def _close_others(self, graph: str) -> bool:
        graphs = self.engines.bundle.manifest.graphs
        network = graphs[graph].weights
        others = tuple(name for name in self._opened if graphs[name].weights != network)
        self._close(others)
        return bool(others)

    def _close(self, graphs: tuple[str, ...]) -> None:
        if not graphs:
            return
        self._on_close()
        with self._lock:
            for graph in graphs:
                opened = self._opened.pop(graph)
                times = opened.times(graph, self.engines.selection.name)
                start_s = opened.session.opened_at_s
                path = opened.session.close()
                self.closed.append((times, None if path is None else Trace(graph, path, start_s)))
