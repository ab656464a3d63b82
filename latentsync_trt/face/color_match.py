"""Brightness and contrast of a painted face, made those of the skin around it. Pure."""

import cv2
import numpy as np

from latentsync_trt.face.outline import LIPS, OVAL, drawn
from latentsync_trt.face.scene import SIDE_PX, Scene
from latentsync_trt.types import BoolArray, Float32Array

_SHRINK = 2
"""Faces are compared at half the scene's size: textures, which a network blurs, do not count as contrast."""

_WIDTH_PX = 6
"""Width of the ring in which they are compared: a tenth of the crop."""

_HALF = 128
"""Of 255: pixels that are covered by half."""

_LEAST_PX = 40
"""Fewer pixels of skin say nothing."""

_RIDGE = 100.0
"""Variance in levels² below which a difference in contrast says little."""

_SAME_SHARE = 0.85
"""Part of the ring that is compared, without the pixels that differ most: hair or another chin, not skin."""

_MOST_GAIN, _MOST_SHIFT = 1.2, 20.0
"""Larger corrections, in 8-bit levels, mean that the two do not show the same."""


def correction(scene: Scene, source_mesh: Float32Array, painted_mesh: Float32Array) -> Float32Array | None:
    """Gain, and offset in levels, per channel: `(2, 3)` float32, which bring the painted face closest to the source's.

    They are compared in a ring of skin: inside the edge of what is pasted and inside both faces, without the lips.
    None if that is too small.

    Args:
        source_mesh, painted_mesh: FaceMesh's points of both, float32 `(468, 2)` in scene pixels.
    """
    ring = np.flatnonzero(_ring(scene.generated, (source_mesh, painted_mesh)))
    if ring.size < _LEAST_PX:
        return None
    there, here = (_shrunk(each).reshape(-1, 3)[ring].astype(np.float32) for each in (scene.source, scene.painted))
    apart = there - here
    order = np.sort(apart, axis=0)
    middle = (order[(ring.size - 1) // 2] + order[ring.size // 2]) / 2
    strange = np.abs(apart - middle).sum(axis=1)
    same = strange <= np.sort(strange)[int(_SAME_SHARE * (ring.size - 1))]
    both = np.stack([there[same], here[same]])
    means = both.mean(axis=1)
    both -= means[:, None]
    contrast, own = both.var(axis=1)
    alike = both.prod(axis=0).mean(axis=0) / (np.sqrt(contrast * own) + _RIDGE)
    gain = 1 + np.clip(alike, 0, 1) * (np.sqrt((contrast + _RIDGE) / (own + _RIDGE)) - 1)
    gain = np.clip(gain, 1 / _MOST_GAIN, _MOST_GAIN)
    shift = np.clip(apart[same].mean(axis=0), -_MOST_SHIFT, _MOST_SHIFT)
    return np.stack([gain, shift + (1 - gain) * means[1]]).astype(np.float32)


def _ring(generated: BoolArray, meshes: tuple[Float32Array, Float32Array]) -> BoolArray:
    size = (SIDE_PX // _SHRINK,) * 2
    shrink = np.float32(_SHRINK)
    faces = [drawn((mesh[OVAL] / shrink,), size) for mesh in meshes]
    lips = drawn([mesh[LIPS] / shrink for mesh in meshes], size)
    pasted = np.minimum(_shrunk(generated.view(np.uint8) * np.uint8(255)), np.maximum(*faces)) >= _HALF
    inner = cv2.erode(pasted.view(np.uint8), np.ones((2 * _WIDTH_PX + 1,) * 2, np.uint8))
    both, mouth = cv2.erode(np.minimum(*faces), np.ones((3, 3), np.uint8)), cv2.dilate(lips, np.ones((5, 5), np.uint8))
    skin = cv2.subtract(both, mouth) >= _HALF
    return np.asarray((pasted & skin) > inner, np.bool_)


def _shrunk(image: np.ndarray) -> np.ndarray:
    return cv2.resize(image, (SIDE_PX // _SHRINK,) * 2, interpolation=cv2.INTER_AREA)
