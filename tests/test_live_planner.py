"""What a live session paints and shows next: decisions of `LivePlanner`, without painting."""

import numpy as np
import pytest

from latentsync_trt.live.planner import LivePlanner, NextPicture
from latentsync_trt.live.speech_queue import SpeechQueue
from tests.live import voice

HOP = 8
LOOK_AHEAD_MS = 160


def planner_after(*said_frames: float, ended: bool) -> LivePlanner:
    """A planner, after speech of so many frames was said in each piece."""
    queue = SpeechQueue(16_000, 60.0, lambda: 0.0)
    planner = LivePlanner(queue, HOP, LOOK_AHEAD_MS, np.zeros(640, np.float32))
    for count in said_frames:
        queue.say(voice(count * 0.04), 16_000)
        planner.on_speech()
    if ended:
        planner.end()
    return planner


@pytest.mark.parametrize(
    ("said_frames", "state", "paint_frames", "positions", "spoken"),
    [
        ((), "pressed", 0, [], 0),
        ((10.9,), "", 0, [], 0),  # too little look-ahead
        ((11,), "", 0, [1, 8], 8),
        ((11,), "", 5, [6, 13], 8),  # painting takes five frames
        ((3,), "", 0, [], 0),  # too little for a window
        ((3,), "pressed", 0, [1, 3], 3),  # and nothing more comes in time
        ((3,), "ended", 0, [1, 8], 3),  # the mouth closes
        ((8,), "ended", 0, [1, 8], 8),  # no look-ahead is needed
    ],
)
def test_a_window_begins_when_its_speech_is_there(
    said_frames: tuple[float, ...], state: str, paint_frames: int, positions: list[int], spoken: int
) -> None:
    """`positions`: of the first and the last frame of the window; `spoken`: how many have
    speech.
    """
    planned = planner_after(*said_frames, ended=state == "ended").window(
        paint_frames, pressed=state == "pressed"
    )
    assert [each.position for each in planned[:1] + planned[-1:]] == positions
    assert sum(each.spoken.samples > 0 for each in planned) == spoken


def test_it_plans_no_further_ahead_than_painting_needs() -> None:
    planner = planner_after(100, ended=True)
    counts = [len(planner.window(2, pressed=False)) for _ in range(5)]
    # 16 wait, more than a hop, two that pass in painting, and one to spare
    assert counts == [8, 8, 0, 0, 0]


@pytest.mark.parametrize(
    ("shown", "painted", "fading"), [(1, 8, 0), (4, 5, 3), (4, 2, 2), (8, 1, 1)]
)
def test_stop_keeps_the_painted_frames_in_which_a_shown_mouth_fades(
    shown: int, painted: int, fading: int
) -> None:
    planner = planner_after(30, ended=True)
    planner.window(0, pressed=False)
    for place in range(shown):
        planner.show(9 - place)
    assert planner.stop(painted) == planner.waiting == fading
    for place in range(fading):
        assert planner.show(fading - place).painted
    assert planner.idle
    assert planner.show(0) == NextPicture()
