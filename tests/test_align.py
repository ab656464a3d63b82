"""Alignment, crops, pasting, resizing and the mouth mask, compared with the public release's
recorded numbers.
"""

from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.compositing.blend import Blend
from latentsync_trt.compositing.paste import paste
from latentsync_trt.compositing.resize import resize_antialiased
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import (
    OUTSIDE,
    align,
    crop,
    crop_size_px,
    inverse,
    latent_mask,
    mouth_mask,
    transformed,
)
from tests.pictures import applied

MATRIX_TOLERANCE_PX = 0.05
"""The recordings hold float32 and were made on another SVD; a twentieth of a pixel cannot be
seen.
"""
CROP_TOLERANCE_LEVELS = 2
"""The release truncates, we round: one level; the Lanczos filter can add another."""
LEAST_PSNR_DB = 45.0
"""The release truncates, we round: half a level on average, 52 dB."""
RESIZE_TOLERANCE = 5e-4
"""PyTorch computes its weights in float32."""

TEMPLATE_AT_256 = np.array([[47.6, 56.0], [162.4, 56.0], [105.0, 112.0]])


@pytest.fixture(scope="module")
def recorded(reference: Path) -> dict[str, np.ndarray]:
    with np.load(reference / "small" / "align.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def frames(assets: Path) -> dict[int, np.ndarray]:
    with av.open(str(assets / "demo1_video.mp4")) as container:
        pictures = zip(range(34), container.decode(video=0), strict=False)
        return {
            index: picture.to_ndarray(format="rgb24")
            for index, picture in pictures
            if index in (0, 33)
        }


@pytest.mark.parametrize("resolution", [256, 512])
def test_track_matches_the_release(recorded, resolution):
    size = crop_size_px(resolution)
    bias = None
    worst_px = 0.0
    corners = np.array([[0, 0], [1, 0], [0, 1], [1, 1]]) * (np.array(size) - 1)
    assert size == tuple(recorded[f"face_size{resolution}"])
    for points, wanted in zip(
        recorded["landmarks3"], recorded[f"matrices{resolution}"], strict=True
    ):
        # the release rounds to whole pixels
        matrix, bias = align(np.rint(points), bias, resolution)
        apart = transformed(corners, inverse(matrix)) - transformed(
            corners, inverse(wanted.astype(np.float64))
        )
        worst_px = max(worst_px, np.linalg.norm(apart, axis=1).max())
    assert worst_px <= MATRIX_TOLERANCE_PX


@pytest.mark.parametrize("resolution", [256, 512])
@pytest.mark.parametrize("index", [0, 33])
def test_crop_matches_the_release(recorded, frames, resolution, index):
    matrix = recorded[f"matrices{resolution}"][index].astype(np.float64)
    face = crop(frames[index], matrix, resolution)
    apart = face.image.astype(int) - recorded[f"crop{resolution}_frame{index}"]
    assert np.abs(apart).max() <= CROP_TOLERANCE_LEVELS


@pytest.mark.parametrize("resolution", [256, 512])
def test_paste_matches_the_release(recorded, frames, resolution):
    last_frame = frames[33]
    upright = recorded[f"paste{resolution}_face"].astype(np.float32) * 127.5 + 127.5
    matrix = recorded[f"matrices{resolution}"][33].astype(np.float64)
    all_of_it = np.ones(upright.shape[:2], np.float32)
    found = applied(last_frame, paste(last_frame, upright, matrix, all_of_it, Blend()))
    top, bottom, left, right = recorded[f"paste{resolution}_box"]
    apart = found[top:bottom, left:right].astype(np.float64) - recorded[f"paste{resolution}_result"]
    assert 10 * np.log10(255**2 / (apart**2).mean()) >= LEAST_PSNR_DB
    found[top:bottom, left:right] = last_frame[top:bottom, left:right]
    assert np.array_equal(found, last_frame)


@pytest.mark.parametrize("points", [np.full((3, 2), 7.0), np.array([[1, 2], [3, np.nan], [5, 6]])])
def test_coinciding_or_infinite_points_are_refused(points):
    with pytest.raises(InputError, match="coincide or are not finite"):
        align(points.astype(np.float32), None, 256)


def test_crop_is_gray_outside_the_frame():
    frame = np.full((200, 200, 3), 255, np.uint8)
    half_out = align(TEMPLATE_AT_256.astype(np.float32) - (105, 0), None, 256)[0]
    image = crop(frame, half_out, 256).image
    assert (image[:128, :100] == OUTSIDE).all()
    assert (image[:128, 156:] == 255).all()


@pytest.mark.integration
@pytest.mark.parametrize("size", [(93, 70), (300, 257)])
def test_resize_equals_pytorch(size):
    torch = pytest.importorskip("torch")
    image = np.random.default_rng(6).standard_normal((256, 256, 3)).astype(np.float32)
    channels_first = torch.from_numpy(image).permute(2, 0, 1)[None]
    wanted = torch.nn.functional.interpolate(
        channels_first, size=size[::-1], mode="bicubic", antialias=True
    )
    found = resize_antialiased(image, size)
    assert np.abs(found - wanted[0].permute(1, 2, 0).numpy()).max() <= RESIZE_TOLERANCE


# The mouth mask equals the one that the networks were trained with.


def test_every_pixel_is_the_release_s(reference: Path) -> None:
    recorded = cv2.imread(str(reference / "mask_256.png"), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(mouth_mask(256), recorded / np.float32(255))


@pytest.mark.integration
@pytest.mark.parametrize("resolution", [256, 512])
def test_latent_mask_is_resized_as_the_release_does(resolution: int) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.tensor(mouth_mask(resolution))[None, None]
    wanted = torch.nn.functional.interpolate(whole, size=resolution // PIXELS_PER_LATENT)[
        0, 0
    ].numpy()
    np.testing.assert_array_equal(latent_mask(resolution), wanted)
    # only there the filter made fractions
    assert ((wanted > 0) & (wanted < 1)).any() == (resolution > 256)


@pytest.mark.parametrize("resolution", [128, 384])
def test_other_resolutions_have_the_same_outline(resolution: int) -> None:
    back = cv2.resize(mouth_mask(resolution), (256, 256), interpolation=cv2.INTER_LINEAR)
    assert ((back < 0.5) != (mouth_mask(256) < 0.5)).mean() < 0.003
