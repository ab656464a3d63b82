"""The clock of pictures: what is shown when, as by FFmpeg's `fps` filter."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import MediaError
from latentsync_trt.media.playback import at_constant_rate
from latentsync_trt.media.timing import Clock, nearest, on_clock
from tests.clips import stamped

PERIOD_S = Fraction(1, MODEL_FPS)

stamps_s = st.none() | st.fractions(0, Fraction(99, 100), max_denominator=1000)
"""Disorder of less than a second."""


def shown(stamps: Sequence[Fraction | None], clock: Clock) -> list[int]:
    pictures = [stamped(stamp, None) for stamp in stamps]
    on_screen = at_constant_rate(on_clock(pictures, clock, PERIOD_S), MODEL_FPS)
    return [pictures.index(picture) for picture in on_screen]


@pytest.mark.parametrize(
    ("resets", "end_s", "jump_s", "is_held"),
    [
        (True, None, 9, True),
        (True, None, 10, False),
        (False, 100, 50, True),
        (False, 100, 101, False),
        (False, None, 3600, False),
        (False, 100, -2, False),
    ],
)
def test_a_step_of_the_clock_is_held_or_refused(
    resets: bool, end_s: int | None, jump_s: int, is_held: bool
) -> None:
    clock = Clock(
        Path("a.ts"), may_reset=resets, stated_end_s=None if end_s is None else Fraction(end_s)
    )
    before = [index * PERIOD_S for index in range(30)]
    after = [before[-1] + PERIOD_S + jump_s + index * PERIOD_S for index in range(3)]
    if is_held:
        assert shown([*before, *after], clock) == [
            *range(29),
            *[29] * (jump_s * MODEL_FPS + 1),
            30,
            31,
            32,
        ]
        return
    with pytest.raises(MediaError, match=r"a\.ts: .* 1\.16 s"):
        shown([*before, *after], clock)


@given(
    st.lists(
        st.tuples(stamps_s, st.none() | st.fractions(0, 3, max_denominator=100)),
        min_size=1,
        max_size=15,
    )
)
def test_any_stamps_give_every_picture_its_time(
    pictures: list[tuple[Fraction | None, Fraction | None]],
) -> None:
    clock = Clock(Path(), stated_end_s=Fraction(30), may_reset=True)
    try:
        timed = list(on_clock([stamped(*picture) for picture in pictures], clock, PERIOD_S))
    except MediaError:  # after pictures without stamps
        reject()
    assert all(one.time_s < following.time_s for one, following in pairwise(timed))
    assert timed[0].time_s == 0
    found = list(at_constant_rate(timed, MODEL_FPS))
    assert len(found) == max(1, nearest(timed[-1].end_s, MODEL_FPS))
    for index, item in enumerate(found):
        middle_s = (index + Fraction(1, 2)) / MODEL_FPS
        begun = [picture.item for picture in timed if picture.time_s < middle_s]
        assert item is (begun or [timed[0].item])[-1]
