"""Stages that overlap: a generator runs in a thread of its own and hands its items on through a bounded queue."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, Full, Queue
from typing import TypeVar

from latentsync_trt.types import Span, StageTime

T = TypeVar("T")

# Waits are cut into pieces so that a stop (or Ctrl-C, which Windows cannot deliver inside an untimed wait) is noticed.
_POLL_S = 0.1


class _End:
    """The last thing in a queue: the producer is done, or failed with `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def in_background(source: Generator[T, None, None], *, depth: int, name: str) -> Generator[T, None, None]:
    """Runs `source` in a thread; yields its items in order and raises what it raised.

    At most `depth` items wait between the two. Closing this generator closes `source` and waits for the thread.
    """
    queue: Queue[T | _End] = Queue(depth)
    stopped = threading.Event()

    def produce() -> None:
        end = _End()
        try:
            for item in source:
                if not _put(queue, item, stopped):
                    break
        except BaseException as error:  # noqa: BLE001 -- whatever it is belongs to the consumer, which raises it
            end = _End(error)
        finally:
            source.close()
            _put(queue, end, stopped)

    thread = threading.Thread(target=produce, name=name, daemon=True)
    thread.start()
    try:
        while True:
            item = _get(queue, thread)
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stopped.set()
        thread.join()


def _put(queue: Queue[T | _End], item: T | _End, stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            queue.put(item, timeout=_POLL_S)
        except Full:
            continue
        return True
    return False


def _get(queue: Queue[T | _End], thread: threading.Thread) -> T | _End:
    while True:
        try:
            return queue.get(timeout=_POLL_S)
        except Empty:
            if not thread.is_alive() and queue.empty():
                return _End()


class StageClock:
    """Seconds each stage was busy. Stages run in threads of their own, so their times overlap and do not add up.

    Args:
        on_span: told of every single time, from the stage's own thread.
    """

    def __init__(self, on_span: Callable[[Span], None] | None = None) -> None:
        self._on_span = on_span
        self._busy_s: dict[str, float] = {}
        self._frames: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def measure(self, stage: str, frames: int = 1) -> Iterator[None]:
        """Counts the time inside the block, and `frames` frames, for `stage`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            with self._lock:
                self._busy_s[stage] = self._busy_s.get(stage, 0.0) + elapsed
                self._frames[stage] = self._frames.get(stage, 0) + frames
            if self._on_span is not None:
                self._on_span(Span(stage, threading.current_thread().name, start, elapsed))

    def measured(self, stage: str, source: Iterable[T]) -> Generator[T, None, None]:
        """Counts the time `source` takes to make each item for `stage`."""
        iterator = iter(source)
        try:
            while True:
                with self.measure(stage, frames=0):
                    try:
                        item = next(iterator)
                    except StopIteration:
                        return
                with self._lock:
                    self._frames[stage] += 1
                yield item
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    def times(self) -> tuple[StageTime, ...]:
        """What was measured so far, in the order the stages first ran."""
        with self._lock:
            return tuple(StageTime(stage, busy_s, self._frames[stage]) for stage, busy_s in self._busy_s.items())
