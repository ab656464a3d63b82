"""A pasted face gets the detail and the grain of the frame around it, and nothing of its own."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import cv2
import numpy as np
import pytest

from latentsync_trt.compositing.bands import BANDS, amplify_bands, split_bands
from latentsync_trt.compositing.blend import Blend, FaceBlender
from latentsync_trt.compositing.finish import Finish, TrackDetail, gains_of, grain_of
from latentsync_trt.compositing.known_part import known_part
from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import fit_face
from latentsync_trt.face.align import align, crop
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.live.idle import IdleFace, IdleLoop
from latentsync_trt.live.painter import SessionPainter
from latentsync_trt.media.color import apply_patch, planes_from_rgb
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.media.pictures import LazyRgb, picture_info
from latentsync_trt.types import ColorTags, Float32Array, UInt8Array, YuvPlanes
from tests.pictures import applied

SIDE_PX = 128
POINTS = np.array([[212, 109], [237, 109], [224.5, 122]], np.float32)
"""Brows and nose of the portrait."""
ZOOM = 3
FRAMES = 10
SEED = 7

DETAIL = (0.85, 1.15)
GRAIN = (0.85, 1.15)
"""How close detail and grain come to those of the source."""
HDR_GRAIN = (0.8, 1.3)
"""The curve from HDR to SDR bends, so that equal noise is not equal at all brightnesses."""
OVERSHOOT_LEVELS = 4.0
"""1.5 % of white."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A still face with noise that was painted blurred and without noise."""

    clean: UInt8Array
    plain: UInt8Array
    """The frame with what was painted."""
    detailed: UInt8Array
    """The same with detail."""
    sources: list[UInt8Array]
    frames: list[UInt8Array]
    """With detail and grain."""
    inside: np.ndarray
    """Where only the painted face shows."""
    finish: Finish


def luma(picture: np.ndarray) -> Float32Array:
    return cv2.cvtColor(picture.astype(np.float32), cv2.COLOR_RGB2YCrCb)[..., 0]


def still() -> UInt8Array:
    size = (440, 440)
    matrix = np.float32([[ZOOM, 0, -ZOOM * 150], [0, ZOOM, -ZOOM * 60]])
    large = cv2.warpAffine(portrait(), matrix, size, flags=cv2.INTER_CUBIC)
    return np.asarray(large, np.uint8)


def noisy(picture: UInt8Array, sigma: float, number: int) -> UInt8Array:
    noise = np.random.default_rng(number).normal(0, sigma, picture.shape[:2])
    return np.clip(np.rint(picture + noise[..., None]), 0, 255).astype(np.uint8)


def finished(blur_px: float = 0.7, sigma: float = 5.0, seed: int = SEED) -> Finished:
    clean = still()
    matrix, _ = align(ZOOM * (POINTS - (150, 60)).astype(np.float32), None, SIDE_PX)
    image = crop(clean, matrix, SIDE_PX).image.astype(np.float32)
    painted = np.rint(cv2.GaussianBlur(image, (0, 0), blur_px) * 257).astype(np.uint16)
    sources = [noisy(clean, sigma, number) if sigma else clean for number in range(FRAMES)]
    faces = [fit_face(crop(source, matrix, SIDE_PX), painted) for source in sources]
    parts = [known_part(*each, None) for each in zip(sources, faces, strict=True)]
    detail = TrackDetail().after(parts[0], parts[1])
    for part in parts[1:]:
        detail = detail.after(part, None)
    assert detail.sums is not None
    gains = gains_of(detail.sums)
    frames = []
    for number, (source, face) in enumerate(zip(sources, faces, strict=True)):
        grain = grain_of(detail.sums, gains, seed, Fraction(number, 25))
        finish = Finish(None, tuple(gains.tolist()), grain)
        patch = composite(source, face, Blend(finish=finish))
        frames.append(applied(source, patch))
    inside = np.zeros(clean.shape[:2], bool)
    height, width = patch.weight.shape
    inside[patch.y_px :, patch.x_px :][:height, :width] = patch.weight > 0.99
    plain = applied(clean, composite(clean, faces[0], Blend()))
    with_detail = Blend(finish=Finish(None, finish.gains))
    detailed = applied(clean, composite(clean, faces[0], with_detail))
    return Finished(clean, plain, detailed, sources, frames, inside, finish)


