"""People keep their numbers: crossing, leaving and coming back, across cuts; and who of them is chosen."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latentsync_trt.face.choice import Chooser
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.option_fields import FaceChoice, parse_face
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.types import Face, Interval, UInt8Array
from tests.clips import frame_at, untouched_in
from tests.people import filmed, together

NEAR_PX = 40


def seen_in(detector: MediaPipeDetector, frames: Iterable[UInt8Array]) -> list[FrameFaces]:
    finder = FaceFinder(FaceTracker(detector), 64)
    found = [seen for _, seen in finder.see(frame_at(*numbered) for numbered in enumerate(frames))]
    assert all(seen is not None for seen in found)
    return [seen for seen in found if seen is not None]


def at(seen: FrameFaces, x: float | None) -> int | None:
    """The number of the person whose face is at `x`."""
    middles = {one.person: (one.face.box[0] + one.face.box[2]) / 2 for one in seen.faces}
    near = [person for person, middle in middles.items() if x is not None and abs(middle - x) < NEAR_PX]
    return near[0] if near else None


def assert_told_apart(seen: list[FrameFaces], first: list[float], second: list[float | None]) -> None:
    """Both people keep their numbers where they are farther apart than a face is wide."""
    one, other = at(seen[0], first[0]), at(seen[0], second[0])
    assert {one, other} == {0, 1}
    for frame, x, other_x in zip(seen, first, second, strict=True):
        if other_x is None or abs(x - other_x) > 130:
            assert at(frame, x) in (one, None)
            assert at(frame, other_x) in (other, None)
    assert (at(seen[-1], first[-1]), at(seen[-1], second[-1])) == (one, other)
    assert {face.person for frame in seen for face in frame.faces} == {0, 1}


@pytest.mark.integration
def test_people_who_swap_places_keep_their_numbers(detector: MediaPipeDetector) -> None:
    crossing = [350.0 + 12 * i for i in range(30)]
    assert_told_apart(seen_in(detector, together(crossing, crossing[::-1])), crossing, crossing[::-1])


@pytest.mark.integration
@pytest.mark.slow
def test_filmed_people_keep_their_numbers(detector: MediaPipeDetector, assets: Path) -> None:
    """One crosses the other's way, leaves and comes back."""
    one, other = (filmed(assets / f"demo{number}_video.mp4", 60, detector) for number in (1, 2))
    first, away = [300.0 + 5 * i for i in range(60)], [None] * 20
    second = [*(700.0 - 20 * i for i in range(20)), *away, *(300.0 - 10 * i for i in range(20))]
    seen = seen_in(detector, together(first, second, people=(one, other)))
    assert_told_apart(seen, first, second)


@pytest.mark.integration
def test_numbers_are_kept_across_cuts(detector: MediaPipeDetector) -> None:
    wide = together([250.0] * 5, [790.0] * 5)
    close = together([None] * 5, [420.0] * 5, light=50)
    mirrored = [np.ascontiguousarray(frame[::-1, ::-1][::-1]) for frame in together([700.0] * 5, [None] * 5, light=25)]
    seen = seen_in(detector, [*wide, *close, *mirrored, *wide])
    one, other = at(seen[0], 250), at(seen[0], 790)
    people = [{face.person for face in frame.faces} for frame in seen]
    assert people[:5] == people[15:] == [{one, other}] * 5
    assert people[5:10] == [{other}] * 5
    shots = [frame.shot for frame in seen]
    assert [shots.count(shot) for shot in sorted(set(shots))] == [5, 5, 5, 5]
    tracks = [{face.track_id for face in frame.faces} for frame in seen]
    assert not tracks[0] & tracks[15]


def sighting(person: int, left: float, size: float = 100.0) -> TrackedDetection:
    box = np.array([left, 100, left + size, 100 + size], np.float32)
    return TrackedDetection(person, person, Face(box, np.zeros((3, 2), np.float32)))


LEFT, RIGHT, LARGE = sighting(0, 50), sighting(1, 700), sighting(2, 300, 200)


def chosen(choice: FaceChoice, frames: list[FrameFaces]) -> list[dict[int, int]]:
    """Of two frames a second: speakers by person."""
    chooser = Chooser(choice)
    found = [chooser.choose(frame, Fraction(number, 2)) for number, frame in enumerate(frames)]
    return [{face.person: speaker for face, speaker in each} for each in found]


@pytest.mark.parametrize(
    ("text", "person"), [("largest", 2), ("left", 0), ("right", 1), ("index:1", 1), ("at:100,150", 0)]
)
def test_a_choice_takes_its_face(text: str, person: int) -> None:
    assert chosen(parse_face(text), [FrameFaces(0, (LEFT, RIGHT, LARGE))]) == [{person: 0}]


GROWN, MOVED = sighting(0, 50, 400), sighting(0, 650)


@pytest.mark.parametrize(
    ("text", "shown", "people"),
    [
        ("largest", [(0, LEFT, LARGE), (0, GROWN, LARGE), (1, GROWN, LARGE)], [2, 2, 0]),  # until the next shot
        ("largest", [(0, LEFT, LARGE), *[(0, LEFT)] * 3, (0, LEFT, LARGE)], [2, None, None, 0, 2]),  # who comes back
        ("at:100,150", [(0, RIGHT), (0, LEFT, RIGHT), (1, MOVED, LARGE), (1, LARGE)], [None, 0, 0, None]),
    ],
)
def test_who_was_chosen_stays_chosen(text: str, shown: list[Any], people: list[int | None]) -> None:
    frames = [FrameFaces(shot, faces) for shot, *faces in shown]
    assert chosen(parse_face(text), frames) == [{} if person is None else {person: 0} for person in people]


@pytest.mark.integration
def test_times_of_the_others_are_reported(detector: MediaPipeDetector) -> None:
    frames = together([250.0] * 22, [790.0] * 5 + [None] * 12 + [790.0] * 5)
    finder = FaceFinder(FaceTracker(detector), 64, choice=FaceChoice("right"))
    jobs = list(finder.find(frame_at(*numbered) for numbered in enumerate(frames)))
    assert [len(job.targets) for job in jobs] == [1] * 5 + [0] * 12 + [1] * 5
    assert len({target.person for job in jobs for target in job.targets}) == 1
    assert untouched_in(jobs) == [Interval(0.2, 0.68, "other faces")]
