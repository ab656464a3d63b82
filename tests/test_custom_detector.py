"""Detectors of someone else's: what they return is checked, and what they raise reaches the caller."""

import numpy as np
import pytest

from latentsync_trt.errors import InputError
from latentsync_trt.face.choice import MainFace
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.types import Face, Picture, UInt8Array

FRAME = np.zeros((400, 400, 3), np.uint8)
BOX = np.array([100, 100, 250, 300], np.float32)
POINTS = np.array([[130, 150], [220, 150], [175, 220]], np.float32)


class Returning:
    """A detector that always returns the same thing."""

    def __init__(self, result: object) -> None:
        self._result = result

    def detect(self, frame: UInt8Array) -> list[Face]:
        return self._result  # type: ignore[return-value]


class Following(Returning):
    """Also follows, to another thing."""

    def __init__(self, result: object, followed: object) -> None:
        super().__init__(result)
        self._followed = followed

    def follow(self, frame: Picture, previous: Face) -> Face | None:
        return self._followed  # type: ignore[return-value]


def with_value(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed.flat[1] = value
    return changed


WRONG: dict[str, object] = {
    "None": None,
    "one face": Face(BOX, POINTS),
    "arrays": [BOX],
    "a list as box": [Face([1, 2, 3, 4], POINTS)],  # type: ignore[arg-type]
    "box shape": [Face(BOX.reshape(2, 2), POINTS)],
    "points shape": [Face(BOX, POINTS[:2])],
    "type": [Face(BOX, POINTS.astype(str))],
    "NaN box": [Face(with_value(BOX, np.nan), POINTS)],
    "infinite points": [Face(BOX, with_value(POINTS, np.inf))],
    "width and height": [Face(np.array([300, 300, 90, 120], np.float32), POINTS)],
    "landmarks": [Face(BOX, POINTS, landmarks=np.zeros((5, 3), np.float32))],
    "no landmark": [Face(BOX, POINTS, landmarks=np.zeros((0, 2), np.float32))],
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_detector_returns_is_checked(case: str) -> None:
    with pytest.raises(InputError, match=r"detector Returning: detect returned .*box float32 \(4,\) as left, top"):
        MainFace(Returning(WRONG[case])).update(FRAME)


def test_coinciding_points_are_refused() -> None:
    with pytest.raises(InputError, match="span no face"):
        MainFace(Returning([Face(BOX, np.zeros((3, 2), np.float32))])).update(FRAME)


def test_what_it_follows_to_is_checked() -> None:
    tracker = MainFace(Following([Face(BOX, POINTS)], [Face(BOX, POINTS)]))
    assert tracker.update(FRAME) is not None
    with pytest.raises(InputError, match=r"face detector Following: follow returned"):
        tracker.update(FRAME)


@pytest.mark.parametrize(
    "result",
    [
        [],
        (),
        [Face(BOX[[0, 0, 0, 0]], POINTS)],
        [Face(BOX - 2000, POINTS - 2000)],
        [Face(BOX.astype(np.float64), POINTS.astype(np.int64))],
    ],
    ids=["empty list", "empty tuple", "an empty box", "outside", "other numbers"],
)
def test_what_is_fine(result: object) -> None:
    tracker = FaceTracker(Returning(result))
    for _ in range(3):
        tracker.update(FRAME)
    assert tracker.turned_frames == 0


class NoLicense(Returning):
    def detect(self, frame: UInt8Array) -> list[Face]:
        raise RuntimeError("no license")


def test_an_exception_of_a_detector_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError, match="no license"):
        MainFace(NoLicense(None)).update(FRAME)
