"""Builds engines in a child process, while a run goes on with another provider."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Child, Emit
from latentsync_trt.errors import EngineBuildError, LatentSyncError
from latentsync_trt.runtime.cache import EngineCache
from latentsync_trt.runtime.sessions.engines import Engines

# A build that is asked to stop removes what it has written.
_PATIENCE_S = 2.0


class BackgroundBuild:
    """Starts building `graphs` of `engines`; `elapsed_s` is valid once `done`.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, engines: Engines, graphs: Sequence[str]) -> None:
        self._engines, self._error, self.elapsed_s = engines, "", 0.0
        self._start_s = time.monotonic()
        self._child = Child(build)
        folder, cache = engines.bundle.folder.resolve(), engines.cache
        self._child.send((folder, engines.selection, engines.options, cache.folder, tuple(graphs)))
        self._waiter = threading.Thread(target=self._watch, name="build", daemon=True)
        self._waiter.start()

    @property
    def done(self) -> bool:
        return not self._waiter.is_alive()

    def wait(self) -> str:
        while not self.done:  # in short waits: Windows delivers Ctrl-C only between them
            self._waiter.join(0.1)
        return self._error

    def result(self) -> Engines:
        """The engines, of which all were built; raises `EngineBuildError` if not."""
        if self._error:
            raise EngineBuildError(self._error)
        return self._engines

    def stop(self) -> None:
        """Ends the process; an unfinished engine is never used."""
        self._child.end(_PATIENCE_S)
        self._waiter.join()

    def _watch(self) -> None:
        errors = [event["error"] for event in self._child.events()]
        ended = self._child.wait()
        self._error = errors[0] if errors else ended.last_error_line or f"its process ended with {ended}"
        self.elapsed_s = time.monotonic() - self._start_s


def build(orders: Iterator[Any], emit: Emit) -> None:
    """In the child: builds engines one after another; the only event has the error, empty if none."""
    folder, selection, options, cache_folder, graphs = next(orders)
    error = ""
    try:
        cache = EngineCache(cache_folder, print, options.engine_store)
        engines = Engines(Bundle.load(folder, verify=False), selection, options, cache, print)
        for graph in graphs:
            engines.build(graph)
    except LatentSyncError as failure:
        error = str(failure)
    emit(error=error)
