"""Small faces are found in tiles, and nothing else is."""

import cv2
import numpy as np
import pytest
import skimage.data

from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import usable
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.types import UInt8Array
from tests.people import first_person

SIZES = [(1920, 1080), (3840, 2160)]


def busy(name: str, size: tuple[int, int]) -> UInt8Array:
    picture = np.asarray(getattr(skimage.data, name)())
    picture = np.repeat(picture[..., None], 3, 2) if picture.ndim == 2 else picture
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_CUBIC), np.uint8)


@pytest.mark.integration
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("height_px", [80, 48])
def test_a_small_face_is_found(detector: MediaPipeDetector, size: tuple[int, int], height_px: int) -> None:
    portrait = np.asarray(skimage.data.astronaut()[0:330, 60:390], np.uint8)
    (face,) = detector.detect(portrait)
    scale = height_px / float(face.box[3] - face.box[1])
    small = cv2.resize(portrait, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    frame = busy("coffee", size)
    left, top = size[0] // 3, size[1] // 2
    frame[top : top + small.shape[0], left : left + small.shape[1]] = small
    (found,) = detector.detect(frame)
    expected = (face.points + 0.5) * scale - 0.5 + (left, top)
    assert np.abs(found.points - expected).max() < 0.05 * height_px
    assert usable(found)


@pytest.mark.integration
def test_a_small_face_is_found_beside_a_large_one(detector: MediaPipeDetector) -> None:
    frame = busy("coffee", (1280, 720))
    frame[100:580, :480] = first_person(1)[0]
    entered = frame.copy()
    entered[300:480, 900:1080] = cv2.resize(np.asarray(skimage.data.astronaut()[0:330, 60:390]), (180, 180))
    tracker = FaceTracker(detector, small=True)
    counts = [len(tracker.update(shown).faces) for shown in [frame, *([entered] * 14)]]
    assert counts[0] == 1
    assert counts[-1] == 2


@pytest.mark.integration
@pytest.mark.parametrize("name", ["coffee", "immunohistochemistry", "text", "coins"])
def test_nothing_is_found_in_busy_pictures(detector: MediaPipeDetector, name: str) -> None:
    assert detector.detect(busy(name, SIZES[0])) == []
