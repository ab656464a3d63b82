"""Spreads the work of a stream over several workers, and keeps its order."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import closing, suppress
from itertools import count
from queue import PriorityQueue
from typing import Any, Generic, TypeVar

I = TypeVar("I")  # noqa: E741 -- an item
T = TypeVar("T")
R = TypeVar("R")

_END = -1, None, None


def spread(
    items: Generator[I, None, None],
    tasks_of: Callable[[I], Sequence[T]],
    workers: Sequence[Callable[[T], R]],
    *,
    ahead: Callable[[], int],
    failures: tuple[type[Exception], ...] = (),
    on_failure: Callable[[int, Exception], object] = lambda *_: None,
) -> Generator[tuple[I, list[R]], None, None]:
    """Every item in order, with the results of its tasks.

    Each worker has a thread and takes the next task when it is free; a single one runs in the caller's thread, without
    `ahead`. Closing this generator waits for the tasks that run, and for the threads.

    Args:
        tasks_of: called in the caller's thread. workers: carry out a task.
        ahead: how many items may be taken before the result of the oldest one is there: the bound of memory.
        failures: errors that end a worker and give its task to another; the last worker's is raised, as any other.
        on_failure: called in the worker's thread with its position and such an error, before another takes the task.
    """
    with closing(items):
        if len(workers) == 1:
            for item in items:
                yield item, [workers[0](task) for task in tasks_of(item)]
            return
        crew: _Crew[T, R] = _Crew(workers, failures, on_failure)
        waiting: deque[tuple[I, list[Future[R]]]] = deque()
        try:
            for item in items:
                waiting.append((item, [crew.give(task) for task in tasks_of(item)]))
                while waiting and (len(waiting) > ahead() or all(result.done() for result in waiting[0][1])):
                    yield waiting[0][0], crew.results(waiting.popleft()[1])
            while waiting:
                yield waiting[0][0], crew.results(waiting.popleft()[1])
        finally:
            crew.stop()


class _Crew(Generic[T, R]):
    """Threads that carry out tasks in the order given, each with a function of its own."""

    def __init__(
        self,
        workers: Sequence[Callable[[T], R]],
        failures: tuple[type[Exception], ...],
        on_failure: Callable[[int, Exception], object],
    ) -> None:
        self._failures, self._on_failure = failures, on_failure
        self._numbers = count()
        self._tasks: PriorityQueue[tuple[int, Any, Any]] = PriorityQueue()  # number, task, future
        self._ended: Future[R] = Future()  # never has a result
        self._lock, self._left = threading.Lock(), len(workers)
        # One for each worker: ONNX Runtime's CUDA provider keeps a context, with its CUDA graphs, for each thread.
        self._threads = [
            threading.Thread(target=self._work, args=(position, worker), name=f"paint {position}", daemon=True)
            for position, worker in enumerate(workers)
        ]
        for thread in self._threads:
            thread.start()

    def give(self, task: T) -> Future[R]:
        """Queues a task."""
        result: Future[R] = Future()
        self._tasks.put((next(self._numbers), task, result))
        return result

    def results(self, results: Sequence[Future[R]]) -> list[R]:
        """Waits for results; raises the error that ended the work."""
        for result in results:
            wait((result, self._ended), return_when=FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
        return [result.result() for result in results]

    def stop(self) -> None:
        """Ends the threads, each after the task that it runs."""
        self._ended.cancel()
        for _ in self._threads:
            self._tasks.put(_END)
        for thread in self._threads:
            thread.join()

    def _work(self, position: int, worker: Callable[[T], R]) -> None:
        try:
            while (given := self._tasks.get()) != _END:
                _, task, result = given
                try:
                    result.set_result(worker(task))
                except self._failures as error:
                    with self._lock:
                        self._left -= 1
                        if not self._left:
                            raise
                    self._on_failure(position, error)
                    self._tasks.put(given)  # in front of those that were given later
                    return
        except BaseException as error:  # noqa: BLE001 -- `results` raises it
            with suppress(InvalidStateError):  # another one came first, or `stop`
                self._ended.set_exception(error)
