"""Which thread runs a network, and who may close one that another thread uses."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Stage = Literal["encode", "denoise", "decode"]

# Waits are cut into pieces, as Windows cannot deliver Ctrl-C inside an untimed one.
_POLL_S = 0.1


class StageThreads:
    """A thread for each stage of painting, from its first use until `close`.

    ONNX Runtime's CUDA provider keeps handles of cuBLAS and cuDNN, and recorded CUDA graphs, for each thread.

    Args:
        wanted: whether actions run there; if not, in the caller's thread.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._threads: dict[Stage, ThreadPoolExecutor] = {}
        self._here = threading.local()
        self._lock = threading.Lock()

    def start(self, stage: Stage, action: Callable[[], T]) -> Future[T]:
        """Runs `action` in the thread of `stage`, after those that were given before."""
        with self._lock:
            if stage not in self._threads:
                self._threads[stage] = ThreadPoolExecutor(
                    1, thread_name_prefix=stage, initializer=self._begin, initargs=(stage,)
                )
            return self._threads[stage].submit(action)

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """As `start`, and waits for the result."""
        if not self._wanted() or getattr(self._here, "stage", None) == stage:
            return action()
        return results([self.start(stage, action)])[0]

    def close(self) -> None:
        """Ends the threads, each after what it runs; `start` begins them again."""
        with self._lock:
            threads, self._threads = self._threads, {}
        for each in threads.values():
            each.shutdown(cancel_futures=True)

    def _begin(self, stage: Stage) -> None:
        self._here.stage = stage


class InThreads:
    """An object some of whose methods run in the threads of `stages`."""

    def __init__(self, target: object, stages: Mapping[str, Stage], threads: StageThreads) -> None:
        self._target, self._stages, self._threads = target, stages, threads

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in self._stages:
            return found
        return lambda *given, **named: self._threads.run(self._stages[name], partial(found, *given, **named))


class Gate:
    """Lets in any number of threads that share, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._alone = 0, False

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """A block beside others that share."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block beside no other; others that want to enter wait from now on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: not self._sharing)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


def results(futures: Iterable[Future[T]]) -> list[T]:
    """The results of all; once one fails, those that have not begun are cancelled, and the first error is raised.

    Returns only when none of them runs any more.
    """
    futures = list(futures)
    _settle(futures)
    error = _first_error(futures)
    try:
        if error is not None:
            raise error
        return [future.result() for future in futures]
    finally:
        # Else the error's traceback, and this frame in it, would keep the error, and with it sessions that ran.
        del futures, error


def _settle(futures: Sequence[Future[T]]) -> None:
    """Waits until none runs; once one fails, those that have not begun are cancelled."""
    waiting = set(futures)
    try:
        while waiting:
            done, waiting = wait(waiting, _POLL_S, FIRST_EXCEPTION)
            if any(future.cancelled() or future.exception() is not None for future in done):
                return
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def _first_error(futures: Sequence[Future[T]]) -> BaseException | None:
    """The first error; that of an action which waited for one that was cancelled only if there is no other."""
    errors = (CancelledError() if future.cancelled() else future.exception() for future in futures)
    return min(filter(None, errors), key=lambda error: isinstance(error, CancelledError), default=None)
