"""The highest memory of this process and of the device while something runs."""

import threading
from types import TracebackType
from typing import Self

import psutil

from latentsync_trt.bench.rows import Memory
from latentsync_trt.runtime.providers.gpu import free_memory_bytes

_POLL_S = 0.02
"""Often enough for what lasts as long as a denoising step, seldom enough to take no time from it."""


class MemoryWatch:
    """Looks at memory from a thread of its own, from entering to leaving; then `peak` tells the highest.

    Args:
        gpu_index: whose memory; None for none. free_before_bytes: what was free on it before the bench began.
    """

    def __init__(self, gpu_index: int | None, free_before_bytes: int | None) -> None:
        self._gpu_index, self._free_before_bytes = gpu_index, free_before_bytes
        self._process = psutil.Process()
        self._host_bytes, self._least_free_bytes = 0, free_before_bytes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._look()

    @property
    def peak(self) -> Memory:
        """The highest so far."""
        if self._free_before_bytes is None or self._least_free_bytes is None:
            return Memory(self._host_bytes, None)
        return Memory(self._host_bytes, max(self._free_before_bytes - self._least_free_bytes, 0))

    def _watch(self) -> None:
        while not self._stopped.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        self._host_bytes = max(self._host_bytes, self._process.memory_info().rss)
        if self._gpu_index is not None and self._least_free_bytes is not None:
            free_bytes = free_memory_bytes(self._gpu_index)
            if free_bytes is not None:
                self._least_free_bytes = min(self._least_free_bytes, free_bytes)
