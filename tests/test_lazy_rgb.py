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
