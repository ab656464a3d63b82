"""Times runs and watches memory."""

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Self

import psutil

from latentsync_trt.bench.rows import Memory
from latentsync_trt.runtime.providers.gpu import free_memory_bytes

_POLL_S = 0.02
"""Interval of polling: shorter than a denoising step, long enough not to slow it down."""


def measure(run: Callable[[], object], *, runs: int, warm_up: int) -> list[float]:
    """Milliseconds of each of `runs` calls, after `warm_up` untimed ones; `run` must be synchronous."""
    for _ in range(warm_up):
        run()
    times_ms = []
    for _ in range(runs):
        start_s = perf_counter()
        run()
        times_ms.append(1000 * (perf_counter() - start_s))
    return times_ms


class MemoryWatch:
    """Polls memory in a thread of its own while the block runs.

    Args:
        gpu_index: the GPU to watch, or None. free_before_bytes: memory that was free on it before the bench began.
    """

    def __init__(self, gpu_index: int | None, free_before_bytes: int | None) -> None:
        self._gpu_index, self._free_before_bytes = gpu_index, free_before_bytes
        self._process = psutil.Process()
        self._host_bytes, self._device_bytes = 0, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def peak(self) -> Memory:
        """The highest use so far."""
        self._look()
        return Memory(self._host_bytes, None if self._free_before_bytes is None else self._device_bytes)

    def _poll(self) -> None:
        while not self._stopped.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        self._host_bytes = max(self._host_bytes, self._process.memory_info().rss)
        if self._gpu_index is not None and self._free_before_bytes is not None:
            free_bytes = free_memory_bytes(self._gpu_index)
            if free_bytes is not None:
                self._device_bytes = max(self._device_bytes, self._free_before_bytes - free_bytes)
