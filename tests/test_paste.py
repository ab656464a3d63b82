"""Only the face is pasted, in the colors around it, and steadily."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from latentsync_trt.face.align import align, crop, crop_size_px, rescaled
from latentsync_trt.face.compositor import composite
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.outline import OVAL, filled
from latentsync_trt.face.paste import Pasted, Paster
from latentsync_trt.face.seam import seam_score
from latentsync_trt.types import AlignedFace, BoolArray, Face, Float32Array, Patch, Picture, UInt8Array, UInt16Array
from tests.pasted import applied, changed_pixels
from tests.people import first_person

RESOLUTION = 256
MASK = mouth_mask(RESOLUTION)
MOST_OUTSIDE = 0.002
"""Of the changed pixels: the outline is drawn with soft corners, and moves with the running mean."""
NECK = 0.06
"""How far below a face its chin is covered, as a part of its height."""
LEAST_OUTSIDE_OF_MASK = 0.08
"""What the whole mask changes outside the face, on the same pictures: there is something to keep out."""
CHIN = 152
"""FaceMesh's point on the chin."""
COVERED = 0.99
SKIN_LEVELS = 2.0
"""How exactly colors are brought back: the ring of skin that is compared is a tenth of the face."""


class MovedChin:
    """A mesher that finds the given mesh with the lower part of the face moved by `shift` of its height."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def mesh(self, picture: Picture, around: Face) -> Float32Array | None:
        with MediaPipeDetector() as detector:
            found = detector.mesh(picture, around)
        assert found is not None
        top, bottom = found[:, 1].min(), found[:, 1].max()
        low = np.clip((found[:, 1] - (top + bottom) / 2) / (bottom - top) * 2, 0, 1)
        found[:, 1] += self.shift * (bottom - top) * low
        return found


class Blind:
    """A mesher that finds nothing."""

    def mesh(self, picture: Picture, around: Face) -> Float32Array | None:
        return None


@pytest.fixture(scope="module")
def detector() -> Iterator[MediaPipeDetector]:
    with MediaPipeDetector() as one:
        yield one


@pytest.fixture(scope="module")
def portrait(detector: MediaPipeDetector) -> tuple[UInt8Array, Face, AlignedFace]:
    return seen(first_person(1)[0], detector)


def seen(frame: UInt8Array, detector: MediaPipeDetector) -> tuple[UInt8Array, Face, AlignedFace]:
    tracked = max(detector.detect(frame), key=lambda face: face.box[2] - face.box[0])
    return frame, tracked, crop(frame, align(tracked.points, None, RESOLUTION)[0], RESOLUTION)


def as_painted(image: np.ndarray) -> UInt16Array:
    return np.rint(np.clip(image, 0, 255) * 257.0).astype(np.uint16)


def outside(frame: UInt8Array, pasted: Pasted) -> float:
    """Share of the changed pixels beside both faces; below the chin is the neck."""
    assert pasted.source_mesh is not None and pasted.painted_mesh is not None
    faces = [mesh[list(OVAL)] for mesh in (pasted.source_mesh, pasted.painted_mesh)]
    face = filled(faces, (frame.shape[1], frame.shape[0])) > 0
    changed = (applied(frame, pasted.patch) != frame).any(axis=-1)
    neck = np.zeros_like(face)
    reach = round(NECK * (pasted.source_mesh[:, 1].max() - pasted.source_mesh[:, 1].min()))
    for down in range(1, reach + 1):
        neck[down:] |= face[:-down]
    return float((changed & ~face & ~neck).sum() / changed.sum())


def test_only_the_face_is_pasted(portrait, detector):
    frame, tracked, face = portrait
    painted = as_painted(face.image.astype(float) + 40)
    found = {
        paste: outside(
            frame, Paster(detector, MASK, paste=paste, color_match=False).paste(frame, face, painted, tracked, 0)
        )
        for paste in ("face", "mask")
    }
    assert found["mask"] > LEAST_OUTSIDE_OF_MASK
    assert found["face"] < MOST_OUTSIDE


@pytest.mark.integration
@pytest.mark.parametrize("number", [1, 2, 3])
def test_nothing_changes_beside_the_face_of_people(number: int, assets: Path, detector: MediaPipeDetector) -> None:
    """With what a network that does not know them may paint: smears of color."""
    noise = np.random.default_rng(number).integers(0, 65536, (8, 8, 3), np.uint16)
    smears = cv2.resize(noise, (RESOLUTION, RESOLUTION), interpolation=cv2.INTER_CUBIC).astype(np.float32) / 257
    with av.open(str(assets / f"demo{number}_video.mp4")) as container:
        decoded = islice(container.decode(video=0), 0, 40, 20)
        pictures = [picture.to_ndarray(format="rgb24") for picture in decoded]
    for picture in pictures:
        frame, tracked, face = seen(picture, detector)
        painted = as_painted(0.5 * face.image + 0.5 * smears)
        whole, own = (
            outside(frame, Paster(detector, MASK, paste=paste).paste(frame, face, painted, tracked, 0))
            for paste in ("mask", "face")
        )
        assert own < MOST_OUTSIDE < whole


@pytest.mark.parametrize("shift", [-0.08, 0.08])
def test_one_chin_is_left(portrait, shift):
    """Where the painted chin is higher or lower than the source's, all of both is replaced."""
    frame, tracked, face = portrait
    pasted = Paster(MovedChin(shift), MASK).paste(frame, face, as_painted(face.image), tracked, 0)
    weight = np.zeros(frame.shape[:2], np.float32)
    height, width = pasted.patch.weight.shape
    weight[pasted.patch.y_px : pasted.patch.y_px + height, pasted.patch.x_px : pasted.patch.x_px + width] = (
        pasted.patch.weight
    )
    chins = [mesh[CHIN] for mesh in (pasted.source_mesh, pasted.painted_mesh)]
    assert abs(chins[1][1] - chins[0][1]) > 0.05 * (tracked.box[3] - tracked.box[1])
    for x, y in chins:
        assert weight[int(y), int(x)] > COVERED


