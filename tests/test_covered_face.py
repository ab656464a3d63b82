"""A face behind an object is where what is seen of it says."""

from math import inf

import cv2
import numpy as np
import pytest

from latentsync_trt.face.align import transformed
from latentsync_trt.face.covered import UncoveredFace, covered_face, free_face
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import Region, face_of
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

IN_PLACE = np.eye(2, 3)
MOUTH_CORNERS = [61, 291]
MOST_ERROR = 0.04
"""Of the distance between the brows: about 2.5 px of an aligned face of 256 px."""


def moved_by(x_px: float, y_px: float, turned: float = 0.0) -> Float64Array:
    """Returns a rotation about the middle of the portrait and a shift, `(2, 3)`."""
    height, width = portrait().shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), turned, 1)
    matrix[:, 2] += x_px, y_px
    return matrix


def frame_at(matrix: Float64Array) -> UInt8Array:
    picture = portrait()
    return cv2.warpAffine(picture, matrix, picture.shape[1::-1], borderMode=cv2.BORDER_REPLICATE)


def mesh_in(detector: MediaPipeDetector, frame: UInt8Array) -> Float32Array:
    face = detector.detect(frame)[0]
    assert face.landmarks is not None
    return face.landmarks


def disc_over_the_mouth(mesh: Float32Array) -> UInt8Array:
    """Returns the mask of a disc from the nose to below the chin."""
    mask = np.zeros(portrait().shape[:2], np.uint8)
    middle = mesh[MOUTH_CORNERS].mean(axis=0)
    brows = face_of(mesh, 0).points[:2]
    radius_px = int(0.8 * np.linalg.norm(brows[1] - brows[0]))
    return cv2.circle(mask, np.rint(middle).astype(int).tolist(), radius_px, 255, -1)


def relative_error(mesh: Float32Array, true_mesh: Float32Array) -> float:
    """Returns the mean distance of brows and nose, in distances between the brows."""
    points = face_of(mesh, 0).points
    true_points = face_of(true_mesh, 0).points
    brows_px = np.linalg.norm(true_points[1] - true_points[0])
    return float(np.linalg.norm(points - true_points, axis=1).mean() / brows_px)


@pytest.fixture(scope="module")
def detector() -> MediaPipeDetector:
    return MediaPipeDetector()


@pytest.mark.parametrize("object_level", [20, 230])
def test_a_covered_face_is_followed_by_what_is_seen_of_it(
    detector: MediaPipeDetector, object_level: int
) -> None:
    still = frame_at(IN_PLACE)
    before = free_face(still, mesh_in(detector, still), None)
    worst = 0.0
    worst_plain = 0.0
    for step in range(1, 7):
        frame = frame_at(moved_by(1.5 * step, -1.0 * step, 1.5 * step))
        true_mesh = mesh_in(detector, frame)
        mask = disc_over_the_mouth(true_mesh)
        frame[mask > 0] = object_level
        plain = detector.mesh_in(frame, Region.around(face_of(true_mesh, 0)))
        plain_error = inf if plain is None else relative_error(plain[0][:, :2], true_mesh)
        worst_plain = max(worst_plain, plain_error)
        before = covered_face(detector, frame, before, mask, IN_PLACE)
        worst = max(worst, relative_error(before.mesh, true_mesh))
    assert worst < MOST_ERROR
    assert worst < worst_plain / 2


def test_a_face_that_is_all_covered_stays_where_it_was(detector: MediaPipeDetector) -> None:
    still = frame_at(IN_PLACE)
    moved = frame_at(moved_by(3, 0))
    before = free_face(still, mesh_in(detector, still), None)
    before = free_face(moved, mesh_in(detector, moved), before)
    moves_on = transformed(before.mesh, before.motion).mean(axis=0) - before.mesh.mean(axis=0)
    assert moves_on[0] == pytest.approx(3, abs=0.5)
    mask = np.full(moved.shape[:2], 255, np.uint8)
    face: UncoveredFace = before
    for _ in range(10):
        face = covered_face(detector, np.zeros_like(moved), face, mask, IN_PLACE)
    assert relative_error(face.mesh, before.mesh) < MOST_ERROR
