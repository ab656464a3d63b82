"""Tracking one face through lost frames, cuts and other faces; what other detectors return is checked."""

import numpy as np
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.face.choice import MainFace, TrackedFace
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import usable
from latentsync_trt.types import Face, UInt8Array
from tests.people import first_person

SECOND_FRAMES = 25


def face_at(left: float, top: float = 100.0, width: float = 100.0, height: float = 130.0) -> Face:
    box = np.array([left, top, left + width, top + height], np.float32)
    points = np.array([[left + 20, top + 20], [left + 80, top + 20], [left + 50, top + 70]], np.float32)
    return Face(box, points)


class Detecting:
    """A detector without `follow`; has prepared faces for each frame."""

    def __init__(self, frames: list[list[Face]]) -> None:
        self.frames, self.detections = frames, 0
        self._frame: UInt8Array | None = None
        self._index = -1

    def now(self, frame: UInt8Array) -> list[Face]:
        self._index += frame is not self._frame
        self._frame = frame
        return self.frames[self._index]

    def detect(self, frame: UInt8Array) -> list[Face]:
        self.detections += 1
        return self.now(frame)


class Following(Detecting):
    """A detector that also follows."""

    def follow(self, frame: UInt8Array, previous: Face) -> Face | None:
        near = (face for face in self.now(frame) if np.abs(face.box - previous.box).max() < 40)
        return next(near, None)


def followed(detector: Detecting) -> list[TrackedFace | None]:
    tracker = MainFace(detector)
    return [tracker.update(np.zeros((4, 4, 3), np.uint8)) for _ in detector.frames]


def ids(detector: Detecting) -> list[int | None]:
    return [None if face is None else face.track_id for face in followed(detector)]


@pytest.mark.parametrize("kind", [Detecting, Following])
def test_a_gap_starts_a_new_run(kind: type[Detecting]) -> None:
    assert ids(kind([[face_at(100)], [], [face_at(100)], [], [face_at(100)]])) == [0, None, 1, None, 2]


@pytest.mark.parametrize("kind", [Detecting, Following])
def test_another_face_elsewhere_is_a_cut(kind: type[Detecting]) -> None:
    assert ids(kind([[face_at(100)], [face_at(600)], [face_at(605)]])) == [0, 1, 1]


def test_follows_and_searches_every_half_second() -> None:
    detector = Following([[face_at(100 + index)] for index in range(SECOND_FRAMES + 2)])
    assert ids(detector) == [0] * (SECOND_FRAMES + 2)
    assert detector.detections == 3


@pytest.mark.parametrize("kind", [Detecting, Following])
def test_a_bystander_does_not_take_over(kind: type[Detecting]) -> None:
    me, other = face_at(100), face_at(600, width=95, height=120)
    frames = [[me, other], [other], [other], [face_at(110), other], [face_at(112), other]]
    assert ids(kind(frames)) == [0, None, None, 1, 1]


def test_a_face_partly_outside_is_tracked_until_it_leaves() -> None:
    frame = first_person(1)[0]
    with MediaPipeDetector() as detector:
        tracker = MainFace(detector)
        seen = [tracker.update(np.ascontiguousarray(frame[:, 20 * step :])) for step in range(18)]
    tracked = [face is not None for face in seen]
    assert tracked[:8] == [True] * 8
    assert not tracked[-1]
    assert all(np.isfinite(face.matrix).all() for face in seen if face is not None)


@pytest.mark.parametrize(
    ("width", "height", "fine"),
    [(28, 40, True), (27, 40, False), (30, 39, False), (151, 100, False), (150, 100, True), (60, 301, False)],
)
def test_small_and_turned_faces_are_ignored(width: float, height: float, fine: bool) -> None:
    assert usable(face_at(0, width=width, height=height)) is fine


BLACK = np.zeros((400, 400, 3), np.uint8)
BOX = np.array([100, 100, 250, 300], np.float32)
POINTS = np.array([[130, 150], [220, 150], [175, 220]], np.float32)


class Returning:
    """A detector that always returns the same thing."""

    def __init__(self, result: object) -> None:
        self._result = result

    def detect(self, frame: UInt8Array) -> list[Face]:
        return self._result  # type: ignore[return-value]


def with_value(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed.flat[1] = value
    return changed


WRONG: dict[str, object] = {
    "arrays": [BOX],
    "box shape": [Face(BOX.reshape(2, 2), POINTS)],
    "NaN box": [Face(with_value(BOX, np.nan), POINTS)],
    "width and height": [Face(np.array([300, 300, 90, 120], np.float32), POINTS)],
    "landmarks": [Face(BOX, POINTS, landmarks=np.zeros((5, 3), np.float32))],
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_detector_returns_is_checked(case: str) -> None:
    with pytest.raises(InputError, match=r"detector Returning: detect returned .*box float32 \(4,\) as left, top"):
        MainFace(Returning(WRONG[case])).update(BLACK)
