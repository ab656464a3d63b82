"""Stages in threads: order, bounds, errors, and no thread left behind; how many frames may be on
their way.
"""

import itertools
import threading
import time
from collections.abc import Generator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.sync.threads import prefetch


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("paint")]


def made_numbers(made: list[int], closed: list[bool] | None = None) -> Generator[int, None, None]:
    try:
        for number in itertools.count():
            made.append(number)
            yield number
    finally:
        ([] if closed is None else closed).append(True)


@given(
    st.lists(st.sampled_from([0.0, 0.0005, 0.002]), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_what_threads_make_side_by_side_leaves_in_order(
    waits_s: list[float], count: int, depth: int
) -> None:
    closed: list[bool] = []

    def taken() -> Generator[int, None, None]:
        with closing(made_numbers([], closed)) as numbers:
            yield from itertools.islice(numbers, len(waits_s))

    def change(number: int) -> int:
        time.sleep(waits_s[number])
        return -number

    made = list(prefetch(taken(), change, threads=count, depth=depth, name="paint in order"))
    assert made == [-number for number in range(len(waits_s))]
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


@pytest.mark.parametrize("of", ["source", "change"])
def test_an_error_comes_after_the_items_before_it(of: str) -> None:
    """With two threads, also where it is raised first."""
    is_second_wrong = threading.Event()

    def source() -> Generator[int, None, None]:
        yield 0
        if of == "source":
            is_second_wrong.set()
            raise ValueError("broken")
        yield 1

    def change(number: int) -> int:
        if number == 1:
            is_second_wrong.set()
            raise ValueError("broken")
        assert is_second_wrong.wait(timeout=30)
        return number

    stage = prefetch(source(), change, threads=2, name="paint wrong")
    assert next(stage) == 0
    with pytest.raises(ValueError, match="broken"):
        next(stage)
    assert not threads()


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
