"""Only the face is pasted, in the colors around it, and steadily."""

from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import av
import cv2
import numpy as np
import pytest

from latentsync_trt.compositing.blend import Blend, FaceBlender
from latentsync_trt.compositing.outline import OVAL, drawn
from latentsync_trt.compositing.paste import composite
from latentsync_trt.compositing.resize import fit_face
from latentsync_trt.face.align import align, crop, crop_size_px, rescaled
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.types import (
    AlignedFace,
    Face,
    Float32Array,
    Patch,
    Picture,
    UInt8Array,
    UInt16Array,
)
from tests.people import first_person
from tests.pictures import applied, changed_pixels

OneFace = tuple[UInt8Array, Face, AlignedFace]
"""A frame, its face, and that aligned."""

RESOLUTION = 256
NECK = 0.06
"""How far below a face its chin is covered, as a part of its height."""
CHIN = 152
"""FaceMesh's point on the chin."""
COVERED = 0.99
SKIN_LEVELS = 2.0
"""How exactly colors are brought back: the ring of skin that is compared is a tenth of the face."""


class MovedChin:
    """A mesher that finds the detector's mesh with the lower part of the face moved by `shift` of
    its height.
    """

    def __init__(self, detector: MediaPipeDetector, shift: float) -> None:
        self.detector = detector
        self.shift = shift

    def mesh(self, picture: Picture, around: Face) -> Float32Array | None:
        found = self.detector.mesh(picture, around)
        assert found is not None
        top = found[:, 1].min()
        bottom = found[:, 1].max()
        low = np.clip((found[:, 1] - (top + bottom) / 2) / (bottom - top) * 2, 0, 1)
        found[:, 1] += self.shift * (bottom - top) * low
        return found


@pytest.fixture(scope="module")
def portrait(detector: MediaPipeDetector) -> OneFace:
    return seen(first_person(1)[0], detector)


def seen(frame: UInt8Array, detector: MediaPipeDetector) -> OneFace:
    tracked = max(detector.detect(frame), key=lambda face: face.box[2] - face.box[0])
    return frame, tracked, crop(frame, align(tracked.points, None, RESOLUTION)[0], RESOLUTION)


def as_painted(image: np.ndarray) -> UInt16Array:
    return np.rint(np.clip(image, 0, 255) * 257.0).astype(np.uint16)


def paste(
    blender: FaceBlender,
    seen_face: OneFace,
    painted: np.ndarray,
    track: int = 0,
    time_s: Fraction = Fraction(0),
) -> tuple[Patch, Float32Array | None]:
    """With the points of the painted face."""
    frame, tracked, face = seen_face
    inspected = blender.inspect_face(frame, fit_face(face, as_painted(painted)), tracked)
    patch = composite(
        frame, fit_face(face, as_painted(painted)), blender.blend(track, time_s, inspected)
    )
    return patch, inspected.painted_mesh_in_frame


def weights_in(frame: UInt8Array, patch: Patch) -> Float32Array:
    """The weight of the patch at every pixel of the frame."""
    weights = np.zeros(frame.shape[:2], np.float32)
    height, width = patch.weight.shape
    weights[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width] = patch.weight
    return weights


def outside(
    frame: UInt8Array, tracked: Face, patch: Patch, painted_mesh: Float32Array | None
) -> float:
    """Share of the changed pixels beside both faces; below the chin is the neck."""
    assert tracked.landmarks is not None and painted_mesh is not None
    faces = [mesh[list(OVAL)] for mesh in (tracked.landmarks, painted_mesh)]
    face = drawn(faces, (frame.shape[1], frame.shape[0])) > 0
    changed = (applied(frame, patch) != frame).any(axis=-1)
    neck = np.zeros_like(face)
    reach = round(NECK * float(np.ptp(tracked.landmarks[:, 1])))
    for down in range(1, reach + 1):
        neck[down:] |= face[:-down]
    return float((changed & ~face & ~neck).sum() / changed.sum())


@pytest.mark.integration
@pytest.mark.parametrize("number", [1, 2, 3])
def test_nothing_changes_beside_the_face_of_people(
    number: int, assets: Path, detector: MediaPipeDetector
) -> None:
    """With what a network that does not know them may paint: smears of color, in which faces are
    found by chance.
    """
    random = np.random.default_rng(number)
    with av.open(str(assets / f"demo{number}_video.mp4")) as container:
        pictures = [
            picture.to_ndarray(format="rgb24")
            for picture in islice(container.decode(video=0), 0, 24, 6)
        ]
    blender = FaceBlender(detector)
    for index, picture in enumerate(pictures):
        noise = random.integers(0, 65536, (8, 8, 3), np.uint16)
        smears = (
            cv2.resize(noise, (RESOLUTION, RESOLUTION), interpolation=cv2.INTER_CUBIC).astype(
                np.float32
            )
            / 257
        )
        item = seen(picture, detector)
        painted = 0.5 * item[2].image + 0.5 * smears
        time_s = Fraction(index, 25)
        assert outside(picture, item[1], *paste(blender, item, painted, 0, time_s)) == 0


