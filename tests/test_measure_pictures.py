"""PSNR and SSIM against numbers that can be computed by hand, and against scikit-image."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from latentsync_trt.measure.pictures import (
    Likeness,
    clip_likeness,
    frame_likeness,
    generated_area,
    mouth_area,
    ssim,
)
from latentsync_trt.types import UInt8Array

SEED = 3
SIDE_PX = 128
SAME_AS_SKIMAGE = 1e-6
"""Both compute in double precision, with the same windows; what differs is the order of sums."""


def _picture(seed: int) -> UInt8Array:
    """Smooth blobs: on pure noise every SSIM is near 0, and a wrong window would not show."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 7, 3)).astype(np.float64)
    return (
        (coarse.repeat(8, axis=0).repeat(8, axis=1) + rng.normal(0, 12, (40, 56, 3)))
        .clip(0, 255)
        .astype(np.uint8)
    )


def likeness(frames: Iterable[UInt8Array], reference: Iterable[UInt8Array]) -> Likeness:
    return clip_likeness([frame_likeness(*pair) for pair in zip(frames, reference, strict=True)])


def test_ssim_is_that_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics")
    a = _picture(SEED)
    b = (
        (a.astype(np.float64) * 0.8 + np.random.default_rng(9).normal(0, 20, a.shape))
        .clip(0, 255)
        .astype(np.uint8)
    )
    luma = np.array([0.299, 0.587, 0.114])
    expected = metrics.structural_similarity(
        a @ luma,
        b @ luma,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=255,
    )
    assert 0.2 < expected < 0.9
    assert ssim(a, b) == pytest.approx(expected, abs=SAME_AS_SKIMAGE)


def test_a_clip_is_compared_frame_by_frame() -> None:
    clip = [_picture(seed) for seed in range(3)]
    other = [clip[0], clip[1], (clip[2] // 2).astype(np.uint8)]
    measured = likeness(iter(clip), iter(other))
    same = likeness(clip, clip)
    assert same.psnr_db is None
    assert same.ssim == pytest.approx(1.0)
    squares = np.mean((np.stack(clip).astype(float) - np.stack(other)) ** 2)
    assert measured.frames == 3
    assert measured.psnr_db == pytest.approx(10 * np.log10(255**2 / squares))
    assert measured.ssim == pytest.approx((2 + ssim(clip[2], other[2])) / 3)


def test_a_difference_counts_in_the_part_that_holds_it() -> None:
    source = np.random.default_rng(SEED).integers(40, 216, (SIDE_PX, SIDE_PX, 3)).astype(np.uint8)
    rows, columns = mouth_area(SIDE_PX)
    changed = source.copy()
    changed[rows, columns] += 5
    areas = {"mouth": mouth_area(SIDE_PX), "generated": generated_area(SIDE_PX)}
    measured = {name: likeness([source[area]], [changed[area]]) for name, area in areas.items()}
    mouth = measured["mouth"]
    generated = measured["generated"]
    assert mouth.psnr_db == pytest.approx(20 * math.log10(255 / 5))
    assert generated.psnr_db is not None
    assert mouth.psnr_db < generated.psnr_db
    assert mouth.ssim < generated.ssim < 1
