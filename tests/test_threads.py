"""Stages in threads, and work spread over several: order, bounds, errors, and no thread left behind."""

import itertools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.sync.threads import prefetch, spread


class Fault(Exception):
    """What a worker may fail with."""


class Line:
    """Items, each with some tasks; counts those taken and not returned."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts, self.taken, self.most_held = counts, 0, 0
        self.failed: list[int] = []
        self.closed = False

    def items(self) -> Generator[int, None, None]:
        try:
            for number in range(len(self.counts)):
                self.taken += 1
                yield number
        finally:
            self.closed = True

    def tasks(self, number: int) -> list[tuple[int, int]]:
        return [(number, task) for task in range(self.counts[number])]

    def run(self, workers: Sequence[Callable[[tuple[int, int]], object]], ahead: int) -> list[tuple[int, list[object]]]:
        found: list[tuple[int, list[object]]] = []
        lock = threading.Lock()

        def fail(position: int, _: Exception) -> bool:
            with lock:
                others_left = len(self.failed) < len(workers) - 1
                if others_left:
                    self.failed.append(position)
                return others_left

        made = spread(
            self.items(),
            self.tasks,
            workers,
            ahead=lambda: ahead,
            failures=(Fault,),
            on_failure=fail,
        )
        for item, results in made:
            self.most_held = max(self.most_held, self.taken - len(found))
            found.append((item, results))
        return found

    def whole(self) -> list[tuple[int, list[object]]]:
        return [(number, list(self.tasks(number))) for number in range(len(self.counts))]


def worker(delays_s: Sequence[float] = (), fails_at: int | None = None) -> Callable[[tuple[int, int]], object]:
    """Returns its task after the next of these delays; fails at its task of this number."""
    done = 0

    def work(task: tuple[int, int]) -> tuple[int, int]:
        nonlocal done
        done += 1
        if delays_s:
            time.sleep(delays_s[done % len(delays_s)])
        if fails_at is not None and done > fails_at:
            raise Fault(f"at task {task}")
        return task

    return work


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("paint")]


delays = st.lists(st.sampled_from([0.0, 0.0, 0.0005, 0.002]), max_size=3)
workers_of = st.lists(st.tuples(delays, st.none() | st.integers(0, 8)), min_size=1, max_size=4)


@given(counts=st.lists(st.integers(0, 3), max_size=25), kinds=workers_of, ahead=st.integers(0, 12))
def test_whatever_workers_do_results_are_whole_and_in_order(
    counts: list[int], kinds: list[tuple[list[float], int | None]], ahead: int
) -> None:
    line = Line(counts)
    crew = [worker(*kind) for kind in kinds]
    survivors = [fails_at for _, fails_at in kinds if fails_at is None]
    try:
        found = line.run(crew, ahead)
    except Fault:
        assert not survivors
        assert sum(fails_at or 0 for _, fails_at in kinds) < sum(counts)
        assert len(line.failed) == len(set(line.failed)) == len(kinds) - 1
    else:
        assert found == line.whole()
        assert len(line.failed) < len(kinds)
    assert line.most_held <= ahead + 1
    assert line.closed
    assert not threads()


def test_any_other_error_ends_the_work_at_once() -> None:
    def wrong(task: tuple[int, int]) -> object:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        Line([1] * 5).run([wrong, worker([0.01])], ahead=3)
    assert not threads()


def test_closing_waits_for_what_runs_and_ends_all_threads() -> None:
    running = 0

    def work(task: tuple[int, int]) -> object:
        nonlocal running
        running += 1
        time.sleep(0.02)
        running -= 1
        return task

    line = Line([1] * 50)
    made = spread(line.items(), line.tasks, [work] * 3, ahead=lambda: 6)
    next(made)
    made.close()
    assert (running, line.closed, threads()) == (0, True, [])
    assert line.taken <= 8


def made_numbers(made: list[int], closed: list[bool] | None = None) -> Generator[int, None, None]:
    try:
        for number in itertools.count():
            made.append(number)
            yield number
    finally:
        if closed is not None:
            closed.append(True)


def test_runs_ahead_by_no_more_than_its_depth() -> None:
    made: list[int] = []
    stage = prefetch(made_numbers(made), depth=3, name="bounded")
    assert next(stage) == 0
    time.sleep(0.3)
    assert len(made) <= 1 + 3 + 1  # taken, waiting, in the producer's hand
    stage.close()


@given(st.lists(delays, min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 5))
def test_what_threads_make_side_by_side_leaves_in_order(waits: list[list[float]], count: int, depth: int) -> None:
    closed: list[bool] = []

    def taken() -> Generator[int, None, None]:
        with closing(made_numbers([], closed)) as numbers:
            yield from itertools.islice(numbers, len(waits))

    def change(number: int) -> int:
        time.sleep(sum(waits[number]))
        return -number

    made = list(prefetch(taken(), change, threads=count, depth=depth, name="paint in order"))
    assert made == [-number for number in range(len(waits))]
    assert (closed, threads()) == ([True], [])


def test_two_are_changed_at_a_time_and_no_more_than_the_depth_ahead() -> None:
    made: list[int] = []
    both = threading.Barrier(2)

    def change(number: int) -> int:
        both.wait(timeout=30)
        return number

    stage = prefetch(made_numbers(made), change, threads=2, depth=3, name="paint both")
    assert [next(stage) for _ in range(4)] == [0, 1, 2, 3]
    assert len(made) <= 4 + 3 + 1
    both.abort()
    stage.close()
    assert not threads()


def test_an_error_of_a_change_comes_after_the_items_before_it() -> None:
    is_second_wrong = threading.Event()

    def change(number: int) -> int:
        if number == 1:
            is_second_wrong.set()
            raise ValueError("broken")
        is_second_wrong.wait(timeout=30)
        return number

    stage = prefetch(made_numbers([]), change, threads=2, name="paint wrong")
    assert next(stage) == 0
    with pytest.raises(ValueError, match="broken"):
        next(stage)
    assert not threads()


def test_an_error_reaches_the_consumer_after_the_items_before_it() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise ValueError("broken")

    stage = prefetch(failing(), depth=2, name="failing")
    assert next(stage) == 1
    with pytest.raises(ValueError, match="broken"):
        next(stage)


@pytest.mark.parametrize("taken", [0, 3])
def test_closing_stops_every_stage_before_it(taken: int) -> None:
    closed: list[bool] = []
    first = prefetch(made_numbers([], closed), depth=2, name="paint first")

    def doubled() -> Generator[int, None, None]:
        with closing(first):
            for number in first:
                yield 2 * number

    second = prefetch(doubled(), depth=2, name="paint second")
    assert [next(second) for _ in range(taken)] == [0, 2, 4][:taken]
    second.close()
    assert closed == [True]
    assert not threads()


def test_an_interruption_while_threads_start_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    start = threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if threads():
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(KeyboardInterrupt):
        prefetch(made_numbers([], closed), lambda number: number, threads=2, depth=2, name="paint")
    assert closed == [True]
    assert not threads()
