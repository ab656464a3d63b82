"""Spreads the work of a stream over several workers, and keeps its order."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741 -- an item
T = TypeVar("T")
R = TypeVar("R")


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
        waiting: deque[tuple[I, list[_Ticket[T, R]]]] = deque()
        try:
            for item in items:
                waiting.append((item, [crew.give(task) for task in tasks_of(item)]))
                while waiting and (len(waiting) > ahead() or crew.finished(waiting[0][1])):
                    item, tickets = waiting.popleft()
                    yield item, crew.results(tickets)
            while waiting:
                item, tickets = waiting.popleft()
                yield item, crew.results(tickets)
        finally:
            crew.stop()


@dataclass(slots=True, eq=False)
class _Ticket(Generic[T, R]):
    """A task until it is done, then its result."""

    task: list[T]
    done: list[R] = field(default_factory=list)


class _Crew(Generic[T, R]):
    """Threads that carry out tasks in the order given, each with a function of its own."""

    def __init__(
        self,
        workers: Sequence[Callable[[T], R]],
        failures: tuple[type[Exception], ...],
        on_failure: Callable[[int, Exception], object],
    ) -> None:
        self._failures, self._on_failure = failures, on_failure
        self._changed = threading.Condition()
        self._tickets: deque[_Ticket[T, R]] = deque()
        self._error: BaseException | None = None
        self._stopped = False
        self._left = len(workers)
        self._threads = [
            threading.Thread(target=self._work, args=(position, worker), name=f"paint {position}", daemon=True)
            for position, worker in enumerate(workers)
        ]
        for thread in self._threads:
            thread.start()

    def give(self, task: T) -> _Ticket[T, R]:
        """Queues a task."""
        ticket: _Ticket[T, R] = _Ticket([task])
        with self._changed:
            self._tickets.append(ticket)
            self._changed.notify_all()
        return ticket

    def finished(self, tickets: Sequence[_Ticket[T, R]]) -> bool:
        """Whether `results` would return, or raise, at once."""
        with self._changed:
            return self._error is not None or all(ticket.done for ticket in tickets)

    def results(self, tickets: Sequence[_Ticket[T, R]]) -> list[R]:
        """Waits for results; raises the error that ended the work."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or all(ticket.done for ticket in tickets))
            if self._error is not None:
                raise self._error
        return [ticket.done.pop() for ticket in tickets]

    def stop(self) -> None:
        """Ends the threads, each after the task that it runs."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, position: int, worker: Callable[[T], R]) -> None:
        try:
            while (ticket := self._next()) is not None:
                try:
                    result = worker(ticket.task[0])
                except self._failures as error:
                    self._hand_over(ticket, position, error)
                    return
                with self._changed:
                    ticket.task.clear()
                    ticket.done.append(result)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 -- `results` raises it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _next(self) -> "_Ticket[T, R] | None":
        """The next task, as soon as there is one; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._error is not None or self._tickets)
            return None if self._stopped or self._error is not None else self._tickets.popleft()

    def _hand_over(self, ticket: "_Ticket[T, R]", position: int, error: Exception) -> None:
        """Gives a failed worker's task to the others; raises its error if there are none."""
        with self._changed:
            self._left -= 1
            if not self._left:
                raise error
        self._on_failure(position, error)
        with self._changed:
            self._tickets.appendleft(ticket)
            self._changed.notify_all()
