"""Videos with non-square pixels: the network gets an undistorted face, and it is pasted back in the same way."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from latentsync_trt import LipSync, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.square import SquarePixels, of_stored
from latentsync_trt.sync.faces import FaceFinder, Job
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Frame, Patch, UInt8Array
from tests.clips import write_sound
from tests.people import first_person
from tests.small import small_bundle

ASPECTS = [Fraction(64, 45), Fraction(12, 11), Fraction(2), Fraction(45, 64), Fraction(8, 9)]
RESOLUTION = 256
FACE_PSNR_DB = 32.0
"""The stored picture has down to half of the columns; interpolation to it and back leaves this much."""
PATCH_LEVELS = 6.0
"""Mean difference of the patches within their soft edges; 20 and more if pixels are taken for square."""
SOFT_EDGE_PX = 10
OUTLINE_PART = 0.05
"""Part of a patch whose pixels are changed in one picture only: a line around it, or 0.15 and more."""


def squeezed(frame: UInt8Array, aspect: Fraction) -> UInt8Array:
    """The picture as it is stored with pixels of that aspect."""
    size = (round(frame.shape[1] / aspect), frame.shape[0])
    interpolation = cv2.INTER_AREA if aspect > 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(frame, size, interpolation=interpolation), np.uint8)


def found(frame: UInt8Array, aspect: Fraction, detector: MediaPipeDetector) -> Job:
    finder = FaceFinder(detector, RESOLUTION, StageClock(), pixel_aspect=aspect)
    (job,) = finder.cut_out(finder.find(frame for frame in [Frame(0, Fraction(0), frame, None)]))
    assert job.face is not None
    return job


def whole(patch: Patch, frame: UInt8Array) -> tuple[UInt8Array, UInt8Array]:
    """The frame with the patch, and 255 where it changed."""
    result, changed = frame.copy(), np.zeros(frame.shape[:2], np.uint8)
    height, width = patch.changed.shape
    place = np.s_[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width]
    result[place][patch.changed] = patch.rgb[patch.changed]
    changed[place] = 255 * patch.changed
    return result, changed


@pytest.mark.parametrize("aspect", ASPECTS, ids=str)
def test_face_and_patch_are_those_of_square_pixels(aspect: Fraction) -> None:
    frame = first_person(1)[0]
    stored = squeezed(frame, aspect)
    with MediaPipeDetector() as detector:
        square, other = found(frame, Fraction(1), detector), found(stored, aspect, detector)
    assert square.face is not None and other.face is not None
    assert cv2.PSNR(square.face.image, other.face.image) > FACE_PSNR_DB
    painted = (255 - square.face.image).astype(np.uint16) * np.uint16(257)
    wanted, wanted_changed = whole(composite(frame, square.face, painted, mouth_mask(RESOLUTION)), frame)
    made, made_changed = whole(composite(stored, other.face, painted, mouth_mask(RESOLUTION)), stored)
    size = (frame.shape[1], frame.shape[0])
    unsqueezed = cv2.resize(made, size, interpolation=cv2.INTER_LINEAR)
    inside = cv2.erode(wanted_changed, np.ones((2 * SOFT_EDGE_PX + 1,) * 2, np.uint8)) > 0
    assert np.abs(unsqueezed[inside].astype(float) - wanted[inside]).mean() < PATCH_LEVELS
    outline = (cv2.resize(made_changed, size, interpolation=cv2.INTER_LINEAR) > 127) != (wanted_changed > 0)
    assert outline.sum() < OUTLINE_PART * inside.sum()


def test_pixel_aspects_out_of_this_world_are_refused() -> None:
    with MediaPipeDetector() as detector:
        for aspect in (Fraction(1, 1000), Fraction(0), Fraction(100)):
            with pytest.raises(InputError, match=r"setsar=1"):
                FaceFinder(detector, RESOLUTION, StageClock(), pixel_aspect=aspect)


@pytest.mark.parametrize("aspect", [Fraction(64, 45), Fraction(45, 64)], ids=str)
def test_parts_equal_the_whole(aspect: Fraction) -> None:
    stored = np.random.default_rng(3).integers(0, 256, (60, 90, 3), np.uint8)
    square = SquarePixels(stored, aspect)
    picture = np.asarray(square)
    assert picture.shape == square.shape == (60, round(90 * aspect), 3)
    for rows, columns in ((slice(3, 40), slice(0, 9)), (slice(0, 60), slice(31, 55)), (slice(50, 99), slice(40, 999))):
        part = square[rows, columns]
        assert part.shape == picture[rows, columns].shape
        assert np.abs(part.astype(int) - picture[rows, columns]).max() <= 8  # OpenCV interpolates in steps of 1/32 px
    assert square[5:5, 3:9].shape == (0, 6, 3)
    assert square[5:9, 300:400].shape == picture[5:9, 300:400].shape


def test_the_matrix_of_stored_pixels() -> None:
    square = SquarePixels(np.zeros((10, 45, 3), np.uint8), Fraction(64, 45))
    assert square.shape == (10, 64, 3)
    matrix = np.array([[2.0, 1.0, 5.0], [-1.0, 2.0, 7.0]])
    stored = of_stored(matrix, square.from_stored)
    # The right edge of the picture is 44.5 in stored pixels, 63.5 in square ones.
    assert np.allclose(stored @ (44.5, 3, 1), matrix @ (63.5, 3, 1))
    assert np.allclose(stored @ (-0.5, 3, 1), matrix @ (-0.5, 3, 1))


def test_a_run_reads_the_aspect_of_the_video(tmp_path: Path) -> None:
    aspect, frames = Fraction(2), first_person(3)
    clip = tmp_path / "anamorphic.mp4"
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "8", "preset": "ultrafast"})
        stream.height, stream.width = 480, 240
        stream.pix_fmt = "yuv420p"
        stream.codec_context.sample_aspect_ratio = aspect
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(squeezed(frame, aspect), format="rgb24")))
        container.mux(stream.encode(None))
    seen: list[tuple[int, ...]] = []

    class Watching(MediaPipeDetector):
        def detect(self, frame: UInt8Array) -> list:  # type: ignore[type-arg]
            seen.append(frame.shape)
            return super().detect(frame)

    sound = write_sound(tmp_path / "speech.wav", 0.12)
    with LipSync.from_bundle(small_bundle(), "cpu") as lip_sync, Watching() as detector:
        report = lip_sync.sync(clip, sound, tmp_path / "out.mp4", SyncOptions(steps=1), detector=detector)
    assert report.frames_with_face == 3
    assert seen == [(480, 480, 3)]


def test_stored_crop_is_undistorted() -> None:
    """A circle stays one."""
    y, x = np.mgrid[0:400, 0:400]
    circle = np.where(np.hypot(x - 200, y - 200) < 60, 255, 0).astype(np.uint8)[..., None].repeat(3, axis=2)
    square = SquarePixels(squeezed(circle, Fraction(2)), Fraction(2))
    matrix = of_stored(np.array([[1.0, 0.0, -95.0], [0.0, 1.0, -60.0]]), square.from_stored)
    image = crop(squeezed(circle, Fraction(2)), matrix, RESOLUTION).image[..., 0] > 127
    assert abs(int(image.any(axis=0).sum()) * 210 - int(image.any(axis=1).sum()) * 280) < 3 * 280
