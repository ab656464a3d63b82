"""People keep their numbers: crossing, leaving and coming back, across cuts; and who of them is
chosen.
"""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from latentsync_trt.face.choice import Chooser
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import box_area
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.measures import Interval
from latentsync_trt.option_fields import FaceChoice, parse_face
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.types import Face, UInt8Array
from tests.clips import frame_at, untouched_in
from tests.people import filmed, first_person, second_person, together

NEAR_PX = 40


def seen_in(detector: MediaPipeDetector, frames: Iterable[UInt8Array]) -> list[FrameFaces]:
    finder = FaceFinder(FaceTracker(detector), 64)
    found = [seen for _, seen in finder.see(frame_at(*numbered) for numbered in enumerate(frames))]
    assert all(seen is not None for seen in found)
    return [seen for seen in found if seen is not None]


def at(seen: FrameFaces, x: float | None) -> int | None:
    """The number of the person whose face is at `x`."""
    middles = {one.person: (one.face.box[0] + one.face.box[2]) / 2 for one in seen.faces}
    near = [
        person for person, middle in middles.items() if x is not None and abs(middle - x) < NEAR_PX
    ]
    if near:
        return near[0]
    return None


def assert_told_apart(
    seen: list[FrameFaces], first: list[float], second: list[float | None]
) -> None:
    """Both people keep their numbers where they are farther apart than a face is wide."""
    one = at(seen[0], first[0])
    other = at(seen[0], second[0])
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
    assert_told_apart(
        seen_in(detector, together(crossing, crossing[::-1])), crossing, crossing[::-1]
    )


@pytest.mark.integration
@pytest.mark.slow
def test_filmed_people_keep_their_numbers(detector: MediaPipeDetector, assets: Path) -> None:
    """One crosses the other's way, leaves and comes back."""
    one, other = (filmed(assets / f"demo{number}_video.mp4", 60, detector) for number in (1, 2))
    first = [300.0 + 5 * i for i in range(60)]
    away = [None] * 20
    second = [*(700.0 - 20 * i for i in range(20)), *away, *(300.0 - 10 * i for i in range(20))]
    seen = seen_in(detector, together(first, second, people=(one, other)))
    assert_told_apart(seen, first, second)


@pytest.mark.integration
def test_numbers_are_kept_across_cuts(detector: MediaPipeDetector) -> None:
    wide = together([250.0] * 5, [790.0] * 5)
    close = together([None] * 5, [420.0] * 5, light=50)
    mirrored = [
        np.ascontiguousarray(frame[::-1, ::-1][::-1])
        for frame in together([700.0] * 5, [None] * 5, light=25)
    ]
    seen = seen_in(detector, [*wide, *close, *mirrored, *wide])
    one = at(seen[0], 250)
    other = at(seen[0], 790)
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


LEFT = sighting(0, 50)
RIGHT = sighting(1, 700)
LARGE = sighting(2, 300, 200)


def chosen(choice: FaceChoice, frames: list[FrameFaces]) -> list[dict[int, int]]:
    """Of two frames a second: speakers by person."""
    chooser = Chooser(choice)
    found = [chooser.choose(frame, Fraction(number, 2)) for number, frame in enumerate(frames)]
    return [{face.person: speaker for face, speaker in each} for each in found]


@pytest.mark.parametrize(
    ("text", "person"),
    [("largest", 2), ("left", 0), ("right", 1), ("index:1", 1), ("at:100,150", 0)],
)
def test_a_choice_takes_its_face(text: str, person: int) -> None:
    assert chosen(parse_face(text), [FrameFaces(0, (LEFT, RIGHT, LARGE))]) == [{person: 0}]


GROWN = sighting(0, 50, 400)
MOVED = sighting(0, 650)


@pytest.mark.parametrize(
    ("text", "shown", "people"),
    [
        # until the next shot
        ("largest", [(0, LEFT, LARGE), (0, GROWN, LARGE), (1, GROWN, LARGE)], [2, 2, 0]),
        # who comes back
        ("largest", [(0, LEFT, LARGE), *[(0, LEFT)] * 3, (0, LEFT, LARGE)], [2, None, None, 0, 2]),
        (
            "at:100,150",
            [(0, RIGHT), (0, LEFT, RIGHT), (1, MOVED, LARGE), (1, LARGE)],
            [None, 0, 0, None],
        ),
    ],
)
def test_who_was_chosen_stays_chosen(text: str, shown: list[Any], people: list[int | None]) -> None:
    frames = [FrameFaces(shot, faces) for shot, *faces in shown]
    assert chosen(parse_face(text), frames) == [
        {} if person is None else {person: 0} for person in people
    ]


