"""Brightness and contrast of a painted face, made those of the skin around it. Pure."""

import cv2
import numpy as np

from latentsync_trt.face.outline import LIPS, OVAL, filled
from latentsync_trt.face.scene import SIDE_PX, Scene
from latentsync_trt.types import BoolArray, Float32Array

_SHRINK = 2
"""Faces are compared at half the scene's size: textures, which a network blurs, do not count as contrast."""

_WIDTH_PX = 6
"""Width of the ring in which they are compared: a tenth of the crop."""

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
    ring = _ring(scene.generated, (source_mesh, painted_mesh))
    if ring.sum() < _LEAST_PX:
        return None
    there, here = (_shrunk(picture)[ring].astype(np.float32) for picture in (scene.source, scene.painted))
    strange = np.abs(there - here - np.median(there - here, axis=0)).sum(axis=1)
    same = strange <= np.quantile(strange, _SAME_SHARE)
    there, here = there[same], here[same]
    middle, apart = here.mean(axis=0), (there - here).mean(axis=0)
    contrast, own = ((values - values.mean(axis=0)).var(axis=0) for values in (there, here))
    alike = ((there - there.mean(axis=0)) * (here - middle)).mean(axis=0) / (np.sqrt(contrast * own) + _RIDGE)
    gain = 1 + np.clip(alike, 0, 1) * (np.sqrt((contrast + _RIDGE) / (own + _RIDGE)) - 1)
    gain = np.clip(gain, 1 / _MOST_GAIN, _MOST_GAIN)
    shift = np.clip(apart, -_MOST_SHIFT, _MOST_SHIFT)
    return np.stack([gain, shift + (1 - gain) * middle]).astype(np.float32)


def _ring(generated: BoolArray, meshes: tuple[Float32Array, Float32Array]) -> BoolArray:
    size = (SIDE_PX // _SHRINK,) * 2
    shrink = np.float32(_SHRINK)
    faces = [filled((mesh[list(OVAL)] / shrink,), size) for mesh in meshes]
    lips = filled([mesh[list(LIPS)] / shrink for mesh in meshes], size)
    pasted = np.minimum(_shrunk(generated.astype(np.float32)), np.maximum(*faces)) >= 0.5
    skin = cv2.erode(np.minimum(*faces), np.ones((3, 3), np.uint8)) - cv2.dilate(lips, np.ones((5, 5), np.uint8)) > 0.5
    inner = cv2.erode(pasted.astype(np.uint8), np.ones((2 * _WIDTH_PX + 1,) * 2, np.uint8)) > 0
    return np.asarray(pasted & skin & ~inner, np.bool_)


def _shrunk(image: np.ndarray) -> np.ndarray:
    return cv2.resize(image, (SIDE_PX // _SHRINK,) * 2, interpolation=cv2.INTER_AREA)
