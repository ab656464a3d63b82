"""Brings the colors of a painted face closest to those of the source. Pure."""

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.compositing.head_view import VIEW_PX, HeadView
from latentsync_trt.compositing.outline import LIPS, OVAL, drawn
from latentsync_trt.types import Float32Array, UInt8Array

_SHRINK = 2
"""Faces are compared at half the size of a view: textures, which a network blurs, do not count as
contrast.
"""
_COMPARED_PX = (VIEW_PX // _SHRINK, VIEW_PX // _SHRINK)
_RING_PX = 6
"""Width of the ring in which faces are compared: a tenth of the crop."""
_RING_KERNEL = np.ones((2 * _RING_PX + 1, 2 * _RING_PX + 1), np.uint8)
_SKIN_KERNEL = np.ones((3, 3), np.uint8)
_LIPS_KERNEL = np.ones((5, 5), np.uint8)
"""Skin is eroded, and lips are widened, by these: pixels at their edges show a mixture."""

_HALF_COVERED = 128
"""Level of a pixel, of 255, that a drawn shape covers by half."""
_LEAST_SKIN_PX = 40
"""Fewer pixels of skin say nothing."""
_VARIANCE_RIDGE = 100.0
"""Variance in levels² below which a difference in contrast says little."""
_SKIN_SHARE = 0.85
"""Part of the ring that is compared; the pixels that differ most are hair or another chin."""
_MAX_GAIN = 1.2
_MAX_SHIFT = 20.0
"""Larger changes, in 8-bit levels, mean that both faces do not show the same."""


def match_color(
    view: HeadView, source_mesh: Float32Array, painted_mesh: Float32Array
) -> Float32Array | None:
    """Returns the affine change of RGB levels, `(3, 4)`, that brings the painted face closest to
    the source's.

    They are compared in a ring of skin: inside the edge of what is pasted and inside both faces,
    without the lips. None where that ring is too small.

    Args:
        source_mesh, painted_mesh: FaceMesh's points of both faces, float32 `(468, 2)` in pixels of
            the view.
    """
    ring = _ring_of_skin(_shrunk(view.generated), source_mesh, painted_mesh)
    if ring.size < _LEAST_SKIN_PX:
        return None
    source_skin = _shrunk(view.source).reshape(-1, 3)[ring].astype(np.float32)
    painted_skin = _shrunk(view.painted).reshape(-1, 3)[ring].astype(np.float32)
    same = _most_alike(source_skin - painted_skin)
    return _affine_match(source_skin[same], painted_skin[same])


def _affine_match(source_skin: Float32Array, painted_skin: Float32Array) -> Float32Array:
    """Returns what brings mean and contrast of pixels `(n, 3)` closest to those of the source's."""
    source_mean = source_skin.mean(axis=0)
    painted_mean = painted_skin.mean(axis=0)
    deviations = np.hstack([source_skin - source_mean, painted_skin - painted_mean])
    covariances = deviations.T @ deviations / len(deviations)
    source_variance, painted_variance = np.diag(covariances).reshape(2, 3)

    # Contrast is matched as far as both show the same texture.
    covariance = np.diag(covariances, 3)
    correlation = covariance / (np.sqrt(source_variance * painted_variance) + _VARIANCE_RIDGE)
    variance_ratio = (source_variance + _VARIANCE_RIDGE) / (painted_variance + _VARIANCE_RIDGE)
    gain = 1 + np.clip(correlation, 0, 1) * (np.sqrt(variance_ratio) - 1)
    gain = np.clip(gain, 1 / _MAX_GAIN, _MAX_GAIN)
    shift = np.clip(source_mean - painted_mean, -_MAX_SHIFT, _MAX_SHIFT)
    offset = shift + (1 - gain) * painted_mean
    return np.column_stack([np.diag(gain), offset])


def _most_alike(differences: Float32Array) -> NDArray[np.intp]:
    """Returns the indices of the pixels whose `differences (n, 3)` are closest to the usual one."""
    middle = len(differences) // 2
    usual = np.partition(differences, middle, axis=0)[middle]
    strangeness = np.abs(differences - usual).sum(axis=1)
    last = int(_SKIN_SHARE * (len(differences) - 1))
    return np.argpartition(strangeness, last)[: last + 1]


def _ring_of_skin(
    generated: UInt8Array, source_mesh: Float32Array, painted_mesh: Float32Array
) -> NDArray[np.intp]:
    """Returns the indices of the pixels of the ring, row by row."""
    source_mesh = source_mesh / np.float32(_SHRINK)
    painted_mesh = painted_mesh / np.float32(_SHRINK)
    source_face = drawn([source_mesh[OVAL]], _COMPARED_PX)
    painted_face = drawn([painted_mesh[OVAL]], _COMPARED_PX)
    lips = drawn([source_mesh[LIPS], painted_mesh[LIPS]], _COMPARED_PX)
    either_face = np.maximum(source_face, painted_face)
    pasted = np.minimum(generated, either_face) >= _HALF_COVERED

    skin = np.minimum(source_face, painted_face)
    cv2.erode(skin, _SKIN_KERNEL, dst=skin)
    cv2.dilate(lips, _LIPS_KERNEL, dst=lips)
    cv2.subtract(skin, lips, dst=skin)

    inner = np.empty_like(skin)
    cv2.erode(pasted.view(np.uint8), _RING_KERNEL, dst=inner)
    is_skin = skin >= _HALF_COVERED
    return np.flatnonzero((pasted & is_skin) > inner)


def _shrunk(image: UInt8Array) -> UInt8Array:
    """Returns a picture of a view at the size at which faces are compared."""
    small = np.empty((*_COMPARED_PX, *image.shape[2:]), np.uint8)
    cv2.resize(image, _COMPARED_PX, dst=small, interpolation=cv2.INTER_AREA)
    return small
