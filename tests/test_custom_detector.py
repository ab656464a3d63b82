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


WRONG: dict[str, tuple[object, str]] = {
    "None": (None, "returned NoneType; it must return a list of Face"),
    "one face": (Face(BOX, POINTS), "returned Face; it must return a list of Face"),
    "arrays": ([BOX], "returned ndarray as a face"),
    "a list as box": ([Face([1, 2, 3, 4], POINTS)], r"Face.box is list; it must be a float32 array of shape \(4\)"),  # type: ignore[arg-type]
    "box shape": ([Face(BOX.reshape(2, 2), POINTS)], r"Face.box has shape \(2, 2\); .* shape \(4\)"),
    "points shape": ([Face(BOX, POINTS[:2])], r"Face.points has shape \(2, 2\); .* shape \(3, 2\)"),
    "flat points": ([Face(BOX, POINTS[:, 0])], r"Face.points has shape \(3,\)"),
    "type": ([Face(BOX, POINTS.astype(str))], "Face.points has type <U32"),
    "NaN box": ([Face(with_value(BOX, np.nan), POINTS)], "Face.box is not finite"),
    "infinite points": ([Face(BOX, with_value(POINTS, np.inf))], "Face.points is not finite"),
    "width and height": ([Face(np.array([300, 300, 90, 120], np.float32), POINTS)], "left, top, right, bottom"),
    "landmarks": ([Face(BOX, POINTS, landmarks=np.zeros((5, 3), np.float32))], r"shape \(5, 3\); .* shape \(n, 2\)"),
    "no landmark": ([Face(BOX, POINTS, landmarks=np.zeros((0, 2), np.float32))], r"Face.landmarks has shape \(0, 2\)"),
    "coinciding": ([Face(BOX, np.zeros((3, 2), np.float32))], "span no face"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_detector_returns_is_checked(case: str) -> None:
    result, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        MainFace(Returning(result)).update(FRAME)


def test_what_it_follows_to_is_checked() -> None:
    tracker = MainFace(Following([Face(BOX, POINTS)], [Face(BOX, POINTS)]))
    assert tracker.update(FRAME) is not None
    with pytest.raises(InputError, match=r"face detector Following: follow returned list as a face"):
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