def share_of_detail(result: Finished, picture: UInt8Array) -> list[float]:
    """Of each band, at about the network's size."""
    height, width = result.inside.shape
    size = (width * 3 // 4, height * 3 // 4)
    inside = cv2.resize(result.inside.astype(np.float32), size, interpolation=cv2.INTER_AREA) > 0.99
    small = [
        cv2.resize(luma(each), size, interpolation=cv2.INTER_AREA)
        for each in (picture, result.clean)
    ]
    shares = []
    for ours, true in zip(*map(split_bands, small), strict=True):
        shape = true.shape[::-1]
        where = cv2.resize(inside.astype(np.uint8), shape, interpolation=cv2.INTER_NEAREST) > 0
        shares.append(float(ours[where].std() / true[where].std()))
    return shares


def noise_of(pictures: list[UInt8Array], inside: np.ndarray) -> float:
    return float(np.std([luma(picture)[inside] for picture in pictures], axis=0).mean())


@pytest.mark.parametrize("sigma", [0.0, 5.0])
def test_detail_comes_back_and_edges_have_no_halos(sigma):
    result = finished(sigma=sigma)
    before = share_of_detail(result, result.plain)
    after = share_of_detail(result, result.detailed)
    assert min(before) < DETAIL[0] <= min(after)
    assert max(after) <= DETAIL[1]
    true = luma(result.clean)
    kernel = np.ones((5, 5), np.uint8)
    above = luma(result.detailed) - cv2.dilate(true, kernel)
    below = cv2.erode(true, kernel) - luma(result.detailed)
    assert np.quantile(np.maximum(above, below)[result.inside], 0.999) <= OVERSHOOT_LEVELS


@pytest.mark.parametrize("sigma", [3.0, 8.0])
def test_grain_is_as_strong_as_in_the_source_and_new_in_each_frame(sigma):
    result = finished(sigma=sigma)
    share = noise_of(result.frames, result.inside) / noise_of(result.sources, result.inside)
    assert GRAIN[0] <= share <= GRAIN[1]


@pytest.mark.parametrize("color", [ColorTags(1, 1, 1), ColorTags(9, 16, 9)], ids=["SDR", "PQ"])
def test_grain_at_10_bits_is_as_strong_and_as_coarse_as_in_the_source(color):
    clean = planes_from_rgb(still(), ColorTags(1, 1, 1))
    sources = [ten_bits(clean, color, number) for number in range(FRAMES)]
    pictures = [LazyRgb(source) for source in sources]
    matrix, _ = align(ZOOM * (POINTS - (150, 60)).astype(np.float32), None, SIDE_PX)
    quiet = crop(LazyRgb(ten_bits(clean, color, None)), matrix, SIDE_PX).image
    painted = cv2.GaussianBlur(quiet, (0, 0), 0.7) * np.uint16(257)
    faces = [fit_face(crop(picture, matrix, SIDE_PX), painted) for picture in pictures]
    parts = [known_part(*each, None) for each in zip(pictures, faces, strict=True)]
    detail = TrackDetail().after(parts[0], parts[1])
    for part in parts[1:]:
        detail = detail.after(part, None)
    assert detail.sums is not None
    gains = gains_of(detail.sums)
    results = []
    for number, source in enumerate(sources):
        grain = grain_of(detail.sums, gains, SEED, Fraction(number, 25))
        finish = Finish(None, tuple(gains.tolist()), grain)
        patch = composite(pictures[number], faces[number], Blend(finish=finish))
        results.append(apply_patch(source, patch))
    inside = np.zeros(clean.y.shape, bool)
    height, width = patch.weight.shape
    inside[patch.y_px :, patch.x_px :][:height, :width] = patch.weight > 0.99
    for plane, where in (("y", inside), ("v", inside[::2, ::2])):
        ours, theirs = (
            np.std([getattr(each, plane)[where] for each in side], axis=0).mean()
            for side in (results, sources)
        )
        least, most = GRAIN if color.transfer == 1 else HDR_GRAIN
        assert least <= ours / theirs <= most, plane


def ten_bits(clean: YuvPlanes, color: ColorTags, number: int | None) -> YuvPlanes:
    """The same picture at 10 bits, with noise unless `number` is None."""
    random = np.random.default_rng(number)
    strength = 0 if number is None else 1
    scale = 4.0 if color.transfer == 1 else 2.2  # below the white of PQ
    planes = []
    for plane, middle, sigma in ((clean.y, 16.0, 16), (clean.u, 128.0, 6), (clean.v, 128.0, 8)):
        noise = strength * random.normal(0, sigma, plane.shape)
        planes.append(
            np.clip(np.rint((plane - middle) * scale + 4 * middle + noise), 0, 1023).astype(
                np.uint16
            )
        )
    return YuvPlanes(*planes, color, 10)


def test_equal_seeds_give_equal_grain():
    first, again, other = (finished(seed=seed).frames[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_clean_picture_gets_no_grain():
    assert finished(sigma=0).finish.grain is None
    assert finished(sigma=0.3).finish.grain is None


def test_what_was_painted_sharp_stays_as_it_is():
    result = finished(blur_px=0.01, sigma=0)
    change = np.abs(luma(result.detailed) - luma(result.plain))
    assert np.quantile(change, 0.99) <= 6
    assert max(result.finish.gains[1:]) < 1.6


def test_a_face_that_the_network_does_not_know_gets_no_gain():
    clean = still()
    matrix, _ = align(ZOOM * (POINTS - (150, 60)).astype(np.float32), None, SIDE_PX)
    face = crop(clean, matrix, SIDE_PX)
    detail = TrackDetail()
    for number in range(3):
        other = np.random.default_rng(3).normal(128, 40, (32, 32, 3)).astype(np.float32)
        smear = cv2.resize(other, (SIDE_PX, SIDE_PX), interpolation=cv2.INTER_CUBIC)
        painted = np.rint(np.clip(smear, 0, 255) * 257).astype(np.uint16)
        source = noisy(clean, 2, number)
        detail = detail.after(known_part(source, fit_face(face, painted), None), None)
    assert detail.sums is not None
    assert gains_of(detail.sums).tolist() == [1.0] * BANDS
    assert max(detail.sums.slopes[:2]) < 0.3


def test_gains_of_one_change_nothing():
    picture = luma(still())
    same = picture.copy()
    amplify_bands(same, (1.0,) * BANDS)
    assert np.array_equal(same, picture)


def test_the_first_frame_of_an_utterance_has_grain(detector: MediaPipeDetector) -> None:
    clean = still()
    (tracked,) = detector.detect(clean)
    matrix, _ = align(tracked.points, None, SIDE_PX)
    sources = [noisy(clean, 5, number) for number in range(2)]
    faces = tuple(IdleFace(tracked, crop(source, matrix, SIDE_PX), (), 1.0) for source in sources)
    planes = tuple(planes_from_rgb(source, ColorTags(1, 1, 1)) for source in sources)
    size = clean.shape[1::-1]
    loop = IdleLoop(picture_info(*size, rgb=False), planes, faces, np.zeros(0, np.float32))
    painted = crop(clean, matrix, SIDE_PX).image * np.uint16(257)
    nothing: Any = None
    results = {}
    for finish in ("match", "plain"):
        painter = SessionPainter(nothing, loop, nothing, FaceBlender(detector, finish=finish))
        patch = painter.patch(0, painted, begins=True)
        results[finish] = luma(patch.rgb / 257)[patch.weight > 0.99]
    assert 4 < np.std(results["match"] - results["plain"]) < 6
