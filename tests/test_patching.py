"""Samples outside a patch keep every bit, in planes of every format and through files; RGB of
planes, tile by tile.
"""

from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given

from latentsync_trt.media.color import apply_patch
from latentsync_trt.media.pictures import TILE_PX, LazyRgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import BoolArray, ColorTags, Patch, YuvPlanes
from tests.clips import open_writer, write_video
from tests.pictures import SAMPLINGS, changed_pixels, decoded_planes, noise, patched

SIZE = 47, 65
"""Height and width, odd."""


def weighed(patch: Patch, planes: YuvPlanes) -> tuple[BoolArray, BoolArray]:
    """The samples of luma and of chroma that the patch may change."""
    luma = changed_pixels(planes.y, patch)
    chroma = np.zeros(planes.u.shape, np.bool_)
    (down, across) = planes.pixels_per_sample
    rows, columns = np.nonzero(luma)
    chroma[rows // down, columns // across] = True
    return luma, chroma


def planes_of(picture: YuvPlanes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return picture.y, picture.u, picture.v


@given(patched())
def test_samples_outside_a_patch_keep_every_bit(example: tuple[YuvPlanes, Patch]) -> None:
    planes, patch = example
    before = [plane.copy() for plane in planes_of(planes)]
    painted = apply_patch(planes, patch)
    luma, chroma = weighed(patch, planes)
    for new, old, changed in zip(planes_of(painted), before, (luma, chroma, chroma), strict=True):
        assert np.array_equal(new[~changed], old[~changed])
        assert new.dtype == old.dtype
    assert (painted.color, painted.bits) == (planes.color, planes.bits)
    for plane, old in zip(planes_of(planes), before, strict=True):
        assert np.array_equal(plane, old)  # the source is kept for repeated pictures


@pytest.mark.parametrize("transfer", [1, 16, 18])
@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_painted_pixels_have_the_colors_of_the_patch(
    sampling: str, bits: int, transfer: int
) -> None:
    """Flat, as chroma is a mean; every depth, sampling and curve gives the level that was asked
    for.
    """
    level = np.array([200, 120, 60])
    planes = noise(SIZE, sampling, bits, ColorTags(9, transfer, 9, full_range=False))
    patch = Patch(0, 0, np.full((*SIZE, 3), 257 * level, np.uint16), np.ones(SIZE, np.float32))
    shown = np.asarray(LazyRgb(apply_patch(planes, patch)))
    # One code of 8 bits in HDR is several levels of the rendition.
    assert np.abs(shown - level).max() <= (6 if transfer != 1 and bits == 8 else 2)


FORMATS = [
    ("yuv420p", ColorTags(1, 1, 1, full_range=True)),
    ("yuv422p10le", ColorTags(9, 18, 9, full_range=False)),
    ("yuv444p16le", ColorTags()),
    ("bgr0", ColorTags()),
    ("gbrp12le", ColorTags(9, 16, 0, full_range=True)),
]


def noisy(pixel_format: str, seed: int) -> av.VideoFrame:
    """A picture whose samples are all random."""
    rng = np.random.default_rng(seed)
    frame = av.VideoFrame(SIZE[1], SIZE[0], pixel_format)
    bits = frame.format.components[0].bits
    for plane in frame.planes:
        codes = np.frombuffer(plane, np.uint8 if bits == 8 else np.uint16)
        codes[:] = rng.integers(0, 2**bits, codes.shape)
    return frame


@pytest.mark.parametrize(("pixel_format", "color"), FORMATS, ids=[name for name, _ in FORMATS])
def test_lossless_files_keep_every_sample_outside_a_patch(
    tmp_path: Path, pixel_format: str, color: ColorTags
) -> None:
    """Compared as PyAV decodes them: same pixel format, same samples."""
    frames = [noisy(pixel_format, seed) for seed in (5, 6)]
    output = tmp_path / "out.mkv"
    source = write_video(
        tmp_path / "in.mkv", frames, codec="ffv1", pixel_format=pixel_format, color=color
    )
    rng = np.random.default_rng(6)
    weight = (rng.random((20, 30)) < 0.5).astype(np.float32)
    patch = Patch(11, 9, rng.integers(0, 65536, (20, 30, 3), np.uint16), weight)
    with open_writer(output, probe(source), codec="ffv1") as writer:
        assert not writer.notices
        for frame in read_frames(source):
            writer.write(frame, [patch])
    planes = next(read_frames(source)).planes
    assert planes is not None
    luma, chroma = weighed(patch, planes)
    before = decoded_planes(source)
    after = decoded_planes(output)
    assert len(before) == len(after) == 2
    for (old_name, old), (new_name, new) in zip(before, after, strict=True):
        assert old_name == new_name == pixel_format
        for index, (mine, theirs) in enumerate(zip(old, new, strict=True)):
            if pixel_format == "bgr0":
                touched = luma.repeat(4, 1)
            else:
                touched = (luma, chroma, chroma)[index]
            assert np.array_equal(mine[~touched], theirs[~touched])
            assert not np.array_equal(mine, theirs)


# `LazyRgb`: tiles equal one conversion of the whole picture, which is near the standard's.


TILED_SIZES = [(TILE_PX, 2 * TILE_PX), (2 * TILE_PX + 3, TILE_PX + 65), (17 * TILE_PX, 3), (1, 1)]
ROUNDING_LEVELS = 0.62
BIAS_LEVELS = 0.09
"""OpenCV's coefficients have 10 bits: nearly always the nearest level."""
TILED = [
    ("420", 8, ColorTags(matrix=1)),
    ("420", 10, ColorTags(9, 16, 9)),
    ("440", 10, ColorTags(matrix=1)),
    ("444", 10, ColorTags(matrix=0, full_range=True)),
]


@pytest.mark.parametrize("size", TILED_SIZES)
@pytest.mark.parametrize(("sampling", "bits", "color"), TILED)
def test_tiles_equal_one_conversion_of_the_whole(
    size: tuple[int, int], sampling: str, bits: int, color: ColorTags
) -> None:
    given = noise(size, sampling, bits, color)
    whole = np.asarray(LazyRgb(given))
    picture = LazyRgb(given)
    assert picture.shape == whole.shape
    for rows, columns in (
        (slice(size[0] // 3, size[0] // 2 + 1), slice(size[1] // 4, size[1])),
        (slice(0, 1), slice(None)),
        (slice(size[0] + 7, size[0] + 9), slice(-1, None)),
    ):
        np.testing.assert_array_equal(picture[rows, columns], whole[rows, columns])


@pytest.mark.parametrize("sampling", ["420", "444"])
@pytest.mark.parametrize(
    ("matrix", "kr", "kb"), [(1, 0.2126, 0.0722), (5, 0.299, 0.114), (9, 0.2627, 0.0593)]
)
@pytest.mark.parametrize(("bits", "full_range"), [(8, False), (8, True), (10, False)])
def test_rgb_is_the_standards_rounded(
    sampling: str, matrix: int, kr: float, kb: float, bits: int, full_range: bool
) -> None:
    """ITU-T H.273, `MatrixCoefficients`, in double precision on a ramp of every luma with mixed
    chroma.
    """
    low, luma_codes, chroma_codes = (0, 255, 255) if full_range else (16, 219, 224)
    y = np.tile(np.arange(low, low + luma_codes + 1, dtype=np.uint8), (256, 1))
    u, v = (
        np.random.default_rng(1)
        .integers(96, 161, (2, 128, y.shape[1] // 2), np.uint8)
        .repeat(2, 1)
        .repeat(2, 2)
    )
    step = 2 if sampling == "420" else 1
    codes = (y, u[::step, ::step], v[::step, ::step])
    if bits == 10:
        codes = tuple(plane * np.uint16(4) for plane in codes)
    planes = YuvPlanes(*codes, ColorTags(matrix=matrix, full_range=full_range), bits)
    luma = (y - float(low)) / luma_codes
    cb = (u - 128.0) / chroma_codes
    cr = (v - 128.0) / chroma_codes
    red = luma + 2 * (1 - kr) * cr
    blue = luma + 2 * (1 - kb) * cb
    wanted = 255 * np.stack([red, (luma - kr * red - kb * blue) / (1 - kr - kb), blue], -1)
    apart = np.asarray(LazyRgb(planes)) - wanted.clip(0, 255)
    assert np.abs(apart).max() <= ROUNDING_LEVELS
    assert np.abs(apart.mean(axis=(0, 1))).max() <= BIAS_LEVELS
