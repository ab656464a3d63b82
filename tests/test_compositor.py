"""Generated faces go back into their frames, and nothing else changes."""

from pathlib import Path

import av
import numpy as np
import pytest

from latentsync_trt.face.align import align, crop
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import composite, paste
from latentsync_trt.types import AlignedFace
from tests.pictures import applied

LEAST_PSNR_DB = 45.0
"""The release truncates, we round: half a level on average, 52 dB."""
OPAQUE = 1 - 0.5 / 255
WHITE = np.full((256, 256, 3), 65535, np.uint16)
POINTS = np.array([[47.6, 56.0], [162.4, 56.0], [105.0, 112.0]], np.float32)


@pytest.fixture(scope="module")
def recorded(reference: Path) -> dict[str, np.ndarray]:
    with np.load(reference / "small" / "align.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def last_frame(assets: Path) -> np.ndarray:
    with av.open(str(assets / "demo1_video.mp4")) as container:
        *_, (_, picture) = zip(range(34), container.decode(video=0), strict=False)
        return picture.to_ndarray(format="rgb24")


def face_at(frame: np.ndarray, x: float, y: float, scale: float = 1.0) -> AlignedFace:
    return crop(frame, align(np.rint(scale * POINTS) + np.float32([x, y]), None, 256)[0], 256)


@pytest.mark.parametrize("resolution", [256, 512])
def test_paste_matches_the_release(recorded, last_frame, resolution):
    upright = recorded[f"paste{resolution}_face"].astype(np.float32) * 127.5 + 127.5
    matrix = recorded[f"matrices{resolution}"][33].astype(np.float64)
    found = applied(last_frame, paste(last_frame, upright, matrix))
    top, bottom, left, right = recorded[f"paste{resolution}_box"]
    apart = found[top:bottom, left:right].astype(np.float64) - recorded[f"paste{resolution}_result"]
    assert 10 * np.log10(255**2 / (apart**2).mean()) >= LEAST_PSNR_DB
    found[top:bottom, left:right] = last_frame[top:bottom, left:right]
    assert np.array_equal(found, last_frame)


@pytest.mark.parametrize("resolution", [256, 512])
@pytest.mark.parametrize("scale", [0.15, 1.0, 3.0])
def test_an_unchanged_face_gives_the_frame_back(resolution, scale):
    """A generated face equal to the aligned image gives the frame back, at any size of the face and the network."""
    y, x = np.mgrid[0:900, 0:900].astype(np.float32)
    frame = np.stack([x / 4, y / 4, (x + y) / 8], axis=-1).astype(np.uint8)
    matrix, _ = align(scale * POINTS + np.float32([120, 100]), None, resolution)
    face = crop(frame, matrix, resolution)
    painted = face.image * np.uint16(257)
    result = applied(frame, composite(frame, face, painted, mouth_mask(resolution)))
    assert np.abs(result.astype(int) - frame).max() <= 2


def test_a_small_face_is_shrunk_without_aliasing():
    frame = np.full((200, 200, 3), 127, np.uint8)
    stripes = np.where(np.arange(256) % 2, 65535, 0).astype(np.uint16)
    painted = np.broadcast_to(stripes[:, None, None], (256, 256, 3)).copy()
    patch = composite(frame, face_at(frame, 80, 80, scale=0.2), painted, mouth_mask(256))
    assert patch.weight.any()
    assert np.abs(patch.rgb[patch.weight > 0] / 257 - 127).max() <= 10


@pytest.mark.parametrize("offset", [(330, 60), (90, 260), (-110, -130)])
def test_a_face_partly_outside_is_pasted_up_to_the_border(offset):
    frame = np.zeros((400, 420, 3), np.uint8)
    patch = composite(frame, face_at(frame, *offset), WHITE, mouth_mask(256))
    height, width = patch.weight.shape
    assert height and width
    assert 0 <= patch.x_px <= 420 - width and 0 <= patch.y_px <= 400 - height
    edges = {
        "left": patch.x_px == 0,
        "right": patch.x_px + width == 420,
        "bottom": patch.y_px + height == 400,
    }
    expected = {"left": offset[0] < 0, "right": offset[0] > 300, "bottom": offset[1] > 200}
    assert edges == expected
    border = {"left": patch.weight[:, 0], "right": patch.weight[:, -1], "bottom": patch.weight[-1]}
    # The picture is cut there, the face is not: no fading towards the border.
    assert all(border[side].max() > OPAQUE for side, cut in expected.items() if cut)