def test_without_an_outline_the_mask_decides(portrait):
    frame, tracked, face = portrait
    painted = as_painted(255 - face.image)
    pasted = Paster(Blind(), MASK).paste(frame, face, painted, replace(tracked, landmarks=None), 0)
    whole = composite(frame, face, painted, MASK)
    assert pasted.source_mesh is None and pasted.painted_mesh is None
    assert np.array_equal(pasted.patch.weight, whole.weight)
    assert np.array_equal(pasted.patch.rgb, whole.rgb)


def test_a_detector_without_landmarks_has_an_outline(portrait, detector):
    frame, tracked, face = portrait
    paster = Paster(detector, MASK)
    with_points = paster.paste(frame, face, as_painted(face.image), tracked, 0)
    without = paster.paste(frame, face, as_painted(face.image), replace(tracked, landmarks=None), 1)
    size = tracked.box[2] - tracked.box[0]
    assert np.abs(without.source_mesh - with_points.source_mesh)[list(OVAL)].mean() < 0.01 * size


def test_meshes_are_those_of_the_frame(portrait, detector):
    frame, tracked, face = portrait
    pasted = Paster(detector, MASK).paste(frame, face, as_painted(face.image), tracked, 0)
    size = tracked.box[2] - tracked.box[0]
    assert np.abs(pasted.source_mesh - tracked.landmarks).max() < 0.001 * size
    assert np.abs(pasted.painted_mesh - tracked.landmarks).mean() < 0.01 * size


def test_feather_widens_the_edge(portrait, detector):
    frame, tracked, face = portrait

    def soft(feather: float) -> int:
        pasted = Paster(detector, MASK, feather=feather).paste(frame, face, as_painted(face.image), tracked, 0)
        return int(((pasted.patch.weight > 0.01) & (pasted.patch.weight < 0.99)).sum())

    widths = [soft(feather) for feather in (0.0, 1.25, 3.0, 6.0)]
    assert widths == sorted(widths)
    assert widths[3] > 2 * widths[1] > 3 * widths[0]


SHIFTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "brighter": lambda face: face + 8,
    "darker": lambda face: face - 8,
    "flat": lambda face: 128 + 0.9 * (face - 128),
    "warm": lambda face: face + np.array([8, 0, -8]),
    "all": lambda face: 128 + 0.9 * (face - 128) + np.array([-2, -8, -14]),
}


@pytest.mark.parametrize("shift", SHIFTS)
def test_colors_follow_the_skin_around(portrait, detector, shift):
    frame, tracked, face = portrait
    painted = as_painted(SHIFTS[shift](face.image.astype(float)))
    on, off = (Paster(detector, MASK, color_match=on).paste(frame, face, painted, tracked, 0) for on in (True, False))
    assert on.seam < 0.5 * off.seam
    assert off_color(frame, on.patch) < SKIN_LEVELS < off_color(frame, off.patch)


def off_color(frame: UInt8Array, patch: Patch) -> float:
    """Mean difference in levels between a frame and what replaces it."""
    return float(np.abs(applied(frame, patch).astype(float) - frame)[changed_pixels(frame, patch)].mean())


def test_right_colors_stay(portrait, detector):
    frame, tracked, face = portrait
    painted = as_painted(cv2.GaussianBlur(face.image, (0, 0), 1.5))
    on, off = (Paster(detector, MASK, color_match=on).paste(frame, face, painted, tracked, 0) for on in (True, False))
    assert on.seam <= off.seam + 0.01
    assert np.abs(on.patch.rgb.astype(float) - off.patch.rgb).max() / 257 < SKIN_LEVELS


def test_another_picture_is_not_made_skin(portrait, detector):
    """Colors that are far off are a different thing, and are moved by a limited amount."""
    frame, tracked, face = portrait
    painted = as_painted(0.3 * face.image)
    on, off = (Paster(detector, MASK, color_match=on).paste(frame, face, painted, tracked, 0) for on in (True, False))
    moved = (on.patch.rgb.astype(float) - off.patch.rgb) / 257
    assert 5 < np.abs(moved).mean() < 25


