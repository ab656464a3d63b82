"""Windows use every frame of every track exactly once, in order."""

from itertools import groupby

import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.sync.windows import Window, WindowPlanner

LENGTHS = range(1, 51)
WINDOW_LENGTHS = (1, 2, 3, 4, 7, 16)


def planned(tracks: list[int | None], frames: int) -> list[Window[int]]:
    """Pushes the numbers 0, 1, 2, … with the given track ids."""
    planner: WindowPlanner[int] = WindowPlanner(frames)
    windows = []
    for item, track in enumerate(tracks):
        windows += planner.push(item, track)
        assert len(planner._last) + len(planner._pending) < 2 * frames
    return windows + planner.finish()


def used(windows: list[Window[int]]) -> list[int]:
    return [window.items[position] for window in windows for position in window.used]


@pytest.mark.parametrize("frames", WINDOW_LENGTHS)
def test_one_track_of_any_length(frames):
    for length in LENGTHS:
        windows = planned([7] * length, frames)
        assert used(windows) == list(range(length))
        assert len(windows) == -(-length // frames)
        for window in windows:
            assert len(window.items) == frames
            steps = {b - a for a, b in zip(window.items, window.items[1:], strict=False)}
            # Real frames follow one another; only a track shorter than a window runs to and fro.
            assert steps <= ({1} if length >= frames else {1, -1} if length > 1 else {0})


@pytest.mark.parametrize("frames", WINDOW_LENGTHS)
def test_gaps_and_changes_of_track(frames):
    for length in LENGTHS:
        tracks = [None] * (length % 3) + [1] * length + [2] * (length // 2) + [None] * 2 + [2] * 5 + [None, 3]
        windows = planned(tracks, frames)
        assert used(windows) == [item for item, track in enumerate(tracks) if track is not None]
        runs = [[item for item, _ in run] for _, run in groupby(enumerate(tracks), key=lambda pair: pair[1])]
        assert all(any(set(window.items) <= set(run) for run in runs) for window in windows)


def test_a_window_comes_as_soon_as_it_is_full():
    planner: WindowPlanner[str] = WindowPlanner(3)
    assert [len(planner.push(item, 0)) for item in "abcdef"] == [0, 0, 1, 0, 0, 1]
    assert planner.finish() == []


def test_the_last_window_is_shifted_back():
    assert planned([0] * 5, 3)[-1] == Window((2, 3, 4), first_new=1, count_new=2)


def test_a_short_track_is_mirrored():
    assert planned([0] * 3, 8) == [Window((0, 1, 2, 1, 0, 1, 2, 1), first_new=0, count_new=3)]
    assert planned([0], 4) == [Window((0, 0, 0, 0), first_new=0, count_new=1)]


def test_a_new_track_completes_the_old_one():
    planner: WindowPlanner[str] = WindowPlanner(2)
    planner.push("a", 0)
    assert planner.push("b", 1) == [Window(("a", "a"), 0, 1)]
    assert planner.push("c", None) == [Window(("b", "b"), 0, 1)]
    assert planner.finish() == []


def test_a_planner_can_be_used_again_after_the_end():
    planner: WindowPlanner[int] = WindowPlanner(2)
    planner.push(0, 0)
    planner.finish()
    assert planner.push(1, 0) == []
    assert planner.finish() == [Window((1, 1), 0, 1)]


def test_impossible_window_lengths_are_refused():
    with pytest.raises(InputError):
        WindowPlanner(0)
