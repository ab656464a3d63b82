"""A face that is seen under another light looks the same; what covers its cheek does not."""

import cv2
import numpy as np
import pytest

from latentsync_trt.compositing.appearance import SIDE_PX, Appearance
from latentsync_trt.face.align import align, crop_size_px, cut, scaled_matrix, transformed
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import BoolArray, Float32Array, UInt8Array

LEARNED_FRAMES = 10
NOISE_LEVELS = 2
CHEEK = (36, 78)
EVERYWHERE = np.ones((SIDE_PX, SIDE_PX), np.bool_)


@pytest.fixture(scope="module")
def face() -> tuple[UInt8Array, Float32Array]:
    """The built-in face in a view of 128 px, with its mesh."""
    (detected,) = MediaPipeDetector().detect(portrait())
    matrix, _ = align(detected.points, None, SIDE_PX)
    width_px, height_px = crop_size_px(SIDE_PX)
    from_frame = scaled_matrix(matrix, SIDE_PX / width_px, SIDE_PX / height_px)
    assert detected.landmarks is not None
    view = cut(portrait(), from_frame, (SIDE_PX, SIDE_PX), outside=0)
    return view, transformed(detected.landmarks, from_frame)


@pytest.fixture
def appearance(face: tuple[UInt8Array, Float32Array]) -> Appearance:
    """What is known of the face after some frames."""
    view, mesh = face
    random = np.random.default_rng(0)
    result = Appearance(mesh)
    for _ in range(LEARNED_FRAMES):
        noise = random.normal(0, NOISE_LEVELS, view.shape)
        noisy = np.clip(view + noise, 0, 255).astype(np.uint8)
        result.learn(result.compare(noisy, mesh), EVERYWHERE)
    return result


def front_of(appearance: Appearance, view: UInt8Array, mesh: Float32Array) -> BoolArray | None:
    return appearance.in_front(appearance.compare(view, mesh))


@pytest.mark.parametrize("gain", [(0.7, 0.7, 0.7), (1.25, 1.2, 1.1), (1.5, 1.4, 1.2)])
def test_light_is_not_in_front(
    appearance: Appearance,
    face: tuple[UInt8Array, Float32Array],
    gain: tuple[float, float, float],
) -> None:
    view, mesh = face
    ramp = np.linspace(0, 1, SIDE_PX)[None, :, None]
    lit = view * (1 + ramp * (np.array(gain) - 1))
    assert front_of(appearance, np.clip(lit, 0, 255).astype(np.uint8), mesh) is None


def test_what_covers_a_cheek_is_in_front(
    appearance: Appearance, face: tuple[UInt8Array, Float32Array]
) -> None:
    view, mesh = face
    covered = cv2.circle(view.copy(), CHEEK, 9, (60, 90, 150), -1)
    front = front_of(appearance, covered, mesh)
    assert front is not None
    disk = cv2.circle(np.zeros(view.shape[:2], np.uint8), CHEEK, 9, 1, -1) > 0
    assert front[disk].mean() > 0.9
    assert np.count_nonzero(front) < 2 * np.count_nonzero(disk)


def test_another_color_of_the_lips_is_not_in_front(
    appearance: Appearance, face: tuple[UInt8Array, Float32Array]
) -> None:
    view, mesh = face
    x, y = mesh[[13, 14]].mean(axis=0).round().astype(int).tolist()
    opened = cv2.ellipse(view.copy(), (x, y), (8, 3), 0, 0, 360, (60, 20, 24), -1)
    assert front_of(appearance, opened, mesh) is None


def test_levels_of_the_square_come_back_to_the_view(
    appearance: Appearance, face: tuple[UInt8Array, Float32Array]
) -> None:
    view, mesh = face
    moved = mesh + np.float32((6, -4))
    compared = appearance.compare(view, moved)
    levels = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    cv2.circle(levels, CHEEK, 8, 1.0, -1)
    in_view = appearance.in_view(levels, compared)
    y, x = np.argwhere(in_view > 0.5).mean(axis=0)
    assert (x, y) == pytest.approx((CHEEK[0] + 6, CHEEK[1] - 4), abs=1)
