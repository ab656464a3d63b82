"""Hands in front of faces: a drawn one before a portrait, and real ones beside a face."""

from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import skimage.data

from latentsync_trt.compositing.hands import Hand, HandFinder, hand_mask
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.types import Face, Float32Array, UInt8Array

OPEN_HAND = np.array(
    [
        *((0.75, 0.6), (0.66, 0.06), (0.36, -0.44), (0.1, -0.83), (0.0, -1.15)),
        *((0.18, -0.31), (-0.34, -0.66), (-0.67, -0.84), (-0.95, -0.97)),
        *((0.0, 0.0), (-0.64, -0.28), (-1.03, -0.45), (-1.33, -0.57)),
        *((-0.15, 0.31), (-0.76, 0.11), (-1.12, -0.05), (-1.4, -0.18)),
        *((-0.25, 0.59), (-0.75, 0.54), (-1.07, 0.5), (-1.35, 0.46)),
    ],
    np.float32,
)
"""A hand of a clip, relative to its middle knuckle, in widths of its palm."""
PALM_PX = 55
OVER_MOUTH = (240.0, 190.0)
BELOW_CHIN = (240.0, 290.0)
SKIN = np.array([214, 160, 130])
WHOLE = np.eye(2, 3)
"""Frame pixels → pixels of a mask of the frame's size."""

POINT_ERROR = 0.15
"""In widths of the palm: three times what is seen."""
LEAST_IOU = 0.8


@pytest.fixture(scope="module")
def finder() -> HandFinder:
    return HandFinder()


@pytest.fixture(scope="module")
def portrait() -> UInt8Array:
    return np.asarray(skimage.data.astronaut(), np.uint8)


@pytest.fixture(scope="module")
def face(detector: MediaPipeDetector, portrait: UInt8Array) -> Face:
    (face,) = detector.detect(portrait)
    return face


def hand_at(place: tuple[float, float]) -> Hand:
    points = OPEN_HAND * PALM_PX + np.array(place, np.float32)
    return Hand(points, PALM_PX, in_front=True)


def with_hand(portrait: UInt8Array, hand: Hand) -> UInt8Array:
    """The portrait with a hand that is drawn as a mask, with darker edges."""
    mask = hand_mask([hand], WHOLE, portrait.shape[1::-1])
    depth = cv2.distanceTransform((mask > 127).astype(np.uint8), cv2.DIST_L2, 5)
    light = 0.62 + 0.38 * np.sqrt(np.clip(depth / (0.16 * PALM_PX), 0, 1))[..., None]
    alpha = cv2.GaussianBlur(mask, (0, 0), 1)[..., None] / 255
    return np.asarray(portrait * (1 - alpha) + SKIN * light * alpha, np.uint8)


def iou(one: UInt8Array, other: UInt8Array) -> float:
    both = np.minimum(one, other) > 127
    either = np.maximum(one, other) > 127
    return float(both.sum() / either.sum())


def points_error(hand: Hand, drawn: Hand) -> float:
    return float(np.linalg.norm(hand.points - drawn.points, axis=1).mean() / PALM_PX)


def test_a_hand_before_the_mouth_is_found_and_followed(
    finder: HandFinder, portrait: UInt8Array, face: Face
) -> None:
    hands: tuple[Hand, ...] = ()
    for step_px in (0, 8, 16):
        drawn = hand_at((OVER_MOUTH[0] - step_px, OVER_MOUTH[1] + step_px / 2))
        picture = with_hand(portrait, drawn)
        hands = finder.find(picture, face, hands, searches=step_px == 0)
        (hand,) = hands
        assert hand.in_front
        assert points_error(hand, drawn) < POINT_ERROR
        size_px = portrait.shape[1::-1]
        expected = hand_mask([drawn], WHOLE, size_px)
        assert iou(hand_mask(hands, WHOLE, size_px), expected) > LEAST_IOU


def test_a_hand_below_the_chin_is_not_in_front(
    finder: HandFinder, portrait: UInt8Array, face: Face
) -> None:
    picture = with_hand(portrait, hand_at(BELOW_CHIN))
    hands = finder.find(picture, face, (), searches=True)
    assert not any(hand.in_front for hand in hands)
    assert not hand_mask(hands, WHOLE, portrait.shape[1::-1]).any()


def test_a_hand_is_found_where_hands_are_searched_for_or_another_one_is_lost(
    finder: HandFinder, portrait: UInt8Array, face: Face
) -> None:
    picture = with_hand(portrait, hand_at(OVER_MOUTH))
    assert finder.find(picture, face, (), searches=False) == ()
    elsewhere = hand_at((OVER_MOUTH[0], OVER_MOUTH[1] - 160))
    (hand,) = finder.find(picture, face, (elsewhere,), searches=False)
    assert points_error(hand, hand_at(OVER_MOUTH)) < POINT_ERROR


def test_a_face_at_the_edge_of_the_frame(
    finder: HandFinder, detector: MediaPipeDetector, portrait: UInt8Array
) -> None:
    corner = portrait[60:200, 170:300]
    (face,) = detector.detect(corner)
    assert finder.find(corner, face, (), searches=True) == ()


def test_a_face_of_another_detector_has_no_outline(
    finder: HandFinder, portrait: UInt8Array, face: Face
) -> None:
    picture = with_hand(portrait, hand_at(OVER_MOUTH))
    box_only = replace(face, landmarks=None)
    (hand,) = finder.find(picture, box_only, (), searches=True)
    assert hand.in_front


def test_a_mask_is_in_pixels_of_its_view() -> None:
    hand = hand_at((100.0, 100.0))
    mask = hand_mask([hand], WHOLE, (256, 200))
    assert mask.shape == (200, 256)
    assert mask[100, 100] == 255
    half = hand_mask([hand], WHOLE / 2, (128, 100))
    assert iou(half, np.asarray(cv2.resize(mask, (128, 100)), np.uint8)) > 0.95
    far = np.array([[1.0, 0, -5000], [0, 1, 0]])
    assert not hand_mask([hand], far, (256, 200)).any()
    assert not hand_mask([replace(hand, in_front=False)], WHOLE, (256, 200)).any()


def test_a_region_turns_with_its_hand() -> None:
    upright = hand_at((0.0, 0.0)).region()
    turn: Float32Array = np.array([[0, -1], [1, 0]], np.float32)
    turned = Hand(OPEN_HAND * PALM_PX @ turn.T, PALM_PX, in_front=True).region()
    assert turned.angle - upright.angle == pytest.approx(np.pi / 2, abs=1e-3)
    assert turned.side_px == pytest.approx(upright.side_px, rel=1e-3)
    assert (turned.x_px, turned.y_px) == pytest.approx((-upright.y_px, upright.x_px), abs=0.1)


def test_hands_before_a_shirt_are_not_in_front_of_the_face(
    assets: Path, finder: HandFinder, detector: MediaPipeDetector
) -> None:
    with av.open(str(assets / "demo3_video.mp4")) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index % 30 == 0:
                picture = frame.to_ndarray(format="rgb24")
                (face, *_) = detector.detect(picture)
                hands = finder.find(picture, face, (), searches=True)
                assert not any(hand.in_front for hand in hands), index
            if index == 90:
                break
