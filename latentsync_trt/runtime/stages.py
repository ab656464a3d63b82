"""The threads in which networks run: one for each stage of painting, for the whole life of a
model.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any, Literal, TypeVar, get_args

T = TypeVar("T")

Stage = Literal["encode", "denoise", "decode"]
"""A stage of painting."""

# Waits are cut into pieces, as Windows cannot deliver Ctrl-C inside an untimed one.
POLL_S = 0.1


class StageThreads:
    """A thread for each stage, which runs actions in the order in which they come, whichever clip
    they belong to; with `in_turn`, only one of the threads runs at a time. ONNX Runtime's CUDA
    provider keeps cuBLAS, cuDNN and recorded CUDA graphs for each thread.
    """

    def __init__(self, *, in_turn: bool) -> None:
        self._turn = threading.Lock() if in_turn else nullcontext()
        self._threads: dict[Stage, ThreadPoolExecutor] = {}
        for stage in get_args(Stage):
            self._threads[stage] = ThreadPoolExecutor(1, f"{stage} of painting")

    def start(self, stage: Stage, action: Callable[[], T]) -> Future[T]:
        """Runs `action`, which starts nothing here itself, in the thread of `stage`."""

        def run() -> T:
            with self._turn:
                return action()

        return self._threads[stage].submit(run)

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """Returns the result of `action`, run in the thread of `stage`."""
        return results([self.start(stage, action)])[0]

    def close(self) -> None:
        """Waits for all that was started."""
        for thread in self._threads.values():
            thread.shutdown()


def results(futures: Iterable[Future[T]]) -> list[T]:
    """Returns the results of all, when none runs any more; once one fails, those that have not
    begun are canceled, and the first error is raised.
    """
    futures = list(futures)
    error = None
    try:
        while wait(futures, POLL_S, FIRST_EXCEPTION).not_done and _first_error(futures) is None:
            pass
    finally:
        _cancel(futures)
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


def _cancel(futures: Sequence[Future[Any]]) -> None:
    for future in futures:
        future.cancel()


def _first_error(futures: Sequence[Future[Any]]) -> BaseException | None:
    """Returns the first error so far; that of an action which waited for one that was canceled only
    if there is no other.
    """
    canceled = None
    for future in futures:
        if not future.done():
            continue
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, CancelledError):
            return error
        canceled = canceled or error
    return canceled
