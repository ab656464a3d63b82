"""Times of a result, as a timeline shows them, and how they are found."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from latentsync_trt.face.people import FaceStats
from latentsync_trt.face.tracker import FrameFaces
from latentsync_trt.measure.quality import Quality
from latentsync_trt.measure.time_bands import time_bands_of
from latentsync_trt.measures import Interval, Measures
from tests.clips import frame_at
from tests.test_quality import speech
from tests.test_show import REPORT


def test_people_have_bands_of_their_own_and_empty_ones_are_left_out() -> None:
    painted = (Interval(0, 1, "person 0"), Interval(2, 3, "person 0"), Interval(0, 1, "person 2"))
    report = replace(
        REPORT,
        painted=painted,
        speech=(Interval(0, 3, "speech"),),
        quality=Measures((), misfits=(Interval(2.5, 3, "jumps"),)),
    )
    assert [(band.label, len(band.intervals)) for band in time_bands_of(report)] == [
        ("Speech", 1),
        ("Painted, person 0", 2),
        ("Painted, person 2", 1),
        ("Look here", 1),
    ]


def test_the_times_of_each_painted_person_are_joined() -> None:
    stats = FaceStats()
    for index, painted in enumerate([[3], [3, 1], [], [3]]):
        frame = frame_at(index, np.zeros((2, 2, 3), np.uint8))
        stats.add(frame, FrameFaces(0, ()), has_face=bool(painted), painted=painted)
    assert stats.painted_times() == (
        Interval(0.04, 0.08, "person 1"),
        Interval(0.0, 0.08, "person 3"),
        Interval(0.12, 0.16, "person 3"),
    )


@pytest.mark.parametrize("start_s", [Fraction(-1), Fraction(0), Fraction(1)])
def test_speech_is_told_at_its_times_within_the_output(start_s: Fraction) -> None:
    quality = Quality([start_s], people=[4])
    openings = np.repeat([0.0, 1.0, 0.0], 50).astype(np.float32)
    list(quality.listen(0, speech(openings)))
    (heard,) = quality.speech(Fraction(7, 2))
    assert heard.reason == "person 4"
    assert heard.start_s == pytest.approx(2 + start_s, abs=0.2)
    assert heard.end_s == pytest.approx(min(Fraction(7, 2), 4 + start_s), abs=0.2)
