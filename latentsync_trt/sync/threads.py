"""Threads of a clip: stages that overlap, and how much waits between them."""

import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from fractions import Fraction
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

import cv2

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.stages import POLL_S
from latentsync_trt.types import Frame, StageTime

T = TypeVar("T")

QUEUE_DEPTH = 4
"""Pictures that wait between two stages: enough to even out their pace, few enough for 4K in little memory."""

_END = object()
_Place = SimpleQueue[tuple[Any, BaseException | None]]

# After a call into a library, a stage waits for Python's lock, by default up to 5 ms: longer than most calls take.
_SWITCH_INTERVAL_S = 0.0001


def tune_process() -> None:
    """Sets what suits a process that does nothing but run stages. An H200 painted 55 instead of 42 frames/s at 256 px
    with an interval of 0.5 ms, and later 92 to 97 instead of 87 to 90 with one of 0.1 ms.

    OpenCV's own threads only compete with the stages.
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
) -> Generator[Any, None, None]:
    """Runs `source` in threads, one at a time, and `change`, side by side, of each item, from now on.

    Yields what `change` returned in the order of `source`, and raises what either raised. At most `depth + 1` items are
    being made or wait. Closing this generator waits for those that are being made and closes `source`; before that, and
    before it raises an error, it calls `on_stop`.
    """
    makers = _Makers(source, change, threads, depth, name)

    def consume() -> Generator[Any, None, None]:
        ended = False
        try:
            makers.start()
            yield None
            while True:
                item, error = _next_in(_next_in(makers.places))
                if error is not None:
                    raise error
                if item is _END:
                    ended = True
                    return
                makers.room.put(None)
                yield item
        finally:
            makers.is_open = False
            if not ended:
                on_stop()
            makers.join()
            source.close()

    items = consume()
    next(items)  # closing a generator that has not begun would not end its threads
    return items


class _Makers:
    """The threads of `prefetch`. An item is made for each that `room` holds.

    `places`: of the items, in order; each gets an item, or `_END` after the last one, and what was raised.
    """

    def __init__(
        self, source: Iterator[Any], change: Callable[[Any], Any], threads: int, depth: int, name: str
    ) -> None:
        self.room, self.places, self.is_open = SimpleQueue[None](), SimpleQueue[_Place](), True
        self._source, self._change, self._taking = source, change, threading.Lock()
        self._threads = [threading.Thread(target=self._make, name=name) for _ in range(threads)]
        for _ in range(depth + 1):
            self.room.put(None)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Waits for items that are being made; the threads end where `is_open` is False."""
        for _ in self._threads:
            self.room.put(None)
        for thread in filter(threading.Thread.is_alive, self._threads):  # a signal may come before all have started
            thread.join()

    def _make(self) -> None:
        while self.room.get() is None and self.is_open:
            place: _Place = SimpleQueue()
            try:
                place.put((self._made(place), None))
            except BaseException as error:  # noqa: BLE001 -- raised by the consumer
                place.put((_END, error))

    def _made(self, place: "_Place") -> Any:
        with self._taking:
            self.places.put(place)
            item = next(self._source, _END) if self.is_open else _END
        return item if item is _END else self._change(item)


def _next_in(queue: SimpleQueue[T]) -> T:
    while True:
        with suppress(Empty):
            return queue.get(timeout=POLL_S)


class Canceled(LatentSyncError):
    """The clip is not wanted any more."""


class ClipStages:
    """The stages of one clip: `prefetch_frames` runs those before painting, `prefetch` painting and those after it.

    Where one fails or is closed, no more frames enter; in painting or after it, painting is canceled, too. What fails
    before painting is raised after the frames before it, which are painted.

    A frame may enter where all those on their way could be held back: `held_frames` to complete windows, those of
    `first_s` seconds to fade, and those of `last_s` seconds to bridge gaps.

    `spare_frames`: of `held_frames`, those that may wait for several windows. `on_disk`: the pictures of frames are
    kept there, and fewer items wait between stages.
    """

    def __init__(
        self, held_frames: int, spare_frames: int, first_s: Fraction, last_s: Fraction, *, on_disk: bool = False
    ) -> None:
        self.spare_frames, self.on_disk, self._canceled, self._ended = spare_frames, on_disk, False, False
        self._held_frames, self._first_s, self._last_s = held_frames, first_s, last_s
        self._times_s: deque[Fraction] = deque()
        self._changed = threading.Condition()
        depth = 0 if on_disk else QUEUE_DEPTH
        self.prefetch_frames = partial(prefetch, depth=depth, on_stop=self._end)
        self.prefetch = partial(prefetch, depth=depth, on_stop=self._cancel)

    def entering(self, frames: Iterator[Frame]) -> Generator[Frame, None, None]:
        """The same frames; each waits for room before it is read."""
        while True:
            with self._changed:
                while not (self._has_room() or self._ended):
                    self._changed.wait(POLL_S)
            frame = None if self._ended else next(frames, None)
            if frame is None:
                return
            self._times_s.append(frame.time_s)
            yield frame

    def leave(self) -> None:
        """The first of the frames has been written, or is left out."""
        with self._changed:
            self._times_s.popleft()
            self._changed.notify_all()

    def check(self) -> None:
        """Raises `Canceled` if painting is canceled."""
        if self._canceled:
            raise Canceled("canceled")

    def _end(self) -> None:
        self._ended = True

    def _cancel(self) -> None:
        self._ended = self._canceled = True

    def _has_room(self) -> bool:
        times_s = self._times_s
        if not times_s:
            return True
        first = bisect_left(times_s, times_s[0] + self._first_s)
        last = len(times_s) - bisect_left(times_s, times_s[-1] - self._last_s)
        return len(times_s) < first + last + self._held_frames


class StageClock:
    """Busy seconds of each stage, which overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_s, self._frames = dict[str, float](), dict[str, int]()

    @contextmanager
    def measure(self, stage: str, frames: int = 1) -> Iterator[None]:
        """Adds the time inside the block, and `frames` frames, to `stage`."""
        start_s = perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._busy_s[stage] = self._busy_s.get(stage, 0.0) + perf_counter() - start_s
                self._frames[stage] = self._frames.get(stage, 0) + frames

    def measured(self, stage: str, source: Generator[T, None, None]) -> Generator[T, None, None]:
        """The items of `source`; adds the time it takes to make each one, and a frame for each, to `stage`."""
        with closing(source):
            while True:
                with self.measure(stage, frames=0):
                    item = next(source, None)
                if item is None:
                    return
                self._frames[stage] += 1
                yield item

    def times(self) -> tuple[StageTime, ...]:
        """The sums so far, in the order in which stages first ran."""
        with self._lock:
            return tuple(StageTime(stage, busy_s, self._frames[stage]) for stage, busy_s in self._busy_s.items())
