"""The threads that run networks, and how they wait for one another."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import count
from queue import PriorityQueue
from typing import Any, Literal, TypeVar, get_args

from latentsync_trt.errors import OutOfMemory

T = TypeVar("T")

Stage = Literal["encode", "denoise", "decode"]

# Waits are cut into pieces, as Windows cannot deliver Ctrl-C inside an untimed one.
_POLL_S = 0.1


class StageThreads:
    """A thread for each stage of painting, from its first use until `close`, after which `start` begins it again.

    ONNX Runtime's CUDA provider keeps handles of cuBLAS and cuDNN, and recorded CUDA graphs, for each thread. While one
    records a CUDA graph, no other may use the GPU: such an action runs `alone`, while no other stage does anything.

    Args:
        wanted: whether actions run there; if not, in the caller's thread.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._threads = _stage_threads()
        self._waiting: dict[Stage, PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]]]
        self._waiting = {stage: PriorityQueue() for stage in get_args(Stage)}
        self._numbers = count()
        self._gate = Gate()
        self._alone = False

    @property
    def alone(self) -> bool:
        """Whether the action that asks runs while no other stage does anything."""
        return self._alone or not self._wanted()

    def start(
        self, stage: Stage, action: Callable[[], T], *, after: int = 0, alone: Callable[[], bool] = lambda: False
    ) -> Future[T]:
        """Runs `action` in the thread of `stage`, after those that were given before, and up to about `after` of those
        that any stage is given later. `alone` is asked then."""
        future, number = Future[T](), next(self._numbers)

        def entered() -> T:
            is_alone = alone()
            with self._gate.entered(alone=is_alone):
                self._alone = is_alone
                return action()

        self._waiting[stage].put((number + after, number, future, entered))
        self._threads[stage].submit(self._run_next, stage)
        return future

    def run(
        self, stage: Stage, action: Callable[[], T], *, after: int = 0, alone: Callable[[], bool] = lambda: False
    ) -> T:
        """As `start`, and waits for the result."""
        if not self._wanted() or threading.current_thread().name.startswith(f"{stage} of painting"):
            return action()
        return results([self.start(stage, action, after=after, alone=alone)])[0]

    def close(self) -> None:
        threads, self._threads = self._threads, _stage_threads()
        for each in threads.values():
            each.shutdown()

    def _run_next(self, stage: Stage) -> None:
        *_, future, action = self._waiting[stage].get()
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(action())
        except BaseException as error:  # noqa: BLE001 -- raised by who waits for the result
            future.set_exception(error)
        finally:
            del future, action  # else the error's traceback, and this frame in it, would keep what they hold


def _stage_threads() -> dict[Stage, ThreadPoolExecutor]:
    return {stage: ThreadPoolExecutor(1, f"{stage} of painting") for stage in get_args(Stage)}


class Gate:
    """Lets in any number of threads that share, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._alone = 0, False

    @contextmanager
    def entered(self, *, alone: bool, watch: Callable[[], object] = lambda: None) -> Iterator[None]:
        """A block beside others that share, or beside no other: then, those that want to enter wait from now on.

        `watch`: called while it waits, which an error of it ends.
        """
        with self._changed:
            self._wait_until(lambda: not self._alone, watch)
            self._alone = alone
            self._sharing += not alone
        try:
            with self._changed:
                self._wait_until(lambda: not (alone and self._sharing), watch)
            yield
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()

    def _wait_until(self, condition: Callable[[], bool], watch: Callable[[], object]) -> None:
        while not self._changed.wait_for(condition, _POLL_S):
            watch()


class Shared:
    """What threads that paint windows on one device have in common: `run`, beside others where there is room.

    Subclasses have `side_by_side`, `low_memory` and `save_memory`, as described at `Networks`; `built`: whether a
    background build is ready, to which `_change_to_built` switches; `is_ready`: whether `open_all` has nothing to do.
    """

    side_by_side: bool
    low_memory: bool
    built: bool

    def __init__(self) -> None:
        self._gate = Gate()

    def run(self, action: Callable[[], T]) -> T:
        """Runs `action`, all that the networks do for some windows, beside others where there is room.

        Where memory runs out, repeats it alone, with less on the device from then on.
        """
        with self._gate.entered(alone=False):
            beside = self.side_by_side
            if beside:
                with suppress(OutOfMemory):  # whose traceback would keep sessions
                    return action()
        with self._gate.entered(alone=True):
            if beside and self.side_by_side:
                self.save_memory()
            return self._within_memory(action)

    def prepare(self, graphs: Iterable[str]) -> None:
        """Builds and opens what a run needs, beside no window.

        Raises:
            EngineBuildError: neither the provider nor any allowed fallback can compile a graph.
            OutOfMemory: there is too little memory.
        """
        graphs = tuple(graphs)
        if not self.is_ready(graphs):
            with self._gate.entered(alone=True):
                self.open_all(graphs)

    def between_windows(self) -> None:
        """Switches to engines built in the background, once they are ready."""
        if self.built:
            with self._gate.entered(alone=True):
                self._change_to_built()

    def _within_memory(self, action: Callable[[], T]) -> T:
        """`action`, repeated with less on the device while memory runs out."""
        while True:
            try:
                return action()
            except OutOfMemory:
                if self.low_memory:
                    raise
            self.save_memory()

    def save_memory(self) -> None:
        """After memory ran out: runs stages in turn, or keeps one network at a time on the device."""
        raise NotImplementedError

    def _change_to_built(self) -> None:
        raise NotImplementedError

    def is_ready(self, graphs: tuple[str, ...]) -> bool:
        raise NotImplementedError

    def open_all(self, graphs: tuple[str, ...]) -> None:
        raise NotImplementedError


def results(futures: Iterable[Future[T]]) -> list[T]:
    """The results of all; once one fails, those that have not begun are canceled, and the first error is raised.

    Returns only when none of them runs any more.
    """
    futures = list(futures)
    error = None
    try:
        while wait(futures, _POLL_S, FIRST_EXCEPTION).not_done and _first_error(futures) is None:
            pass
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
        del futures, error


def _first_error(futures: Sequence[Future[Any]]) -> BaseException | None:
    """The first error so far; that of an action which waited for one that was canceled only if there is no other."""
    ended = [future for future in futures if future.done()]
    errors = (CancelledError() if future.cancelled() else future.exception() for future in ended)
    return min(filter(None, errors), key=lambda error: isinstance(error, CancelledError), default=None)
