"""The step-cache plan."""

import pytest

from latentsync_trt.diffusion.plan import cache_plan
from latentsync_trt.errors import InputError


def test_every_third_step_is_full():
    assert cache_plan(7, 3) == (True, False, False, True, False, False, True)


def test_interval_one_is_full_everywhere():
    assert cache_plan(4, 1) == (True,) * 4


def test_an_interval_beyond_the_end_leaves_the_first_step():
    assert cache_plan(3, 20) == (True, False, False)


@pytest.mark.parametrize("interval", [0, -3])
def test_impossible_intervals_are_refused(interval):
    with pytest.raises(InputError, match="cache interval"):
        cache_plan(5, interval)
