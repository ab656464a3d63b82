"""The threads that run networks, and how they wait for one another."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args

T = TypeVar("T")

Stage = Literal["encode", "denoise", "decode"]

# Waits are cut into pieces, as Windows cannot deliver Ctrl-C inside an untimed one.
_POLL_S = 0.1


class StageThreads:
    """A thread for each stage of painting, from its first use until `close`, after which `start` begins it again.

    ONNX Runtime's CUDA provider keeps handles of cuBLAS and cuDNN, and recorded CUDA graphs, for each thread.

    Args:
        wanted: whether actions run there; if not, in the caller's thread.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._threads = _stage_threads()

    def start(self, stage: Stage, action: Callable[[], T]) -> Future[T]:
        """Runs `action` in the thread of `stage`, after those that were given before."""
        return self._threads[stage].submit(action)

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """As `start`, and waits for the result."""
        if not self._wanted() or threading.current_thread().name.startswith(f"{stage} of painting"):
            return action()
        return results([self.start(stage, action)])[0]

    def close(self) -> None:
        threads, self._threads = self._threads, _stage_threads()
        for each in threads.values():
            each.shutdown(cancel_futures=True)


def _stage_threads() -> dict[Stage, ThreadPoolExecutor]:
    return {stage: ThreadPoolExecutor(1, f"{stage} of painting") for stage in get_args(Stage)}


class Gate:
    """Lets in any number of threads that share, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing, self._alone = 0, False

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """A block beside others that share, or beside no other: then, those that want to enter wait from now on."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True
                self._changed.wait_for(lambda: not self._sharing)
            else:
                self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._sharing -= 1
                self._changed.notify_all()


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
