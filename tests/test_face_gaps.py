"""Short gaps in a track are bridged, long ones are left alone and reported; new faces are followed back."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.sync.faces import FaceFinder, FrameJob
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Face, Frame, Interval, UInt8Array
from tests.clips import frame_at
from tests.people import first_person, together
from tests.test_face_tracker import Following, face_at

HALF_SECOND = 12
"""Frames."""


class Scripted(Following):
    """Has prepared faces for the frame whose number is the level of its first pixel."""

    def now(self, frame: UInt8Array) -> list[Face]:
        return self.frames[int(frame[0, 0, 0])]


def numbered(count: int) -> Iterator[Frame]:
    for index in range(count):
        yield frame_at(index, np.full((8, 8, 3), index, np.uint8))


def jobs_of(faces: list[list[Face]]) -> tuple[list[FrameJob], FaceFinder]:
    finder = FaceFinder(Scripted(faces), 64, StageClock())
    return list(finder.find(frame for frame in numbered(len(faces)))), finder


@pytest.mark.parametrize("gap", [1, 5, HALF_SECOND])
def test_a_short_gap_is_bridged(gap: int) -> None:
    jobs, finder = jobs_of([[face_at(100)], *([[]] * gap), [face_at(100 + 2 * (gap + 1))]])
    lefts = [float(job.targets[0].tracked.box[0]) for job in jobs]
    assert lefts == pytest.approx([100 + 2 * index for index in range(gap + 2)], abs=1e-3)
    assert {job.targets[0].track_id for job in jobs} == {0}
    assert np.allclose(np.diff([job.targets[0].matrix[:, 2] for job in jobs], 2, axis=0)[1:], 0, atol=0.02)
    assert finder.untouched == []


def test_a_longer_gap_stays_and_is_reported() -> None:
    gap = HALF_SECOND + 1
    jobs, finder = jobs_of([[face_at(100)], *([[]] * gap), [face_at(100)]])
    assert [len(job.targets) for job in jobs] == [1] + [0] * gap + [1]
    assert jobs[0].targets[0].track_id != jobs[-1].targets[0].track_id
    assert finder.untouched == [Interval(0.04, 0.56, "no face")]


@pytest.mark.parametrize(
    ("last", "during", "reason"),
    [
        (Face(face_at(100).box, np.array([[120, 120], [160, 120], [175, 170]], np.float32)), [], "turned away"),
        (face_at(100), [Face(np.array([0, 0, 9, 12], np.float32), face_at(0).points)], "too small"),
        (
            face_at(100),
            [Face(face_at(400).box, np.array([[450, 90], [450, 150], [400, 120]], np.float32))],
            "on its side",
        ),
    ],
)
def test_the_reason_is_told(last: Face, during: list[Face], reason: str) -> None:
    _, finder = jobs_of([[last], *([during] * 20)])
    assert [interval.reason for interval in finder.untouched][:1] == [reason]


def at_times(times_s: list[Fraction], faces: list[list[Face]]) -> tuple[list[FrameJob], FaceFinder]:
    ends_s = [*times_s[1:], times_s[-1] + Fraction(1, 25)]
    frames = (
        replace(frame, time_s=start_s, source_s=start_s, duration_s=end_s - start_s)
        for frame, start_s, end_s in zip(numbered(len(times_s)), times_s, ends_s, strict=True)
    )
    finder = FaceFinder(Scripted(faces), 64, StageClock())
    return list(finder.find(frame for frame in frames)), finder


def test_a_gap_is_measured_and_interpolated_by_time() -> None:
    times_s = [Fraction(milliseconds, 1000) for milliseconds in (0, 40, 100, 400, 500)]
    jobs, _ = at_times(times_s, [[face_at(100)], [], [], [], [face_at(150)]])
    assert [float(job.targets[0].tracked.box[0]) for job in jobs] == pytest.approx([100, 104, 110, 140, 150], abs=1e-3)
    jobs, finder = at_times([Fraction(second) for second in range(3)], [[face_at(100)], [], [face_at(100)]])
    assert [len(job.targets) for job in jobs] == [1, 0, 1]
    assert finder.untouched == [Interval(1.0, 2.0, "no face")]


def test_few_frames_per_second_are_one_run_and_a_start_anew_is_another() -> None:
    jobs, _ = at_times([Fraction(second) for second in range(4)], [[face_at(100)]] * 4)
    assert [job.targets[0].track_id for job in jobs] == [0] * 4
    loop = [replace(frame, source_s=Fraction(frame.index % 4)) for frame in numbered(8)]
    jobs = list(FaceFinder(Scripted([[face_at(100)]] * 8), 64, StageClock()).find(frame for frame in loop))
    assert [job.targets[0].track_id for job in jobs] == [0] * 4 + [1] * 4
    both_ways = [replace(frame, source_s=Fraction(3 - abs(3 - frame.index))) for frame in numbered(7)]
    jobs = list(FaceFinder(Scripted([[face_at(100)]] * 7), 64, StageClock()).find(frame for frame in both_ways))
    assert {job.targets[0].track_id for job in jobs} == {0}


def test_a_face_that_a_later_search_finds_is_followed_back() -> None:
    faces = [[face_at(100)] + [face_at(600)] * (index >= 15) for index in range(30)]
    finder = FaceFinder(Scripted(faces), 64, StageClock())
    seen = [seen for _, seen in finder.see(frame for frame in numbered(30))]
    assert [len(one.faces) for one in seen if one is not None] == [1] * 15 + [2] * 15


@pytest.mark.integration
@pytest.mark.parametrize("covered", ["flat", "by another"])
def test_nothing_is_painted_on_what_covers_a_face(covered: str) -> None:
    if covered == "flat":
        frames = first_person(16)
        for frame in frames[6:10]:
            frame[60:360, 120:360] = 80
    else:
        frames = together([420.0] * 16, [None] * 6 + [420.0] * 4 + [None] * 6)
    with MediaPipeDetector() as detector:
        finder = FaceFinder(detector, 64, StageClock())
        seen = [seen for _, seen in finder.see(frame_at(*each) for each in enumerate(frames))]
    people = [{face.person for face in one.faces} for one in seen if one is not None]
    assert people[:6] == people[10:] == [{0}] * 6
    assert not any(0 in present for present in people[6:10])