def test_nothing_changes_beside_a_face_that_shrinks(portrait, detector):
    """The outline is a running mean, which trails behind."""
    frame, tracked, face = portrait
    middle = tracked.landmarks.mean(axis=0)
    wide = replace(tracked, landmarks=np.float32(middle + (tracked.landmarks - middle) * (1.2, 1)))
    blender = FaceBlender(detector)
    painted = face.image.astype(float) + 40
    for index, each in enumerate((wide, tracked)):
        pasted = paste(blender, (frame, each, face), painted, 0, Fraction(index, 25))
        assert outside(frame, each, *pasted) == 0


@pytest.mark.parametrize("shift", [-0.08, 0.08])
def test_one_chin_is_left(portrait, detector, shift):
    """The source's chin is replaced, whether the painted one is higher or lower."""
    frame, tracked, face = portrait
    patch, _ = paste(FaceBlender(MovedChin(detector, shift)), portrait, face.image)
    x, y = tracked.landmarks[CHIN]
    assert weights_in(frame, patch)[int(y), int(x)] > COVERED


def test_without_an_outline_the_mask_decides(portrait):
    frame, tracked, face = portrait
    painted = 255 - face.image
    blind = SimpleNamespace(mesh=lambda *_: None)
    patch, _ = paste(FaceBlender(blind), (frame, replace(tracked, landmarks=None), face), painted)
    whole = composite(frame, fit_face(face, as_painted(painted)), Blend())
    assert np.array_equal(patch.weight, whole.weight)
    assert np.array_equal(patch.rgb, whole.rgb)


def test_colors_follow_the_skin_around(portrait, detector):
    frame, _, face = portrait
    painted = 128 + 0.9 * (face.image.astype(float) - 128) + np.array([-2, -8, -14])
    corrected, _ = paste(FaceBlender(detector), portrait, painted)
    plain = composite(frame, fit_face(face, as_painted(painted)), Blend())
    assert off_color(frame, corrected) < SKIN_LEVELS < off_color(frame, plain)


def off_color(frame: UInt8Array, patch: Patch) -> float:
    """Mean difference in levels between a frame and what replaces it."""
    return float(
        np.abs(applied(frame, patch).astype(float) - frame)[changed_pixels(frame, patch)].mean()
    )


def test_colors_do_not_flicker(portrait, detector):
    """What the painting flickers by, the correction does not follow at once."""
    blender = FaceBlender(detector)
    offsets = []
    for index in range(8):
        flicker = 6 * (index % 2)
        patch, _ = paste(
            blender, portrait, portrait[2].image.astype(float) + flicker, 0, Fraction(index, 25)
        )
        offsets.append(float(patch.rgb[20:40, 20:40].mean()) / 257 - flicker)
    assert np.abs(np.diff(offsets)).max() < 3


def test_outlines_do_not_jump(portrait, detector):
    mesher = MovedChin(detector, 0.0)
    blender = FaceBlender(mesher)
    steady = []
    alone = []
    for index in range(6):
        mesher.shift = 0.02 * (index % 2)
        for used, weights in ((blender, steady), (FaceBlender(mesher), alone)):
            patch, _ = paste(used, portrait, portrait[2].image, 0, Fraction(index, 25))
            weights.append(weights_in(portrait[0], patch))

    def changes(weights: list[np.ndarray]) -> float:
        return sum(float(np.abs(one - other).sum()) for one, other in pairwise(weights[2:]))

    assert changes(steady) < 0.6 * changes(alone)


def test_larger_faces_are_pasted_at_their_own_resolution(detector):
    """A painted face of twice the size, as from an enhancer, shows its details where the frame has
    room for them.
    """
    large = cv2.resize(first_person(1)[0], None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC)
    texture = np.random.default_rng(5).integers(-40, 40, (*large.shape[:2], 1))
    textured = large + 4 * cv2.GaussianBlur(texture.astype(np.float32), (0, 0), 2)[..., None]
    frame, _, face = seen(np.clip(textured, 0, 255).astype(np.uint8), detector)
    scaled = crop(frame, rescaled(face, crop_size_px(2 * RESOLUTION)), 2 * RESOLUTION)
    apart = {
        side: off_color(frame, composite(frame, fit_face(face, as_painted(image)), Blend()))
        for side, image in ((RESOLUTION, face.image), (2 * RESOLUTION, scaled.image))
    }
    assert apart[2 * RESOLUTION] < 0.8 * apart[RESOLUTION]
