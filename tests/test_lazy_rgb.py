"""`LazyRgb`: tiles equal one conversion of the whole picture, and only accessed tiles are converted."""

import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from latentsync_trt.media.color import coding_of
from latentsync_trt.media.conversion import EXACT_REPEATING, converted, frame_of, packed_view
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.media.pictures import TILE_PX, LazyRgb
from latentsync_trt.types import ColorTags, UInt8Array, YuvPlanes
from tests.pictures import noise

SIZES = [(TILE_PX, 2 * TILE_PX), (2 * TILE_PX + 3, TILE_PX + 65), (17 * TILE_PX, 3), (1, 1), (70, 2 * TILE_PX - 1)]
ROUNDING_LEVELS, BIAS_LEVELS = 0.53, 0.02
"""swscale computes in fixed point: nearly always the nearest level. Its usual conversion is 3 off, by 1 in the mean."""
FORMATS = [
    ("420", 8, ColorTags(matrix=1)),
    ("420", 8, ColorTags(matrix=5, full_range=True)),
    ("420", 10, ColorTags(9, 16, 9)),
    ("440", 10, ColorTags(matrix=1)),
    ("444", 10, ColorTags(matrix=0, full_range=True)),
]


def converted_whole(given: YuvPlanes) -> UInt8Array:
    height, width = given.y.shape
    coding, hdr = coding_of(given.color, width, height), hdr_of(given.color.transfer)
    even = frame_of(given, width + width % 2, height + height % 2)
    frame = converted(VideoReformatter(), even, "rgb48le" if hdr else "rgb24", coding, None, EXACT_REPEATING)
    rgb = packed_view(frame)[:height, :width].copy()
    return hdr.sdr(rgb) if hdr else rgb


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("sampling", "bits", "color"), FORMATS)
def test_tiles_equal_one_conversion_of_the_whole(
    size: tuple[int, int], sampling: str, bits: int, color: ColorTags
) -> None:
    given = noise(size, sampling, bits, color)
    whole = converted_whole(given)
    picture = LazyRgb(given)
    assert picture.shape == whole.shape
    for rows, columns in (
        (slice(size[0] // 3, size[0] // 2 + 1), slice(size[1] // 4, size[1])),
        (slice(0, 1), slice(None)),
        (slice(5, 5), slice(None)),
        (slice(size[0] + 7, size[0] + 9), slice(-1, None)),
    ):
        np.testing.assert_array_equal(picture[rows, columns], whole[rows, columns])
    np.testing.assert_array_equal(np.asarray(picture), whole)


@pytest.mark.parametrize("sampling", ["420", "444"])
@pytest.mark.parametrize(("matrix", "kr", "kb"), [(1, 0.2126, 0.0722), (5, 0.299, 0.114), (9, 0.2627, 0.0593)])
@pytest.mark.parametrize("full_range", [False, True])
def test_rgb_is_the_standards_rounded(sampling: str, matrix: int, kr: float, kb: float, full_range: bool) -> None:
    """ITU-T H.273, `MatrixCoefficients`, in double precision on a ramp of every luma with mixed chroma."""
    low, luma_codes, chroma_codes = (0, 255, 255) if full_range else (16, 219, 224)
    y = np.tile(np.arange(low, low + luma_codes + 1, dtype=np.uint8), (256, 1))
    u, v = np.random.default_rng(1).integers(96, 161, (2, 128, y.shape[1] // 2), np.uint8).repeat(2, 1).repeat(2, 2)
    step = 2 if sampling == "420" else 1
    planes = YuvPlanes(y, u[::step, ::step], v[::step, ::step], ColorTags(matrix=matrix, full_range=full_range))
    luma, cb, cr = (y - float(low)) / luma_codes, (u - 128.0) / chroma_codes, (v - 128.0) / chroma_codes
    red, blue = luma + 2 * (1 - kr) * cr, luma + 2 * (1 - kb) * cb
    wanted = 255 * np.stack([red, (luma - kr * red - kb * blue) / (1 - kr - kb), blue], -1)
    apart = np.asarray(LazyRgb(planes)) - wanted.clip(0, 255)
    assert np.abs(apart).max() <= ROUNDING_LEVELS
    assert np.abs(apart.mean(axis=(0, 1))).max() <= BIAS_LEVELS
