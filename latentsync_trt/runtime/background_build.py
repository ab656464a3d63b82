"""Builds engines in a child process for the next run, while this one uses another provider."""

from collections.abc import Iterator, Sequence
from typing import Any

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import Child, Emit
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.session_factory import SessionFactory

# A build that is asked to stop removes what it has written.
_PATIENCE_S = 2.0


class BackgroundBuild:
    """Starts building `graphs` of `factory`; raises `OSError` if the process cannot be started."""

    def __init__(self, factory: SessionFactory, graphs: Sequence[str]) -> None:
        self._child, self._errors = Child(build), list[str]()
        folder, cache = factory.bundle.folder.resolve(), factory.cache.folder
        self._child.send((folder, factory.selection, factory.options, cache, tuple(graphs)))

    def wait(self) -> str:
        """Waits for the end; returns the error, empty if none."""
        self._errors += [event["error"] for event in self._child.events()]  # none where one has waited before
        ended = self._child.wait()
        return self._errors[0] if self._errors else ended.last_error_line or f"its process ended with {ended}"

    def stop(self) -> None:
        """Ends the process; an unfinished engine is never used."""
        self._child.end(_PATIENCE_S)


def build(orders: Iterator[Any], emit: Emit) -> None:
    """In the child: builds engines one after another; the only event has the error, empty if none."""
    folder, selection, options, cache_folder, graphs = next(orders)
    error = ""
    try:
        factory = SessionFactory(Bundle.load(folder), selection, options, EngineCache(cache_folder, print), print)
        for graph in graphs:
            factory.build(graph)
    except LatentSyncError as failure:
        error = str(failure)
    emit(error=error)
