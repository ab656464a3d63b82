"""Search at random: pasting changes the pixels that it says, inside the frame and the face, and no others."""

from math import cos, sin

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from latentsync_trt.face.align import crop_size_px, frame_rectangle
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import composite, paste
from latentsync_trt.types import AlignedFace, Float32Array, Float64Array, UInt8Array
from tests.pictures import applied

RESOLUTION = 64
SIZE = crop_size_px(RESOLUTION)
ROUNDING = 1
"""Levels: interpolation in float32, then rounding."""
NEAR_PX = 1.0
"""Bilinear samples reach less than a pixel beyond the centers of the outermost pixels."""
MOST_SCALE = 1.2
"""Faces of 45 px: smaller ones are not tracked."""
KEPT_PX = 2
seeds = st.integers(0, 2**32 - 1)


@st.composite
def frames(draw: st.DrawFn) -> UInt8Array:
    height, width = draw(st.integers(1, 150)), draw(st.integers(1, 150))
    random = np.random.default_rng(draw(seeds))
    if draw(st.booleans()):
        return np.full((height, width, 3), random.integers(0, 256), np.uint8)
    return random.integers(0, 256, (height, width, 3), np.uint8)


@st.composite
def matrices(draw: st.DrawFn, shape: tuple[int, ...]) -> Float64Array:
    """Frame → crop: any rotation, size and pixel aspect, and a position in, beside or far from the frame."""
    angle, scale = draw(st.floats(-3.2, 3.2)), draw(st.floats(0.05, MOST_SCALE))
    aspect = draw(st.sampled_from([1.0, 64 / 45, 45 / 64]) | st.floats(0.5, 2))
    linear = scale * np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]]) @ np.diag([aspect, 1])
    where = np.array([draw(st.floats(-1, 2)) * shape[1], draw(st.floats(-1, 2)) * shape[0]])
    return np.column_stack([linear, np.array(SIZE) / 2 - linear @ where])


@st.composite
def masks(draw: st.DrawFn) -> Float32Array:
    """The mouth's, or another one that keeps the outermost pixels, as that does."""
    kind = draw(st.sampled_from(["mouth", "all", "nothing", "noise", "square"]))
    if kind == "mouth":
        return mouth_mask(RESOLUTION)
    mask = np.full((RESOLUTION, RESOLUTION), kind in ("nothing", "square"), np.float32)
    if kind == "noise":
        mask = np.random.default_rng(draw(seeds)).random((RESOLUTION, RESOLUTION), np.float32)
    if kind == "square":
        mask[draw(st.integers(0, 63)) :, draw(st.integers(0, 63)) :] = 0
    mask[:KEPT_PX] = mask[-KEPT_PX:] = mask[:, :KEPT_PX] = mask[:, -KEPT_PX:] = 1
    return mask


def in_crop(matrix: Float64Array, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Positions in the crop of pixels of the frame: `(2, n)`."""
    return matrix[:, :2] @ np.stack([x, y]) + matrix[:, 2:]


@given(st.data(), frames(), masks(), seeds)
def test_nothing_changes_outside_the_patch(
    data: st.DataObject, frame: UInt8Array, mask: Float32Array, seed: int
) -> None:
    matrix = data.draw(matrices(frame.shape))
    painted = np.random.default_rng(seed).integers(0, 65536, (RESOLUTION, RESOLUTION, 3), np.uint16)
    before = frame.copy()
    patch = composite(frame, AlignedFace(np.zeros((0, 0, 3), np.uint8), matrix, SIZE), painted, mask)
    assert np.array_equal(frame, before)
    height, width = patch.weight.shape
    assert patch.rgb.shape == (height, width, 3)
    assert (patch.rgb.dtype, patch.weight.dtype) == (np.uint16, np.float32)
    if not patch.weight.size:
        return
    assert patch.weight.min() >= 0
    assert patch.weight.max() <= 1
    assert 0 <= patch.x_px <= frame.shape[1] - width
    assert 0 <= patch.y_px <= frame.shape[0] - height
    edges = (patch.weight[0], patch.weight[-1], patch.weight[:, 0], patch.weight[:, -1])
    assert all(edge.any() for edge in edges), "larger than what changed"


@given(st.data(), frames(), masks())
def test_every_changed_pixel_lies_in_the_face_and_its_rectangle(
    data: st.DataObject, frame: UInt8Array, mask: Float32Array
) -> None:
    matrix = data.draw(matrices(frame.shape))
    black = np.zeros((RESOLUTION, RESOLUTION, 3), np.uint16)
    face = AlignedFace(np.zeros((0, 0, 3), np.uint8), matrix, SIZE)
    patch = composite(np.full_like(frame, 255), face, black, mask)
    rows, columns = np.nonzero(patch.weight)
    x, y = columns + patch.x_px, rows + patch.y_px
    left, top, right, bottom = frame_rectangle(matrix, SIZE, frame.shape, 0)
    assert ((x >= left) & (x < right) & (y >= top) & (y < bottom)).all()
    places = in_crop(matrix, x, y)
    assert (places > -NEAR_PX).all()
    assert (places < np.array(SIZE)[:, None] - 1 + NEAR_PX).all()


@given(st.data(), frames(), masks(), st.integers(0, 255))
def test_levels_lie_between_the_frame_and_the_face(
    data: st.DataObject, frame: UInt8Array, mask: Float32Array, level: int
) -> None:
    matrix = data.draw(matrices(frame.shape))
    painted = np.full((RESOLUTION, RESOLUTION, 3), level * 257, np.uint16)
    patch = composite(frame, AlignedFace(np.zeros((0, 0, 3), np.uint8), matrix, SIZE), painted, mask)
    own, made = frame.astype(int), applied(frame, patch).astype(int)
    assert (made <= np.maximum(own, level) + ROUNDING).all()
    assert (made >= np.minimum(own, level) - ROUNDING).all()


@given(st.data(), frames())
def test_a_part_of_the_frame_gives_the_same_patch(data: st.DataObject, frame: UInt8Array) -> None:
    """What lies outside the face's rectangle is never read."""
    matrix = data.draw(matrices(frame.shape))
    left, top, right, bottom = frame_rectangle(matrix, SIZE, frame.shape, 2)
    assume(left < right and top < bottom)
    hidden = np.full_like(frame, 9)
    hidden[top:bottom, left:right] = frame[top:bottom, left:right]
    face = np.full((SIZE[1], SIZE[0], 3), 200, np.float32)
    one, other = paste(frame, face, matrix), paste(hidden, face, matrix)
    assert (one.x_px, one.y_px) == (other.x_px, other.y_px)
    assert np.array_equal(one.rgb, other.rgb)
    assert np.array_equal(one.weight, other.weight)
