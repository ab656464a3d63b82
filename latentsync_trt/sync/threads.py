"""Threads of a clip: stages that overlap, and how much waits between them."""

import sys
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

import cv2

from latentsync_trt.runtime.stages import POLL_S
from latentsync_trt.types import Frame, StageTime

T = TypeVar("T")

QUEUE_DEPTH = 4
"""Items that wait between two stages: enough to even out their pace, few enough for pictures of 4K
in little memory."""

_END = object()
"""What is taken from a source that has ended."""
_Result = SimpleQueue[tuple[Any, BaseException | None]]
"""Gets an item, or the error of making it."""

_SWITCH_INTERVAL_S = 0.0001
"""How long a thread may keep Python's lock. After a call into a library, a stage waits for it, by
default up to 5 ms: longer than most calls take."""


def tune_process() -> None:
    """Sets what suits a process that only runs stages, with which OpenCV's own threads compete.

    An H200 painted 55 instead of 42 frames/s at 256 px with an interval of 0.5 ms, and 92 to 97
    instead of 87 to 90 with one of 0.1 ms; with 1 to 5 µs, it painted 60 instead of 67.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    cv2.setNumThreads(1)


def prefetch(
    source: Generator[Any, None, None],
    change: Callable[[Any], Any] = lambda item: item,
    *,
    threads: int = 1,
    depth: int = QUEUE_DEPTH,
    name: str,
    on_stop: Callable[[], object] = lambda: None,
    on_wait: Callable[[], object] = lambda: None,
) -> Generator[Any, None, None]:
    """Runs `source` in threads, one at a time, and `change`, side by side, of each item, from now
    on.

    Yields results in the order of `source`, and raises what either raised. At most `depth + 1`
    items are being made or wait. Closing this generator calls `on_stop`, as an error does, waits
    for those being made, and closes `source`. `on_wait` is called several times a second by who
    waits for a result; an error of it is raised there.
    """
    makers = _Makers(source, change, [name] * threads, depth + 1)
    items = makers.results(on_stop, on_wait)
    next(items)  # closing a generator that has not begun would not end its threads
    return items


class _Makers:
    """Threads that take items from `source`, one at a time, and change them side by side."""

    def __init__(
        self,
        source: Generator[Any, None, None],
        change: Callable[[Any], Any],
        names: Sequence[str],
        most: int,
    ) -> None:
        self._room = SimpleQueue[None]()
        """Has an entry for each item that may be made."""
        for _ in range(most):
            self._room.put(None)
        self._is_open = True
        self._source = source
        self._change = change
        self._pending = SimpleQueue[_Result]()
        """Where the items will be, in the order of `source`."""
        self._taking = threading.Lock()
        self._threads = [threading.Thread(target=self._make, name=name) for name in names]

    def results(
        self, on_stop: Callable[[], object], on_wait: Callable[[], object]
    ) -> Generator[Any, None, None]:
        """Starts the threads and yields None, then the items; ends as `prefetch` says."""
        ended = False
        try:
            for thread in self._threads:
                thread.start()
            yield None
            while (item := self._next_item(on_wait)) is not _END:
                self._room.put(None)
                yield item
            ended = True
        finally:
            self._is_open = False
            if not ended:
                on_stop()
            for _ in self._threads:
                self._room.put(None)
            # A signal may come before all threads have started.
            for thread in filter(threading.Thread.is_alive, self._threads):
                thread.join()
            self._source.close()

    def _next_item(self, on_wait: Callable[[], object]) -> Any:
        """Waits for the next item; raises what making it raised."""
        item, error = _next_in(_next_in(self._pending, on_wait), on_wait)
        if error is not None:
            raise error
        return item

    def _make(self) -> None:
        while self._room.get() is None and self._is_open:
            self._make_next()  # whose variables hold no item while this thread waits

    def _make_next(self) -> None:
        result: _Result = SimpleQueue()
        try:
            with self._taking:
                self._pending.put(result)
                item = next(self._source, _END) if self._is_open else _END
            if item is not _END:
                item = self._change(item)
            result.put((item, None))
        except BaseException as error:  # noqa: BLE001 -- raised by the consumer
            result.put((_END, error))


def _next_in(queue: SimpleQueue[T], on_wait: Callable[[], object]) -> T:
    while True:
        with suppress(Empty):
            return queue.get(timeout=POLL_S)
        on_wait()


class ClipStages:
    """The stages of one clip: `prefetch_frames` runs those before painting, `prefetch` painting and
    those after it.

    Where one fails or is closed, no more frames enter; in painting or after it, painting is
    canceled, too. What fails before painting is raised after the frames before it, which are
    painted.

    A frame may enter where all those on their way could be held back.

    Args:
        held_frames: how many are held to complete windows.
        spare_frames: how many of these may be held for several windows at once.
        first_s: those of so many seconds are held to fade.
        last_s: those of so many seconds are held to bridge gaps.
        on_disk: the pictures of frames are kept there, and fewer items wait between stages.
    """

    def __init__(
        self,
        held_frames: int,
        spare_frames: int,
        first_s: Fraction,
        last_s: Fraction,
        *,
        on_disk: bool = False,
    ) -> None:
        self.spare_frames = spare_frames
        self.on_disk = on_disk
        self._ended = threading.Event()
        self._canceled = threading.Event()
        self._held_frames = held_frames
        self._first_s = first_s
        self._last_s = last_s
        self._times_s: deque[Fraction] = deque()
        self._changed = threading.Condition()
        depth = 0 if on_disk else QUEUE_DEPTH
        self.prefetch_frames = partial(prefetch, depth=depth, on_stop=self._ended.set)
        self.prefetch = partial(prefetch, depth=depth, on_stop=self._canceled.set)

    def entering(
        self, frames: Iterator[Frame], clock: "StageClock"
    ) -> Generator[Frame, None, None]:
        """Yields the same frames; each waits for room before it is read, which `clock` measures."""
        while True:
            with self._changed:
                while not (self._has_room() or self._is_over()):
                    self._changed.wait(POLL_S)
            with clock.measure("decode", frames=0):
                frame = None if self._is_over() else next(frames, None)
            if frame is None:
                return
            self._times_s.append(frame.time_s)
            yield frame

    def leave(self) -> None:
        """Makes room: the first of the frames has been written, or is left out."""
        with self._changed:
            self._times_s.popleft()
            self._changed.notify_all()

    def check(self) -> None:
        """Raises `CancelledError` if painting is canceled."""
        if self._canceled.is_set():
            raise CancelledError

    def _is_over(self) -> bool:
        return self._ended.is_set() or self._canceled.is_set()

    def _has_room(self) -> bool:
        times_s = self._times_s
        if not times_s:
            return True
        first = bisect_left(times_s, times_s[0] + self._first_s)
        before_last = bisect_left(times_s, times_s[-1] - self._last_s)
        last = len(times_s) - before_last
        return len(times_s) < first + last + self._held_frames


class StageClock:
    """Busy seconds of each stage, which overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_s = defaultdict[str, float](float)
        self._frames = defaultdict[str, int](int)

    @contextmanager
    def measure(self, stage: str, frames: int = 1) -> Iterator[None]:
        """Adds the time inside the block, and `frames` frames, to `stage`."""
        start_s = perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._busy_s[stage] += perf_counter() - start_s
                self._frames[stage] += frames

    def times(self) -> tuple[StageTime, ...]:
        """Returns the sums so far, in the order in which stages first ran."""
        with self._lock:
            times = [
                StageTime(name, busy_s, self._frames[name]) for name, busy_s in self._busy_s.items()
            ]
        return tuple(times)
