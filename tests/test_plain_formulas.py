"""What runs for every frame gives the same numbers as its formula, written out plainly, to the last bit."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from latentsync_trt.face.align import frame_corners, frame_rectangle, inverse
from latentsync_trt.face.color_match import correction
from latentsync_trt.face.outline import LIPS, OVAL, covering, filled
from latentsync_trt.face.scene import SIDE_PX, Scene
from latentsync_trt.face.seam import seam_score
from latentsync_trt.media.color import codes_of, coding_of
from latentsync_trt.media.hdr import hdr_of
from latentsync_trt.media.patching import apply_patch, pixels_per_sample
from latentsync_trt.types import ColorTags, Float32Array, Patch, SampleArray, UInt8Array
from tests.pictures import SAMPLINGS, noise

PLACES = [(0, 0, 13, 21), (3, 5, 7, 8), (12, 20, 1, 1), (4, 6, 9, 15)]
"""Top, left, height and width of a patch in a picture of 13×21 pixels: the whole, odd, in the corner, at two edges."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("bits", "transfer"), [(8, 1), (10, 16)])
def test_patches_are_mixed_sample_by_sample(
    sampling: str, place: tuple[int, int, int, int], bits: int, transfer: int
) -> None:
    planes = noise((13, 21), sampling, bits, ColorTags(1, transfer, 1, False))
    top, left, high, wide = place
    rng = np.random.default_rng(high)
    weight = np.clip(rng.random((high, wide), np.float32) * 2 - np.float32(0.5), 0, 1)
    patch = Patch(left, top, rng.integers(0, 65536, (high, wide, 3)).astype(np.uint16), weight)
    hdr = hdr_of(transfer)
    rgb = hdr.signal(patch.rgb) if hdr else patch.rgb * np.float32(1 / 65535)
    codes = codes_of(rgb, coding_of(planes.color, 21, 13, bits))
    mixed = apply_patch(planes, patch)
    steps = [(1, 1), *2 * [pixels_per_sample(planes)]]
    for own, new, code, step in zip(
        (planes.y, planes.u, planes.v), (mixed.y, mixed.u, mixed.v), codes, steps, strict=True
    ):
        np.testing.assert_array_equal(new, plainly_mixed(own, code, patch, step, (13, 21), 2**bits - 1))


def plainly_mixed(
    plane: SampleArray, codes: Float32Array, patch: Patch, step: tuple[int, int], size: tuple[int, int], most: int
) -> SampleArray:
    (height, width), (down, across) = size, step
    weights, values = np.zeros((2, height + 1, width + 1), np.float32)
    place = slice(patch.y_px, patch.y_px + len(codes)), slice(patch.x_px, patch.x_px + codes.shape[1])
    weights[place], values[place] = patch.weight, patch.weight * codes
    result = plane.copy()
    for row, column in np.ndindex(plane.shape):
        covered = slice(row * down, (row + 1) * down), slice(column * across, (column + 1) * across)
        pixels = (min(height, covered[0].stop) - covered[0].start) * (min(width, covered[1].stop) - covered[1].start)
        weight, value = (each[covered].sum(axis=0).sum() / np.float32(pixels) for each in (weights, values))
        if weight > 0:
            result[row, column] = np.clip(np.rint(plane[row, column] * (1 - weight) + value), 0, most)
    return result


def test_the_seam_is_measured_at_the_rim() -> None:
    rng = np.random.default_rng(5)
    frame = cv2.blur(rng.integers(0, 256, (240, 320, 3), np.uint8), (9, 9))
    weight = cv2.blur(filled([np.array([(20, 12), (150, 40), (130, 170), (4, 110)], np.float32)], (170, 180)), (7, 7))
    rgb = rng.integers(20000, 40000, (180, 170, 3)).astype(np.uint16)
    patch = Patch(31, 22, rgb, weight)
    assert seam_score(frame, patch) == plain_seam(frame, patch) > 0


