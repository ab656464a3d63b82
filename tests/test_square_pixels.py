"""Videos with non-square pixels: the network gets an undistorted face, and it is pasted back in the
same way.
"""

from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from latentsync_trt import Helpers, LipSync, SyncOptions
from latentsync_trt.compositing.blend import Blend
from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import fit_face
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.types import AlignedFace, Picture, UInt8Array
from tests.clips import frame_at, write_sound, write_video
from tests.people import first_person
from tests.pictures import applied, changed_pixels

ASPECTS = [Fraction(64, 45), Fraction(2), Fraction(45, 64)]
RESOLUTION = 256
FACE_PSNR_DB = 32.0
"""The stored picture has down to half of the columns; interpolation to it and back leaves this
much.
"""
PATCH_LEVELS = 6.0
"""Mean difference of the patches within their soft edges; 20 and more if pixels are taken for
square.
"""
SOFT_EDGE_PX = 10


def squeezed(frame: UInt8Array, aspect: Fraction) -> UInt8Array:
    """The picture as it is stored with pixels of that aspect."""
    size = (round(frame.shape[1] / aspect), frame.shape[0])
    interpolation = cv2.INTER_AREA if aspect > 1 else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(frame, size, interpolation=interpolation), np.uint8)


def found(frame: UInt8Array, aspect: Fraction, detector: MediaPipeDetector) -> AlignedFace:
    finder = FaceFinder(FaceTracker(detector), RESOLUTION, pixel_aspect=aspect)
    (job,) = finder.cut_out(finder.find(frame for frame in [frame_at(0, frame)]))
    assert job.targets[0].face is not None
    return job.targets[0].face


@pytest.mark.parametrize("aspect", ASPECTS, ids=str)
def test_face_and_patch_are_those_of_square_pixels(
    detector: MediaPipeDetector, aspect: Fraction
) -> None:
    frame = first_person(1)[0]
    stored = squeezed(frame, aspect)
    upright = found(frame, Fraction(1), detector)
    other = found(stored, aspect, detector)
    assert cv2.PSNR(upright.image, other.image) > FACE_PSNR_DB
    painted = (255 - upright.image).astype(np.uint16) * np.uint16(257)
    patch = composite(frame, fit_face(upright, painted), Blend())
    wanted = applied(frame, patch)
    changed = changed_pixels(frame, patch).astype(np.uint8)
    made = applied(stored, composite(stored, fit_face(other, painted), Blend()))
    unsqueezed = cv2.resize(made, (frame.shape[1], frame.shape[0]), interpolation=cv2.INTER_LINEAR)
    inside = cv2.erode(changed, np.ones((2 * SOFT_EDGE_PX + 1,) * 2, np.uint8)) > 0
    assert np.abs(unsqueezed[inside].astype(float) - wanted[inside]).mean() < PATCH_LEVELS


def test_a_run_reads_the_aspect_of_the_video(tmp_path: Path, lip_sync: LipSync) -> None:
    """Three frames of 240×480 pixels, each twice as wide as high."""
    aspect = Fraction(2)
    frames = [squeezed(frame, aspect) for frame in first_person(3)]
    anamorphic = write_video(tmp_path / "anamorphic.mp4", frames, pixel_aspect=aspect)
    seen: list[tuple[int, ...]] = []

    class Watching(MediaPipeDetector):
        def search(self, picture: Picture, *args: object, **options: bool) -> list:  # type: ignore[type-arg]
            seen.append(picture.shape)
            return super().search(picture, *args, **options)  # type: ignore[arg-type]

    sound = write_sound(tmp_path / "speech.wav", 0.12)
    helpers = Helpers(Watching())
    report = lip_sync.sync(
        anamorphic, sound, tmp_path / "out.mp4", SyncOptions(steps=1), helpers=helpers
    )
    assert report.frames_with_face == 3
    assert seen == [(480, 480, 3)]
