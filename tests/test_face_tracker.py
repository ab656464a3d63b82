"""Tracking one face through lost frames, cuts and other faces; what other detectors return is
checked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import is_usable
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.measures import Interval
from latentsync_trt.sync.faces import FaceFinder, FrameJob
from latentsync_trt.types import Face, Frame, UInt8Array
from tests.clips import frame_at, untouched_in
from tests.people import first_person, together


def face_at(left: float, top: float = 100.0, width: float = 100.0, height: float = 130.0) -> Face:
    box = np.array([left, top, left + width, top + height], np.float32)
    points = np.array(
        [[left + 20, top + 20], [left + 80, top + 20], [left + 50, top + 70]], np.float32
    )
    return Face(box, points)


class Detecting:
    """A detector of others; has prepared faces for the frame whose number is the level of its first
    pixel.
    """

    def __init__(self, frames: list[list[Face]]) -> None:
        self.frames = frames
        self.detections = 0

    def now(self, frame: UInt8Array) -> list[Face]:
        return self.frames[int(frame[0, 0, 0])]

    def detect(self, frame: UInt8Array) -> list[Face]:
        self.detections += 1
        return self.now(frame)


class Following(Detecting):
    """As the built-in one, which also follows."""

    def search(self, picture: UInt8Array, *_: object, **__: bool) -> list[Face]:
        return self.detect(picture)

    def follow(self, frame: UInt8Array, previous: Face) -> Face | None:
        near = (face for face in self.now(frame) if np.abs(face.box - previous.box).max() < 40)
        return next(near, None)


def ids(detector: Detecting) -> list[int | None]:
    tracker = MainFace(detector)
    found = [
        tracker.update(np.full((8, 8, 3), index, np.uint8)) for index in range(len(detector.frames))
    ]
    return [None if face is None else face.track_id for face in found]


ME = face_at(100)
OTHER = face_at(600, width=95, height=120)


@pytest.mark.parametrize("kind", [Detecting, Following])
@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([[ME], [], [ME], [], [ME]], [0, None, 1, None, 2]),
        ([[ME], [OTHER], [face_at(605)]], [0, 1, 1]),  # a cut
        # a bystander
        ([[ME, OTHER], [OTHER], [OTHER], [ME, OTHER], [ME, OTHER]], [0, None, None, 1, 1]),
    ],
    ids=["gap", "cut", "bystander"],
)
def test_runs_of_a_face(
    kind: type[Detecting], frames: list[list[Face]], expected: list[int | None]
) -> None:
    assert ids(kind(frames)) == expected


def test_follows_and_searches_every_half_second() -> None:
    detector = Following([[face_at(100 + index)] for index in range(27)])
    assert ids(detector) == [0] * 27
    assert detector.detections == 3


def test_a_face_partly_outside_is_tracked_until_it_leaves(detector: MediaPipeDetector) -> None:
    frame = first_person(1)[0]
    tracker = MainFace(detector)
    seen = [tracker.update(np.ascontiguousarray(frame[:, 20 * step :])) for step in range(18)]
    tracked = [face is not None for face in seen]
    assert tracked[:8] == [True] * 8
    assert not tracked[-1]
    assert all(np.isfinite(face.matrix).all() for face in seen if face is not None)


@pytest.mark.parametrize(
    ("width", "height", "fine"),
    [
        (28, 40, True),
        (27, 40, False),
        (30, 39, False),
        (151, 100, False),
        (150, 100, True),
        (60, 301, False),
    ],
)
def test_small_and_turned_faces_are_ignored(width: float, height: float, fine: bool) -> None:
    assert is_usable(face_at(0, width=width, height=height)) is fine


WRONG: dict[str, object] = {
    "arrays": ME.box,
    "NaN box": replace(ME, box=np.array([100, np.nan, 250, 300], np.float32)),
    "width and height": replace(ME, box=np.array([300, 300, 90, 120], np.float32)),
    "landmarks": replace(ME, landmarks=np.zeros((5, 3), np.float32)),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_detector_returns_is_checked(case: str) -> None:
    detector = Detecting([[WRONG[case]]])  # type: ignore[list-item]
    with pytest.raises(InputError, match="detector Detecting: detect returned"):
        MainFace(detector).update(np.zeros((400, 400, 3), np.uint8))


# Short gaps in a track are bridged, long ones are left alone and reported; new faces are followed
# back.


def numbered(count: int) -> Iterator[Frame]:
    for index in range(count):
        yield frame_at(index, np.full((8, 8, 3), index, np.uint8))


def jobs_of(faces: list[list[Face]], frames: Iterable[Frame] | None = None) -> list[FrameJob]:
    frames = numbered(len(faces)) if frames is None else frames
    return list(FaceFinder(FaceTracker(Following(faces)), 64).find(frame for frame in frames))


@pytest.mark.parametrize("gap", [1, 12])
def test_a_short_gap_is_bridged(gap: int) -> None:
    jobs = jobs_of([[face_at(100)], *([[]] * gap), [face_at(100 + 2 * (gap + 1))]])
    lefts = [float(job.targets[0].tracked.box[0]) for job in jobs]
    assert lefts == pytest.approx([100 + 2 * index for index in range(gap + 2)], abs=1e-3)
    assert {job.targets[0].track_id for job in jobs} == {0}
    assert np.allclose(
        np.diff([job.targets[0].matrix[:, 2] for job in jobs], 2, axis=0)[1:], 0, atol=0.02
    )
    assert untouched_in(jobs) == []


def test_a_longer_gap_stays_and_is_reported() -> None:
    jobs = jobs_of([[face_at(100)], *([[]] * 13), [face_at(100)]])
    assert [len(job.targets) for job in jobs] == [1] + [0] * 13 + [1]
    assert jobs[0].targets[0].track_id != jobs[-1].targets[0].track_id
    assert untouched_in(jobs) == [Interval(0.04, 0.56, "no face")]


@pytest.mark.parametrize(
    ("last", "during", "reason"),
    [
        (
            Face(face_at(100).box, np.float32([[120, 120], [160, 120], [175, 170]])),
            [],
            "turned away",
        ),
        (face_at(100), [Face(np.float32([0, 0, 9, 12]), face_at(0).points)], "too small"),
        (
            face_at(100),
            [Face(face_at(400).box, np.float32([[450, 90], [450, 150], [400, 120]]))],
            "on its side",
        ),
    ],
)
def test_the_reason_is_told(last: Face, during: list[Face], reason: str) -> None:
    jobs = jobs_of([[last], *([during] * 20)])
    assert [interval.reason for interval in untouched_in(jobs)][:1] == [reason]


def at_times(times_s: list[Fraction], faces: list[list[Face]]) -> list[FrameJob]:
    ends_s = [*times_s[1:], times_s[-1] + Fraction(1, 25)]
    frames = (
        replace(frame, time_s=start_s, source_s=start_s, duration_s=end_s - start_s)
        for frame, start_s, end_s in zip(numbered(len(times_s)), times_s, ends_s, strict=True)
    )
    return jobs_of(faces, frames)


def test_a_gap_is_measured_and_interpolated_by_time() -> None:
    times_s = [Fraction(milliseconds, 1000) for milliseconds in (0, 40, 100, 400, 500)]
    jobs = at_times(times_s, [[face_at(100)], [], [], [], [face_at(150)]])
    assert [float(job.targets[0].tracked.box[0]) for job in jobs] == pytest.approx(
        [100, 104, 110, 140, 150], abs=1e-3
    )
    jobs = at_times([Fraction(second) for second in range(3)], [[face_at(100)], [], [face_at(100)]])
    assert [len(job.targets) for job in jobs] == [1, 0, 1]
    assert untouched_in(jobs) == [Interval(1.0, 2.0, "no face")]


def test_few_frames_per_second_are_one_run_and_a_start_anew_is_another() -> None:
    jobs = at_times([Fraction(second) for second in range(4)], [[face_at(100)]] * 4)
    assert [job.targets[0].track_id for job in jobs] == [0] * 4
    loop = [replace(frame, source_s=Fraction(frame.index % 4)) for frame in numbered(8)]
    jobs = jobs_of([[face_at(100)]] * 8, loop)
    assert [job.targets[0].track_id for job in jobs] == [0] * 4 + [1] * 4


def test_a_face_that_a_later_search_finds_is_followed_back() -> None:
    faces = [[face_at(100)] + [face_at(600)] * (index >= 15) for index in range(30)]
    finder = FaceFinder(FaceTracker(Following(faces)), 64)
    seen = [seen for _, seen in finder.see(frame for frame in numbered(30))]
    assert [len(one.faces) for one in seen if one is not None] == [1] * 15 + [2] * 15


@pytest.mark.integration
@pytest.mark.parametrize("covered", ["flat", "by another"])
def test_nothing_is_painted_on_what_covers_a_face(
    detector: MediaPipeDetector, covered: str
) -> None:
    if covered == "flat":
        frames = first_person(16)
        for frame in frames[6:10]:
            frame[60:360, 120:360] = 80
    else:
        frames = together([420.0] * 16, [None] * 6 + [420.0] * 4 + [None] * 6)
    finder = FaceFinder(FaceTracker(detector), 64)
    seen = [seen for _, seen in finder.see(frame_at(*each) for each in enumerate(frames))]
    people = [{face.person for face in one.faces} for one in seen if one is not None]
    assert people[:6] == people[10:] == [{0}] * 6
    assert not any(0 in present for present in people[6:10])