def plain_seam(frame: UInt8Array, patch: Patch) -> float:
    height, width = patch.weight.shape
    scale = min(1.0, 96 / float((patch.weight >= 0.5).sum()) ** 0.5)
    size = round(width * scale), round(height * scale)
    part = frame[patch.y_px : patch.y_px + height, patch.x_px : patch.x_px + width]
    source, painted, weight = (
        cv2.resize(each, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        for each in (part, patch.rgb, patch.weight)
    )
    inside = (weight >= 0.5).astype(np.float32)
    rim = inside > cv2.erode(inside, np.ones((5, 5), np.uint8))
    added = cv2.blur((painted / np.float32(257) - source) * inside[..., None], (5, 5))
    step = added / np.maximum(cv2.blur(inside, (5, 5)), 1e-6)[..., None]
    padded = np.pad(cv2.blur(source, (5, 5)), ((2, 2), (2, 2), (0, 0)), "edge")
    down, across = padded[4:, 2:-2] - padded[:-4, 2:-2], padded[2:-2, 4:] - padded[2:-2, :-4]
    return float(np.abs(step[rim]).mean() / (np.maximum(np.abs(down), np.abs(across))[rim].mean() + 1))


@pytest.mark.parametrize("seed", range(8))
def test_colors_are_compared_in_a_ring_of_skin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mesh = np.full((468, 2), SIDE_PX / 2, np.float32)
    for points, wide, high in ((OVAL, 50, 70), (LIPS, 16, 8)):
        turn = np.linspace(0, 2 * np.pi, len(points), endpoint=False)
        mesh[points] = np.stack([SIDE_PX / 2 + wide * np.sin(turn), SIDE_PX / 2 - high * np.cos(turn)], axis=1)
    meshes = [np.asarray(mesh + rng.normal(0, 1.5, mesh.shape), np.float32) for _ in range(2)]
    source = cv2.blur(rng.integers(0, 256, (SIDE_PX, SIDE_PX, 3), np.uint8), (3, 3))
    painted = np.clip(source * rng.uniform(0.8, 1.2) + rng.normal(0, 9, source.shape), 0, 255).astype(np.uint8)
    generated = np.zeros((SIDE_PX, SIDE_PX), np.bool_)
    generated[101:190, 55:168] = True
    scene = Scene(np.eye(2, 3), source, painted, generated)
    found = correction(scene, *meshes)
    assert found is not None
    np.testing.assert_array_equal(found, plain_correction(scene, *meshes))
    assert correction(replace(scene, generated=np.zeros_like(generated)), *meshes) is None


def plain_correction(scene: Scene, *meshes: Float32Array) -> Float32Array:
    def half(image: np.ndarray) -> np.ndarray:
        return cv2.resize(image, (SIDE_PX // 2, SIDE_PX // 2), interpolation=cv2.INTER_AREA)

    size = SIDE_PX // 2, SIDE_PX // 2
    faces = [filled([mesh[OVAL] / 2], size) for mesh in meshes]
    lips = filled([mesh[LIPS] / 2 for mesh in meshes], size)
    pasted = np.minimum(half(scene.generated.astype(np.float32)), np.maximum(*faces)) >= 0.5
    skin = cv2.erode(np.minimum(*faces), np.ones((3, 3), np.uint8)) - cv2.dilate(lips, np.ones((5, 5), np.uint8)) > 0.5
    ring = pasted & skin & ~(cv2.erode(pasted.astype(np.uint8), np.ones((13, 13), np.uint8)) > 0)
    there, here = (half(picture)[ring].astype(np.float32) for picture in (scene.source, scene.painted))
    strange = np.abs(there - here - np.median(there - here, axis=0)).sum(axis=1)
    same = strange <= np.quantile(strange, 0.85)
    there, here = there[same], here[same]
    contrast, own = ((values - values.mean(axis=0)).var(axis=0) for values in (there, here))
    alike = ((there - there.mean(axis=0)) * (here - here.mean(axis=0))).mean(axis=0) / (np.sqrt(contrast * own) + 100)
    gain = np.clip(1 + np.clip(alike, 0, 1) * (np.sqrt((contrast + 100) / (own + 100)) - 1), 1 / 1.2, 1.2)
    shift = np.clip((there - here).mean(axis=0), -20, 20)
    return np.asarray([gain, shift + (1 - gain) * here.mean(axis=0)], np.float32)


@pytest.mark.parametrize("shift", [0.0, 2.0, 4.0, 9.0])
def test_only_chins_are_extended(shift: float) -> None:
    turn = np.linspace(0, 2 * np.pi, 36, endpoint=False)
    source = np.stack([100 + 50 * np.sin(turn), 110 - 70 * np.cos(turn)], axis=1).astype(np.float32)
    painted = source - np.float32([0, shift])
    outside = np.array([-cv2.pointPolygonTest(painted, point, True) for point in source.tolist()])
    away = source - painted.mean(axis=0)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    below = np.clip((away[:, 1] - 0.6) / 0.25, 0, 1)
    wanted = source + away * (below * 6 * np.clip((outside / 6 - 0.25) / 0.35, 0, 1))[:, None]
    found, other = covering(source, painted, 6.0)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))
    assert other is painted and (found != source).any() == (shift >= 2)


def test_rectangles_hold_the_turned_crop() -> None:
    rng = np.random.default_rng(7)
    for _ in range(200):
        matrix, size, shape = rng.normal((0, 0, 50), 1, (2, 3)), (70, 93), (480, 640, 3)
        linear = np.linalg.inv(matrix[:, :2])
        np.testing.assert_allclose(inverse(matrix), np.column_stack([linear, -linear @ matrix[:, 2]]), rtol=1e-9)
        corners = frame_corners(matrix, size)
        low, high = np.floor(corners.min(axis=0)) - 2, np.ceil(corners.max(axis=0)) + 3
        wanted = [*np.clip(low, 0, (640, 480)), *np.clip(high, 0, (640, 480))]
        assert list(frame_rectangle(matrix, size, shape, 2)) == wanted
