"""Windows use every frame of every track exactly once, in order."""

from collections import Counter
from fractions import Fraction
from itertools import groupby
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.errors import InputError
from latentsync_trt.sync.windows import Window, WindowPlanner, streams_at

T = TypeVar("T")

LENGTHS = range(1, 51)
WINDOW_LENGTHS = (1, 2, 3, 4, 7, 16)


def planned(tracks: list[int | None], frames: int, **how: int) -> list[Window[int]]:
    """Pushes the numbers 0, 1, 2, … with the given track ids."""
    planner: WindowPlanner[int] = WindowPlanner(frames, **how)
    windows = []
    for item, track in enumerate(tracks):
        windows += planner.push({} if track is None else {track: item})
        for kept in planner._tracks.values():
            assert all(len(stream._last) + len(stream._pending) <= 2 * frames for stream in kept._streams)
    return windows + planner.finish()


def fill(window: Window[T]) -> int:
    """Number of positions that only fill the window."""
    return sum(weight == 0 for weight in window.weights)


def used(windows: list[Window[int]]) -> list[int]:
    return [item for window in windows for _, item, _ in window.used]


@pytest.mark.parametrize("frames", WINDOW_LENGTHS)
def test_one_track_of_any_length(frames):
    for length in LENGTHS:
        windows = planned([7] * length, frames)
        assert used(windows) == list(range(length))
        assert len(windows) == -(-length // frames)
        for window in windows:
            assert len(window.items) == len(window.weights) == frames
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
    assert [len(planner.push({0: item})) for item in "abcdef"] == [0, 0, 1, 0, 0, 1]
    assert planner.finish() == []


def test_the_last_window_is_shifted_back():
    assert planned([0] * 5, 3)[-1] == Window((2, 3, 4), (Fraction(0), Fraction(1), Fraction(1)))


def test_a_short_track_is_mirrored():
    (eight,) = planned([0] * 3, 8)
    assert eight.items == (0, 1, 2, 1, 0, 1, 2, 1)
    assert list(eight.weights) == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [window.items for window in planned([0], 4)] == [(0, 0, 0, 0)]


def test_a_new_track_completes_the_old_one():
    planner: WindowPlanner[str] = WindowPlanner(2)
    planner.push({0: "a"})
    assert [window.items for window in planner.push({1: "b"})] == [("a", "a")]
    assert [window.items for window in planner.push({})] == [("b", "b")]
    assert planner.finish() == []


def test_tracks_of_several_faces_are_cut_each_for_itself():
    planner: WindowPlanner[str] = WindowPlanner(2)
    assert planner.push({0: "a0"}) == []
    assert [window.items for window in planner.push({0: "a1", 5: "b1"})] == [("a0", "a1")]
    assert [window.items for window in planner.push({0: "a2", 5: "b2"})] == [("b1", "b2")]
    assert [window.items for window in planner.push({5: "b3"})] == [("a1", "a2")]
    assert [window.items for window in planner.finish()] == [("b2", "b3")]


def test_a_planner_can_be_used_again_after_the_end():
    planner: WindowPlanner[int] = WindowPlanner(2)
    planner.push({0: 0})
    planner.finish()
    assert planner.push({0: 1}) == []
    assert [window.items for window in planner.finish()] == [(1, 1)]


def test_streams_interleave():
    windows = planned([0] * 11, 3, streams=2)
    assert [window.items for window in windows] == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (5, 7, 9)]
    assert [window.count_used for window in windows] == [3, 3, 3, 2]


def test_windows_that_overlap_fade_into_each_other():
    third = Fraction(1, 3)
    first, second, last = planned([0] * 11, 6, overlap=2)
    assert (first.items, second.items, last.items) == ((0, 1, 2, 3, 4, 5), (4, 5, 6, 7, 8, 9), (5, 6, 7, 8, 9, 10))
    assert list(first.weights) == [1, 1, 1, 1, 2 * third, third]
    assert list(second.weights) == [third, 2 * third, 1, 1, 2 * third, third]
    assert list(last.weights) == [0, 0, 0, third, 2 * third, 1]


def test_the_last_of_overlapping_windows_fades_into_nothing():
    assert list(planned([0] * 10, 6, overlap=2)[-1].weights[2:]) == [1, 1, 1, 1]


def test_leftover_frames_get_the_shortest_window_that_they_fit_into():
    windows = [planned([0] * (16 + left), 16, shorter=(8, 12))[-1] for left in (1, 8, 9, 12, 13)]
    assert [len(window.items) for window in windows] == [8, 8, 12, 12, 16]
    assert windows[0].items == tuple(range(9, 17))
    assert [len(window.items) for window in planned([0] * 21 + [1] * 5 + [2], 16, shorter=(2, 8))] == [16, 8, 8, 2]


def test_a_short_window_of_a_short_track_is_mirrored():
    assert planned([0] * 3, 8, shorter=(4, 6)) == [Window((0, 1, 2, 1), (*[Fraction(1)] * 3, Fraction(0)))]


def test_a_short_window_fades_in():
    windows = planned([0] * 11, 8, overlap=2, shorter=(6,))
    assert windows[-1].items == (5, 6, 7, 8, 9, 10)
    assert windows[-1].weights == (0, Fraction(1, 3), Fraction(2, 3), 1, 1, 1)


RUNS = st.lists(st.tuples(st.sets(st.integers(0, 2)), st.integers(1, 40)), max_size=6)


@given(
    RUNS, st.sampled_from(WINDOW_LENGTHS), st.integers(1, 4), st.integers(0, 8), st.sets(st.integers(1, 15), max_size=4)
)
def test_weights_of_every_face_add_up_to_one(
    runs: list[tuple[set[int], int]], frames: int, streams: int, overlap: int, lengths: set[int]
) -> None:
    shorter = [each for each in sorted(lengths) if each < frames]
    planner: WindowPlanner[tuple[int, int]] = WindowPlanner(
        frames, streams=streams, overlap=min(overlap, frames // 2), shorter=shorter
    )
    shown = [faces for faces, length in runs for _ in range(length)]
    windows = [w for i, faces in enumerate(shown) for w in planner.push({f: (f, i) for f in faces})]
    windows += planner.finish()
    sums: Counter[tuple[int, int]] = Counter()
    for window in windows:
        assert len({face for face, _ in window.items}) == 1
        assert len(window.weights) == len(window.items)
        assert len(window.items) == next(n for n in (*shorter, frames) if n >= len(window.items) - fill(window))
        for _, item, weight in window.used:
            sums[item] += weight  # type: ignore[assignment]
    assert sums == {(face, index): 1 for index, faces in enumerate(shown) for face in faces}


def test_streams_have_a_rate_near_that_of_training() -> None:
    wanted = {None: 1, 10: 1, 25: 1, 30: 1, 40: 1, 48: 2, 50: 2, 60: 2, 90: 3, 120: 4, 240: 9}
    assert {rate: streams_at(None if rate is None else Fraction(rate)) for rate in wanted} == wanted
    assert streams_at(Fraction(60000, 1001)) == streams_at(Fraction(60)) == 2


def test_impossible_window_lengths_are_refused() -> None:
    with pytest.raises(InputError):
        WindowPlanner(0)
    with pytest.raises(InputError, match=r"--overlap 5: .* 8 frames.* at most half can overlap"):
        WindowPlanner(8, overlap=5)
