"""The mouth mask equals the one that the networks were trained with."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt.face.mask import LATENT_SCALE, latent_mask, mouth_mask


def test_every_pixel_is_the_release_s(reference: Path) -> None:
    recorded = cv2.imread(str(reference / "mask_256.png"), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(mouth_mask(256), recorded / np.float32(255))


@pytest.mark.integration
@pytest.mark.parametrize("resolution", [256, 512])
def test_latent_mask_is_resized_as_the_release_does(resolution: int) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.tensor(mouth_mask(resolution))[None, None]
    wanted = torch.nn.functional.interpolate(whole, size=resolution // LATENT_SCALE)[0, 0].numpy()
    np.testing.assert_array_equal(latent_mask(resolution), wanted)
    assert ((wanted > 0) & (wanted < 1)).any() == (resolution > 256)  # only there the filter made fractions


@pytest.mark.parametrize("resolution", [128, 384, 512])
def test_other_resolutions_have_the_same_outline(resolution: int) -> None:
    back = cv2.resize(mouth_mask(resolution), (256, 256), interpolation=cv2.INTER_LINEAR)
    assert ((back < 0.5) != (mouth_mask(256) < 0.5)).mean() < 0.003
    assert (mouth_mask(resolution) >= 0).all()
    assert (mouth_mask(resolution) <= 1).all()
