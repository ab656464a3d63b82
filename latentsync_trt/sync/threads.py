"""Overlapping stages: a generator runs in its own thread and passes its items through a bounded queue."""

import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from time import perf_counter
from typing import TypeVar, cast

import cv2

from latentsync_trt.types import StageTime

T = TypeVar("T")

# Waits are cut into pieces so that a stop (or Ctrl-C, which Windows cannot deliver inside an untimed wait) is noticed.
_POLL_S = 0.1


# After a call into a library, a stage waits for Python's lock, by default up to 5 ms: longer than most calls take.
_SWITCH_INTERVAL_S = 0.0005


def tune_process() -> None:
    """Sets what suits a process that does nothing but run stages: 55 instead of 42 frames/s on an H200 at 256 px, fast.

    OpenCV's own threads only compete with the stages.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    cv2.setNumThreads(1)


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    """The last item of a queue: the producer is done, or failed with `error`."""

    error: BaseException | None = None


def in_background(source: Generator[T, None, None], *, depth: int, name: str) -> Generator[T, None, None]:
    """Runs `source` in a thread, from now on; yields its items in order and raises what it raised.

    At most `depth` items wait between the two. Closing this generator closes `source` and waits for the thread.
    """
    items = _in_background(source, depth, name)
    next(items)
    return cast(Generator[T, None, None], items)


def _in_background(source: Generator[T, None, None], depth: int, name: str) -> Generator[T | None, None, None]:
    """As `in_background`, after one None: closing a generator that has not begun would not end its thread."""
    queue: Queue[T | _End] = Queue(depth)
    stopped = threading.Event()

    def put(item: T | _End) -> None:
        while not stopped.is_set():
            with suppress(Full):
                queue.put(item, timeout=_POLL_S)
                return

    def produce() -> None:
        try:
            with closing(source):
                for item in source:
                    put(item)
                    if stopped.is_set():
                        return
        except BaseException as error:  # noqa: BLE001 -- the consumer raises it
            put(_End(error))
        else:
            put(_End())

    thread = threading.Thread(target=produce, name=name, daemon=True)
    thread.start()
    try:
        yield None
        while True:
            try:
                item = queue.get(timeout=_POLL_S)
            except Empty:
                continue
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return
    finally:
        stopped.set()
        thread.join()


class StageClock:
    """Busy seconds of each stage, which overlap."""

    def __init__(self) -> None:
        self._busy_s: dict[str, float] = {}
        self._frames: dict[str, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def measure(self, stage: str, frames: int = 1) -> Iterator[None]:
        """Adds the time inside the block, and `frames` frames, to `stage`."""
        start_s = perf_counter()
        try:
            yield
        finally:
            busy_s = perf_counter() - start_s
            with self._lock:
                self._busy_s[stage] = self._busy_s.get(stage, 0.0) + busy_s
                self._frames[stage] = self._frames.get(stage, 0) + frames

    def measured(self, stage: str, source: Iterator[T]) -> Generator[T, None, None]:
        """The items of `source`; adds the time it takes to make each one, and a frame for each, to `stage`."""
        try:
            while True:
                with self.measure(stage, frames=0):
                    try:
                        item = next(source)
                    except StopIteration:
                        return
                with self._lock:
                    self._frames[stage] += 1
                yield item
        finally:
            if isinstance(source, Generator):
                source.close()

    def times(self) -> tuple[StageTime, ...]:
        """The sums so far, in the order in which stages first ran."""
        with self._lock:
            return tuple(StageTime(stage, busy_s, self._frames[stage]) for stage, busy_s in self._busy_s.items())
