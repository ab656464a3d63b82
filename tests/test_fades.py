"""Painted faces fade in and out where they begin and end inside a shot."""

from collections.abc import Generator, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.sync.compose import FADE_S, faded
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.types import Face, UInt8Array
from tests.clips import frame_at

PICTURE: UInt8Array = np.zeros((2, 2, 3), np.uint8)
SOMEONE = Face(np.zeros(4, np.float32), np.zeros((3, 2), np.float32))


def jobs(shown: Sequence[tuple[set[int], int | None]]) -> Generator[FrameJob, None, None]:
    """Frames at 25/s with these people and shots."""
    for index, (people, shot) in enumerate(shown):
        targets = (Target(person, person, 0, SOMEONE, np.eye(2, 3)) for person in sorted(people))
        yield FrameJob(frame_at(index, PICTURE), tuple(targets), shot)


def quarters(shown: Sequence[tuple[set[int], int | None]], person: int = 0) -> list[int]:
    """How much of a person shows in each frame, of 4."""
    return [int(4 * shares.get(person, 0)) for _, shares in faded(jobs(shown))]


NOBODY, ONE, BOTH = (set[int](), 0), ({0}, 0), ({0, 1}, 0)


def test_a_face_fades_around_a_gap_but_not_at_the_ends_of_the_clip() -> None:
    assert quarters([ONE] * 6 + [NOBODY] + [ONE] * 6) == [4, 4, 4, 3, 2, 1, 0, 1, 2, 3, 4, 4, 4]


def test_it_fades_at_the_ends_of_a_part_where_no_shot_is_known() -> None:
    outside = (set[int](), None)
    assert quarters([outside] + [ONE] * 7 + [outside]) == [0, 1, 2, 3, 4, 3, 2, 1, 0]


def test_nothing_fades_at_a_cut() -> None:
    assert quarters([NOBODY, *[({0}, 1)] * 5, (set(), 2)]) == [0, 4, 4, 4, 4, 4, 0]


def test_each_face_fades_for_itself() -> None:
    shown = [ONE] * 2 + [BOTH] * 6 + [({1}, 0)] * 2
    assert quarters(shown, 0) == [4, 4, 4, 4, 4, 3, 2, 1, 0, 0]
    assert quarters(shown, 1) == [0, 0, 1, 2, 3, 4, 4, 4, 4, 4]


@given(st.lists(st.tuples(st.sets(st.integers(0, 1)), st.none() | st.integers(0, 1)), max_size=30))
def test_every_frame_leaves_in_order_and_in_time(shown: list[tuple[set[int], int | None]]) -> None:
    taken, left = 0, 0

    def counted() -> Generator[FrameJob, None, None]:
        nonlocal taken
        for job in jobs(shown):
            taken += 1
            yield job

    for job, shares in faded(counted()):
        assert job.frame.index == left
        assert shares.keys() == shown[left][0]
        assert all(0 < share <= 1 for share in shares.values())
        left += 1
        assert taken - left <= FADE_S * 25 + 1
    assert left == len(shown)