def frames_of(
    paster: Paster, items: list[tuple[UInt8Array, Face, AlignedFace]], level: Callable[[int], int]
) -> list[Pasted]:
    return [
        paster.paste(frame, face, as_painted(face.image.astype(float) + level(i)), tracked, 0)
        for i, (frame, tracked, face) in enumerate(items)
    ]


def test_colors_do_not_flicker(portrait, detector):
    """What the painting flickers by, the correction does not follow at once."""
    painted = frames_of(Paster(detector, MASK), [portrait] * 8, lambda i: 6 * (i % 2))
    places = [tuple(slice(20, 40) for _ in range(2)), 0]
    offsets = [float(one.patch.rgb[places[0]].mean()) / 257 - 6 * (i % 2) for i, one in enumerate(painted)]
    assert np.abs(np.diff(offsets)).max() < 3


def test_outlines_do_not_jump(portrait):
    mesher = MovedChin(0.0)
    paster, alone = Paster(mesher, MASK), []
    frame, tracked, face = portrait
    steady = []
    for i in range(6):
        mesher.shift = 0.08 * (i % 2)
        args = frame, face, as_painted(face.image), tracked
        steady.append(changed_pixels(frame, paster.paste(*args, 0).patch))
        alone.append(changed_pixels(frame, Paster(mesher, MASK).paste(*args, 0).patch))

    def changes(masks: list[BoolArray]) -> int:
        return sum(int((one != other).sum()) for one, other in pairwise(masks[2:]))

    assert changes(steady) < 0.6 * changes(alone)


def test_a_restart_forgets(portrait, detector):
    """What follows a restart is that of a new paster, as after an interrupted run."""
    items = [portrait] * 3
    paster = Paster(detector, MASK)
    before = frames_of(paster, items, lambda i: 15)
    paster.restart()
    again, fresh = (frames_of(one, items, lambda i: 5 * i) for one in (paster, Paster(detector, MASK)))
    for one, other in zip(again, fresh, strict=True):
        assert np.array_equal(one.patch.rgb, other.patch.rgb)
        assert np.array_equal(one.patch.weight, other.patch.weight)
    assert not np.array_equal(before[0].patch.rgb, again[0].patch.rgb)


def test_tracks_do_not_share_state(portrait, detector):
    frame, tracked, face = portrait
    one, other = Paster(detector, MASK), Paster(detector, MASK)
    bright, dark = (as_painted(face.image.astype(float) + level) for level in (8, -8))
    one.paste(frame, face, bright, tracked, 0)
    mixed = one.paste(frame, face, dark, tracked, 1)
    assert np.array_equal(mixed.patch.rgb, other.paste(frame, face, dark, tracked, 7).patch.rgb)


def test_larger_faces_are_pasted_at_their_own_resolution(detector):
    """A painted face of twice the size, as from an enhancer, shows its details where the frame has room for them."""
    large = cv2.resize(first_person(1)[0], None, fx=4, fy=4, interpolation=cv2.INTER_CUBIC)
    texture = np.random.default_rng(5).integers(-40, 40, (*large.shape[:2], 1))
    frame = np.clip(large + cv2.GaussianBlur(texture.astype(np.float32), (0, 0), 2)[..., None] * 4, 0, 255).astype(
        np.uint8
    )
    frame, _, face = seen(frame, detector)
    scaled = crop(frame, rescaled(face, crop_size_px(2 * RESOLUTION)), 2 * RESOLUTION)
    apart = {
        side: off_color(frame, composite(frame, face, as_painted(image), MASK))
        for side, image in ((RESOLUTION, face.image), (2 * RESOLUTION, scaled.image))
    }
    assert apart[2 * RESOLUTION] < 0.8 * apart[RESOLUTION]


@pytest.mark.parametrize("plain", [True, False])
def test_a_seam_is_measured_against_the_picture(plain):
    frame = np.full((300, 300, 3), 120, np.uint8)
    if not plain:
        frame += np.where(np.arange(300) // 6 % 2, 40, 0).astype(np.uint8)[:, None, None]
    weight = cv2.GaussianBlur(np.pad(np.ones((120, 120), np.float32), 20), (9, 9), 0)
    scores = []
    for levels in (0, 4, 8, 16):
        rgb = as_painted(frame[70:230, 70:230].astype(float) + levels)
        scores.append(seam_score(frame, Patch(70, 70, rgb, weight)))
    assert scores[0] == pytest.approx(0, abs=0.01)
    assert np.allclose(np.array(scores[1:]) / scores[1], [1, 2, 4], rtol=0.05)
    # A step of a level shows in a plain surface; stripes of 40 levels hide one of 16.
    assert (scores[1] > 2) if plain else (scores[3] < 1)


def test_a_patch_without_an_edge_has_no_seam():
    frame = np.zeros((50, 50, 3), np.uint8)
    nothing = Patch(0, 0, np.zeros((0, 0, 3), np.uint16), np.zeros((0, 0), np.float32))
    everything = Patch(0, 0, np.full((50, 50, 3), 65535, np.uint16), np.ones((50, 50), np.float32))
    assert seam_score(frame, nothing) == seam_score(frame, everything) == 0