@pytest.mark.integration
def test_times_of_the_others_are_reported(detector: MediaPipeDetector) -> None:
    frames = together([250.0] * 22, [790.0] * 5 + [None] * 12 + [790.0] * 5)
    finder = FaceFinder(FaceTracker(detector), 64, choice=FaceChoice("right"))
    jobs = list(finder.find(frame_at(*numbered) for numbered in enumerate(frames)))
    assert [len(job.targets) for job in jobs] == [1] * 5 + [0] * 12 + [1] * 5
    assert len({target.person for job in jobs for target in job.targets}) == 1
    assert untouched_in(jobs) == [Interval(0.2, 0.68, "other faces")]


# Who somebody is, is decided when all of the face was seen, in usual light, and looked the same for
# a moment.


def raised(frame: UInt8Array, shift_px: int) -> UInt8Array:
    """Seen by a camera that is turned up, so that the picture is lower, with a wall above."""
    shown = np.full_like(frame, 128)
    shown[shift_px:] = frame[: len(frame) - shift_px]
    return shown


def flashed(frame: UInt8Array, share: float) -> UInt8Array:
    return np.clip(frame * (1 + 3 * share) + 120 * share, 0, 255).astype(np.uint8)


def people_of(seen: list[FrameFaces]) -> list[int | None]:
    """Whose face is in each frame, of which at most one is."""
    assert all(len(frame.faces) <= 1 for frame in seen)
    return [frame.faces[0].person if frame.faces else None for frame in seen]


@pytest.mark.integration
def test_someone_who_comes_back_at_an_edge_keeps_the_number(detector: MediaPipeDetector) -> None:
    shifts = [*[0] * 8, *[480] * 16, *range(260, 0, -20), *[0] * 8]
    frames = [
        raised(frame, shift) for frame, shift in zip(first_person(len(shifts)), shifts, strict=True)
    ]
    seen = people_of(seen_in(detector, frames))
    assert seen[:8] == [0] * 8
    assert set(seen[8:24]) == {None}
    assert seen[32:] == [0] * (len(seen) - 32)
    assert set(seen) == {0, None}


@pytest.mark.integration
def test_a_flash_does_not_change_a_number(detector: MediaPipeDetector, assets: Path) -> None:
    shares = [*[0.0] * 6, 1, 0.9, 0.6, 0.35, 0.15, *[0.0] * 5]
    frames = filmed(assets / "demo2_video.mp4", len(shares), detector)
    seen = people_of(seen_in(detector, map(flashed, frames, shares)))
    assert set(seen[:6] + seen[9:]) == {0}
    assert set(seen) <= {0, None}


@pytest.mark.integration
def test_a_dissolve_leads_to_another_person(detector: MediaPipeDetector) -> None:
    """Then the cut back to the first one is to the first number."""
    shares = np.clip((np.arange(48) - 10) / 25, 0, 1)
    first = first_person(56)
    second = second_person(48)
    frames = [
        cv2.addWeighted(a, 1 - s, b, s, 0) for a, b, s in zip(first, second, shares, strict=False)
    ]
    seen = people_of(seen_in(detector, [*frames, *first[48:]]))
    assert set(seen[:16]) == {0}
    assert set(seen[34:48]) == {1}
    assert set(seen[49:]) == {0}


@pytest.mark.integration
def test_who_steps_in_front_is_not_chosen_for_a_second(detector: MediaPipeDetector) -> None:
    passing = [*[None] * 14, *(60.0 + 60 * step for step in range(8)), *[560.0] * 6]
    seen = seen_in(detector, together([620.0] * len(passing), passing))
    chooser = Chooser(FaceChoice("largest"))
    chosen = [chooser.choose(frame, Fraction(number, 25)) for number, frame in enumerate(seen)]
    assert all(frame.faces for frame in seen)
    assert [len(each) for each in chosen] == [1] * 22 + [0] * 6


@pytest.mark.integration
def test_a_larger_picture_of_a_face_is_not_taken(detector: MediaPipeDetector) -> None:
    count = 12
    talking = [chewing(frame, index) for index, frame in enumerate(first_person(count))]
    poster = [second_person(1)[0]] * count
    seen = seen_in(detector, together([250.0] * count, [790.0] * count, people=(talking, poster)))
    (chosen,) = Chooser(FaceChoice("largest")).choose(seen[0], Fraction(0))
    assert chosen[0].person == at(seen[0], 250)
    areas = {one.person: box_area(one.face) for one in seen[0].faces}
    assert areas[chosen[0].person] < max(areas.values())


def chewing(frame: UInt8Array, index: int) -> UInt8Array:
    """The face with a mouth and chin that move up and down."""
    y, x = np.mgrid[0 : frame.shape[0], 0 : frame.shape[1]].astype(np.float32)
    below = np.clip((y - 0.5 * len(frame)) / 60, 0, 1)
    lower = np.asarray(y - 30 * below * np.sin(index), np.float32)
    return np.asarray(cv2.remap(frame, x, lower, cv2.INTER_LINEAR), np.uint8)
