"""Generated faces go back into their frames, and nothing else changes, also in a search at
random.
"""

from math import cos, sin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt.compositing.blend import Blend
from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import fit_face
from latentsync_trt.face.align import align, crop, crop_size_px
from latentsync_trt.types import AlignedFace, Float64Array, UInt8Array
from tests.pictures import applied

OPAQUE = 1 - 0.5 / 255
WHITE = np.full((256, 256, 3), 65535, np.uint16)
POINTS = np.array([[47.6, 56.0], [162.4, 56.0], [105.0, 112.0]], np.float32)


def face_at(frame: np.ndarray, x: float, y: float, scale: float = 1.0) -> AlignedFace:
    return crop(frame, align(np.rint(scale * POINTS) + np.float32([x, y]), None, 256)[0], 256)


@pytest.mark.parametrize("resolution", [256, 512])
@pytest.mark.parametrize("scale", [0.15, 1.0, 3.0])
def test_an_unchanged_face_gives_the_frame_back(resolution, scale):
    """A generated face equal to the aligned image gives the frame back, at any size of the face and
    the network.
    """
    y, x = np.mgrid[0:900, 0:900].astype(np.float32)
    frame = np.stack([x / 4, y / 4, (x + y) / 8], axis=-1).astype(np.uint8)
    matrix, _ = align(scale * POINTS + np.float32([120, 100]), None, resolution)
    face = crop(frame, matrix, resolution)
    painted = face.image * np.uint16(257)
    result = applied(frame, composite(frame, fit_face(face, painted), Blend()))
    assert np.abs(result.astype(int) - frame).max() <= 2


def test_a_small_face_is_shrunk_without_aliasing():
    frame = np.full((200, 200, 3), 127, np.uint8)
    stripes = np.where(np.arange(256) % 2, 65535, 0).astype(np.uint16)
    painted = np.broadcast_to(stripes[:, None, None], (256, 256, 3)).copy()
    patch = composite(frame, fit_face(face_at(frame, 80, 80, scale=0.2), painted), Blend())
    assert patch.weight.any()
    assert np.abs(patch.rgb[patch.weight > 0] / 257 - 127).max() <= 10


@pytest.mark.parametrize(
    ("side", "offset"), [("right", (330, 60)), ("bottom", (90, 260)), ("left", (-110, -130))]
)
def test_a_face_partly_outside_is_pasted_up_to_the_border(side, offset):
    frame = np.zeros((400, 420, 3), np.uint8)
    patch = composite(frame, fit_face(face_at(frame, *offset), WHITE), Blend())
    height, width = patch.weight.shape
    edges = {
        "left": patch.x_px == 0,
        "right": patch.x_px + width == 420,
        "bottom": patch.y_px + height == 400,
    }
    assert [edge for edge, reached in edges.items() if reached] == [side]
    border = {"left": patch.weight[:, 0], "right": patch.weight[:, -1], "bottom": patch.weight[-1]}[
        side
    ]
    assert border.max() > OPAQUE  # the picture is cut there, the face is not: no fading


RESOLUTION = 64
SIZE = crop_size_px(RESOLUTION)
ROUNDING = 1
"""Levels: interpolation in float32, then rounding."""
NEAR_PX = 1.0
"""Bilinear samples reach less than a pixel beyond the centers of the outermost pixels."""
MOST_SCALE = 1.2
"""Faces of 45 px: smaller ones are not tracked."""
seeds = st.integers(0, 2**32 - 1)


@st.composite
def frames(draw: st.DrawFn) -> UInt8Array:
    height = draw(st.integers(1, 150))
    width = draw(st.integers(1, 150))
    random = np.random.default_rng(draw(seeds))
    if draw(st.booleans()):
        return np.full((height, width, 3), random.integers(0, 256), np.uint8)
    return random.integers(0, 256, (height, width, 3), np.uint8)


@st.composite
def matrices(draw: st.DrawFn, shape: tuple[int, ...]) -> Float64Array:
    """Frame → crop: any rotation, size and pixel aspect, and a position in, beside or far from the
    frame.
    """
    angle = draw(st.floats(-3.2, 3.2))
    scale = draw(st.floats(0.05, MOST_SCALE))
    aspect = draw(st.sampled_from([1.0, 64 / 45, 45 / 64]) | st.floats(0.5, 2))
    linear = (
        scale
        * np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
        @ np.diag([aspect, 1])
    )
    where = np.array([draw(st.floats(-1, 2)) * shape[1], draw(st.floats(-1, 2)) * shape[0]])
    return np.column_stack([linear, np.array(SIZE) / 2 - linear @ where])


@given(st.data(), frames(), st.integers(0, 255))
def test_only_the_face_changes_to_levels_between_the_old_and_the_new(
    data: st.DataObject, frame: UInt8Array, level: int
) -> None:
    matrix = data.draw(matrices(frame.shape))
    painted = np.full((RESOLUTION, RESOLUTION, 3), level * 257, np.uint16)
    before = frame.copy()
    face = AlignedFace(np.zeros(painted.shape, np.uint8), matrix, SIZE)
    patch = composite(frame, fit_face(face, painted), Blend())
    assert np.array_equal(frame, before)
    own = frame.astype(int)
    made = applied(frame, patch).astype(int)
    assert (made <= np.maximum(own, level) + ROUNDING).all()
    assert (made >= np.minimum(own, level) - ROUNDING).all()
    height, width = patch.weight.shape
    if not patch.weight.size:
        return
    assert 0 <= patch.weight.min() <= patch.weight.max() <= 1
    assert 0 <= patch.x_px <= frame.shape[1] - width
    assert 0 <= patch.y_px <= frame.shape[0] - height
    edges = (patch.weight[0], patch.weight[-1], patch.weight[:, 0], patch.weight[:, -1])
    assert all(edge.any() for edge in edges), "larger than what changed"
    rows, columns = np.nonzero(patch.weight)
    x = columns + patch.x_px
    y = rows + patch.y_px
    places = matrix[:, :2] @ np.stack([x, y]) + matrix[:, 2:]
    assert (places > -NEAR_PX).all()
    assert (places < np.array(SIZE)[:, None] - 1 + NEAR_PX).all()
