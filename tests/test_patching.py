"""Samples outside a patch keep every bit, in planes of every format and through files."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given

from latentsync_trt.media.color import apply_patch, pixels_per_sample
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.types import BoolArray, ColorTags, Patch, YuvPlanes
from tests.clips import open_writer
from tests.pasted import changed_pixels
from tests.pictures import SAMPLINGS, decoded_planes, noise, patched

SIZE = 47, 65
"""Height and width, odd."""


def weighed(patch: Patch, planes: YuvPlanes) -> tuple[BoolArray, BoolArray]:
    """The samples of luma and of chroma that the patch may change."""
    luma = changed_pixels(planes.y, patch)
    chroma, (down, across) = np.zeros(planes.u.shape, np.bool_), pixels_per_sample(planes)
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


@given(patched())
def test_covered_samples_keep_nothing_of_the_old_picture(example: tuple[YuvPlanes, Patch]) -> None:
    planes, patch = example
    most = 2**planes.bits - 1
    inverse = YuvPlanes(*(most - plane for plane in planes_of(planes)), planes.color, planes.bits)
    one, other = (apply_patch(picture, patch) for picture in (planes, inverse))
    luma = np.zeros(planes.y.shape, np.bool_)
    height, width = patch.weight.shape
    luma[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width] = patch.weight == 1
    down, across = pixels_per_sample(planes)
    covered = np.ones(planes.u.shape, np.bool_)
    rows, columns = np.nonzero(~luma)
    covered[rows // down, columns // across] = False
    for mine, theirs, changed in zip(planes_of(one), planes_of(other), (luma, covered, covered), strict=True):
        assert np.array_equal(mine[changed], theirs[changed])


@pytest.mark.parametrize("transfer", [1, 16, 18])
@pytest.mark.parametrize("bits", [8, 10, 12])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_painted_pixels_have_the_colors_of_the_patch(sampling: str, bits: int, transfer: int) -> None:
    """Flat, as chroma is a mean; every depth, sampling and curve gives the level that was asked for."""
    level = np.array([200, 120, 60])
    planes = noise(SIZE, sampling, bits, ColorTags(9, transfer, 9, full_range=False))
    patch = Patch(0, 0, np.full((*SIZE, 3), 257 * level, np.uint16), np.ones(SIZE, np.float32))
    shown = np.asarray(LazyRgb(apply_patch(planes, patch)))
    # One code of 8 bits in HDR is several levels of the rendition.
    assert np.abs(shown - level).max() <= (6 if transfer != 1 and bits == 8 else 2)


FORMATS = [
    ("yuv420p", ColorTags(1, 1, 1, full_range=True)),
    ("yuv444p", ColorTags(1, 1, 1)),
    ("yuv420p10le", ColorTags(9, 16, 9, full_range=False)),
    ("yuv422p10le", ColorTags(9, 18, 9, full_range=False)),
    ("yuv444p16le", ColorTags()),
    ("bgr0", ColorTags()),
    ("gbrp12le", ColorTags(9, 16, 0, full_range=True)),
]


def write_noise(path: Path, pixel_format: str, color: ColorTags, size: tuple[int, int] = SIZE, count: int = 2) -> Path:
    """FFV1 whose samples are all random."""
    rng = np.random.default_rng(5)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        (stream.height, stream.width), stream.pix_fmt = size, pixel_format
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace = color.primaries, color.transfer, color.matrix
        context.color_range = {None: 0, False: 1, True: 2}[color.full_range]
        for index in range(count):
            frame = av.VideoFrame(size[1], size[0], pixel_format)
            bits = frame.format.components[0].bits
            for plane in frame.planes:
                codes = np.frombuffer(plane, np.uint8 if bits == 8 else np.uint16)
                codes[:] = rng.integers(0, 2**bits, codes.shape)
            frame.pts, frame.time_base = index, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("pixel_format", "color"), FORMATS, ids=[name for name, _ in FORMATS])
def test_lossless_files_keep_every_sample_outside_a_patch(tmp_path: Path, pixel_format: str, color: ColorTags) -> None:
    """Compared as PyAV decodes them: same pixel format, same samples."""
    source, output = write_noise(tmp_path / "in.mkv", pixel_format, color), tmp_path / "out.mkv"
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
    before, after = decoded_planes(source), decoded_planes(output)
    assert len(before) == len(after) == 2
    for (old_name, old), (new_name, new) in zip(before, after, strict=True):
        assert old_name == new_name == pixel_format
        for index, (mine, theirs) in enumerate(zip(old, new, strict=True)):
            touched = luma.repeat(4, 1) if pixel_format == "bgr0" else (luma, chroma, chroma)[index]
            assert np.array_equal(mine[~touched], theirs[~touched])
            assert not np.array_equal(mine, theirs)
