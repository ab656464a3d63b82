"""Windows use every frame of every track exactly once, in order."""

from fractions import Fraction
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.sync.paint import Window, WindowPlanner, streams_at

T = TypeVar("T")

WINDOW_LENGTHS = (1, 2, 3, 4, 7, 16)


def planned(tracks: list[int | None], frames: int, streams: int = 1) -> list[Window[int]]:
    """Pushes the numbers 0, 1, 2, … with the given track ids."""
    planner: WindowPlanner[int] = WindowPlanner(frames, streams=streams)
    windows = []
    for item, track in enumerate(tracks):
        windows += planner.push({} if track is None else {track: item})
    return windows + planner.push({})


def used(windows: list[Window[T]]) -> list[T]:
    return [window.items[position] for window in windows for position in window.used]


def test_the_last_window_is_shifted_back():
    assert planned([0] * 5, 3)[-1] == Window((2, 3, 4), range(1, 3))


def test_a_short_track_is_mirrored():
    (eight,) = planned([0] * 3, 8)
    assert eight.items == (0, 1, 2, 1, 0, 1, 2, 1)
    assert eight.used == range(3)
    assert [window.items for window in planned([0], 4)] == [(0, 0, 0, 0)]


def test_streams_interleave():
    windows = planned([0] * 11, 3, streams=2)
    assert [window.items for window in windows] == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (5, 7, 9)]
    assert [len(window.used) for window in windows] == [3, 3, 3, 2]


RUNS = st.lists(st.tuples(st.sets(st.integers(0, 2)), st.integers(1, 40)), max_size=6)


@given(RUNS, st.sampled_from(WINDOW_LENGTHS), st.integers(1, 4))
def test_every_face_is_used_once(runs: list[tuple[set[int], int]], frames: int, streams: int) -> None:
    planner: WindowPlanner[tuple[int, int]] = WindowPlanner(frames, streams=streams)
    shown = [faces for faces, length in runs for _ in range(length)]
    windows = [w for i, faces in enumerate(shown) for w in planner.push({f: (f, i) for f in faces})]
    windows += planner.push({})
    assert all(len({face for face, _ in window.items}) == 1 and len(window.items) == frames for window in windows)
    assert sorted(used(windows)) == sorted((face, index) for index, faces in enumerate(shown) for face in faces)


def test_streams_have_a_rate_near_that_of_training() -> None:
    wanted = {None: 1, 10: 1, 25: 1, 30: 1, 40: 1, 48: 2, 50: 2, 60: 2, 90: 3, 120: 4, 240: 9}
    assert {rate: streams_at(None if rate is None else Fraction(rate)) for rate in wanted} == wanted
    assert streams_at(Fraction(60000, 1001)) == streams_at(Fraction(60)) == 2
