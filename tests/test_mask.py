"""The drawn mouth mask equals the one the networks were trained with."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt.face.mask import LATENT_SCALE, latent_mask, mouth_mask

LEAST_IOU = 0.995
LATENT_MISMATCHES = {256: 4, 512: 6}
"""Latent pixels (of 1024 and 4096) whose corner lies on the outline, within half a pixel of the drawing."""


@pytest.fixture(scope="module")
def recorded(reference: Path) -> np.ndarray:
    return cv2.imread(str(reference / "mask_256.png"), cv2.IMREAD_GRAYSCALE)


def resized(recorded: np.ndarray, resolution: int) -> np.ndarray:
    """The release's resizing; at 256 the picture itself."""
    return cv2.resize(recorded, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4) / np.float32(255)


def iou(found: np.ndarray, wanted: np.ndarray) -> float:
    a, b = found < 0.5, wanted < 0.5
    return float((a & b).sum() / (a | b).sum())


@pytest.mark.parametrize("resolution", [256, 512])
def test_generated_region_matches_the_release(recorded, resolution):
    assert iou(mouth_mask(resolution), resized(recorded, resolution)) >= LEAST_IOU


@pytest.mark.parametrize("resolution", [256, 512])
def test_latent_mask_is_resized_by_nearest_neighbor(recorded, resolution):
    nearest = resized(recorded, resolution)[::LATENT_SCALE, ::LATENT_SCALE]
    found = latent_mask(resolution)
    assert found.shape == (resolution // LATENT_SCALE,) * 2
    assert set(np.unique(found)) == {0.0, 1.0}
    assert (found != (nearest >= 0.5)).sum() <= LATENT_MISMATCHES[resolution]
