"""Stages in threads: order, bounds, errors, and no thread left behind."""

import threading
import time
from collections.abc import Generator
from contextlib import closing

import pytest

from latentsync_trt.sync.threads import in_background


def counting(limit: int, made: list[int], closed: list[bool] | None = None) -> Generator[int, None, None]:
    try:
        for number in range(limit):
            made.append(number)
            yield number
    finally:
        if closed is not None:
            closed.append(True)


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_runs_ahead_by_no_more_than_its_depth() -> None:
    made: list[int] = []
    stage = in_background(counting(100, made), depth=3, name="bounded")
    assert next(stage) == 0
    time.sleep(0.3)
    assert len(made) <= 1 + 3 + 1  # taken, waiting, in the producer's hand
    stage.close()


def test_a_stage_begins_before_its_first_item_is_asked_for() -> None:
    begun = threading.Event()

    def waits() -> Generator[int, None, None]:
        begun.set()
        yield 1

    with closing(in_background(waits(), depth=1, name="begins")):
        assert begun.wait(10)


def test_an_error_reaches_the_consumer_after_the_items_before_it() -> None:
    def failing() -> Generator[int, None, None]:
        yield 1
        raise ValueError("broken")

    stage = in_background(failing(), depth=2, name="failing")
    assert next(stage) == 1
    with pytest.raises(ValueError, match="broken"):
        next(stage)


@pytest.mark.parametrize("taken", [0, 3])
def test_closing_stops_every_stage_before_it(taken: int) -> None:
    closed: list[bool] = []
    first = in_background(counting(10**9, [], closed), depth=2, name="first")

    def doubled() -> Generator[int, None, None]:
        try:
            for number in first:
                yield 2 * number
        finally:
            first.close()

    second = in_background(doubled(), depth=2, name="second")
    assert [next(second) for _ in range(taken)] == [0, 2, 4][:taken]
    second.close()
    assert closed == [True]
    assert threads_named("first") == threads_named("second") == 0
