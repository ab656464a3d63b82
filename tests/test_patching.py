"""Pixels outside a patch keep every byte: in planes, in RGB, and in a near-lossless file."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.patching import apply_patch, paint
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.media.writer import VideoWriter, write_pictures
from latentsync_trt.types import BoolArray, ColorTags, Frame, Patch, UInt8Array, YuvPlanes

LARGEST_SIDE_PX = 13
"""Odd and even, with room for patches that touch no edge, one, or all."""

COLORS = st.builds(
    ColorTags, st.just(1), st.just(1), st.sampled_from([1, 2, 5, 9]), st.sampled_from([None, False, True])
)


def levels(*shape: int) -> st.SearchStrategy[UInt8Array]:
    return arrays(np.uint8, shape, elements=st.integers(0, 255), fill=st.integers(0, 255))


@st.composite
def patched(draw: Callable[..., object]) -> tuple[YuvPlanes, Patch]:
    """A picture of random size and colors, and a patch that lies within it."""
    height, width = (draw(st.integers(1, LARGEST_SIDE_PX)) for _ in range(2))
    half = -(-height // 2), -(-width // 2)
    planes = YuvPlanes(draw(levels(height, width)), draw(levels(*half)), draw(levels(*half)), draw(COLORS))
    y_px, x_px = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    size = draw(st.integers(1, height - y_px)), draw(st.integers(1, width - x_px))
    return planes, Patch(x_px, y_px, draw(levels(*size, 3)), draw(arrays(np.bool_, size)))


def changed_pixels(patch: Patch, shape: tuple[int, ...]) -> BoolArray:
    """The pixels `(H, W)` of the whole picture that the patch replaces."""
    changed = np.zeros(shape[:2], np.bool_)
    height, width = patch.changed.shape
    changed[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width] = patch.changed
    return changed


@given(patched())
def test_planes_outside_a_patch_keep_every_byte(example: tuple[YuvPlanes, Patch]) -> None:
    planes, patch = example
    before = [plane.copy() for plane in (planes.y, planes.u, planes.v)]
    painted = apply_patch(planes, patch)
    luma = changed_pixels(patch, planes.y.shape)
    chroma = np.zeros(planes.u.shape, np.bool_)
    for row, column in zip(*np.nonzero(luma), strict=True):
        chroma[row // 2, column // 2] = True
    for new, old, changed in zip((painted.y, painted.u, painted.v), before, (luma, chroma, chroma), strict=True):
        assert np.array_equal(new[~changed], old[~changed])
    assert painted.color == planes.color
    for plane, old in zip((planes.y, planes.u, planes.v), before, strict=True):
        assert np.array_equal(plane, old)  # the source is kept for repeated pictures


@given(patched())
def test_covered_samples_keep_nothing_of_the_old_picture(example: tuple[YuvPlanes, Patch]) -> None:
    planes, patch = example
    inverse = YuvPlanes(255 - planes.y, 255 - planes.u, 255 - planes.v, planes.color)
    one, other = (apply_patch(picture, patch) for picture in (planes, inverse))
    luma = changed_pixels(patch, planes.y.shape)
    assert np.array_equal(one.y[luma], other.y[luma])
    covered = np.ones(planes.u.shape, np.bool_)
    for row, column in zip(*np.nonzero(~luma), strict=True):
        covered[row // 2, column // 2] = False
    assert np.array_equal(one.u[covered], other.u[covered])
    assert np.array_equal(one.v[covered], other.v[covered])


@given(patched())
def test_a_patch_of_the_same_pixels_changes_little(example: tuple[YuvPlanes, Patch]) -> None:
    """What is painted as it was comes out as it was, but for rounding; soft edges of a patch rely on it."""
    planes, patch = example
    calm = YuvPlanes(*(plane // 4 + 96 for plane in (planes.y, planes.u, planes.v)), planes.color)  # nothing clips
    rgb = np.asarray(LazyRgb(calm))
    height, width = patch.changed.shape
    same = rgb[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width]
    painted = apply_patch(calm, Patch(patch.x_px, patch.y_px, same, patch.changed))
    for new, old in zip((painted.y, painted.u, painted.v), (calm.y, calm.u, calm.v), strict=True):
        assert np.abs(new.astype(int) - old).max() <= 1


@given(patched(), st.data())
def test_rgb_outside_a_patch_keeps_every_byte(example: tuple[YuvPlanes, Patch], data: st.DataObject) -> None:
    planes, patch = example
    rgb = data.draw(levels(*planes.y.shape, 3))
    before, changed = rgb.copy(), changed_pixels(patch, rgb.shape)
    painted = paint(rgb, patch)
    assert np.array_equal(painted[~changed], before[~changed])
    assert np.array_equal(painted[changed], patch.rgb[patch.changed])
    assert np.array_equal(rgb, before)


@settings(max_examples=10)  # each writes and reads two files
@given(st.integers(0, 2**32 - 1), st.integers(8, 40), st.integers(8, 40), st.booleans())
def test_a_file_keeps_the_bytes_outside_a_patch(seed: int, height: int, width: int, lossless: bool) -> None:
    """Through the decoder, the writer and the decoder again; H.264 with crf 0 is lossless for 8-bit 4:2:0."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 256, (2, height, width, 3), np.uint8)
    changed = rng.random((height // 2, width // 2)) < 0.5
    patch = Patch(
        int(rng.integers(width // 2)), int(rng.integers(height // 2)), pictures[0, : height // 2, : width // 2], changed
    )
    with TemporaryDirectory() as folder:
        source, output = Path(folder) / "in.mkv", Path(folder) / "out.mkv"
        write_pictures(source, pictures, lossless=lossless)
        with VideoWriter(output, probe(source), crf=0, lossless=lossless) as writer:
            for frame in read_frames(source, rgb_only=lossless):
                writer.write(frame, patch)
        frames = zip(read_frames(source, rgb_only=lossless), read_frames(output, rgb_only=lossless), strict=True)
        for old, new in frames:
            compared = (lambda frame: frame.rgb) if lossless else luma
            untouched = ~changed_pixels(patch, compared(old).shape)
            assert np.array_equal(compared(new)[untouched], compared(old)[untouched])


def luma(frame: Frame) -> UInt8Array:
    assert frame.planes is not None
    return frame.planes.y


@pytest.mark.parametrize("fill", [0, 255])
def test_a_file_keeps_codes_beyond_the_limited_range(tmp_path: Path, fill: int) -> None:
    planes = YuvPlanes(
        *(np.full(size, fill, np.uint8) for size in ((32, 48), (16, 24), (16, 24))), ColorTags(1, 1, 1, False)
    )
    with VideoWriter(tmp_path / "out.mp4", None, crf=0) as writer:
        writer.write(Frame(0, Fraction(0), LazyRgb(planes), planes))
    (frame,) = read_frames(tmp_path / "out.mp4")
    assert frame.planes is not None
    assert np.array_equal(frame.planes.y, planes.y)
    assert np.array_equal(frame.planes.u, planes.u)
