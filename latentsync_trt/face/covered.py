"""Finds the place of a face behind an object, by what is seen of it and by the frame before.

FaceMesh guesses the points that it does not see, and moves those that it does see along with them.
So it gets a picture in which covered pixels show the face of the frame before, at the place where
the other pixels say that it is now: each run of the network corrects that place.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.face.align import composed, cut, inverse, similarity, transformed
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import MESH_SIDE_PX, Region, as_complex, face_of
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, Picture, UInt8Array

_FACE_VIEW_PX = 224
"""Side of a view: FaceMesh's region at its own size, and a margin for the motion of one frame."""
_CORRECTIONS = 3
"""Runs of FaceMesh for a covered face: over four composed scenes, two leave up to twice the error
where half of the face is covered, and a fourth changes little.
"""
_EDGE_PX = 2
"""How far pixels of a view near an object count as covered: its edge is soft."""
_COVERED_LEVEL = 128
"""Level of a mask, of 255, from which on a pixel is covered."""
_LEAST_SEEN = 0.3
"""Part of a face's box: where less of it is seen, the face is expected to stay where it was, as
nothing would end a motion that goes on.
"""


@dataclass(frozen=True, slots=True, eq=False)
class UncoveredFace:
    """A face in one frame, as it looks without what is in front of it."""

    mesh: Float32Array
    """FaceMesh's points, `(468, 2)` in frame pixels."""
    from_frame: Float64Array
    """Shape `(2, 3)`: frame pixels → pixels of the view."""
    view: UInt8Array
    """The upright face and what is around it, `(224, 224, 3)` RGB, black outside the frame."""
    motion: Float64Array
    """Shape `(2, 3)`: the similarity transform, in frame pixels, that brought the face here from
    the frame before.
    """


def free_face(picture: Picture, mesh: Float32Array, before: UncoveredFace | None) -> UncoveredFace:
    """Returns a face that nothing covers.

    Args:
        picture: a frame, uint8 `(H, W, 3)` RGB.
        mesh: FaceMesh's points of the face, float32 `(468, 2)` in its pixels.
        before: the same face in the frame before; None at the beginning of a track.
    """
    from_frame = _view_around(mesh)
    view = cut(picture, from_frame, (_FACE_VIEW_PX, _FACE_VIEW_PX), outside=0)
    motion = np.eye(2, 3)
    if before is not None:
        motion = _motion(before.mesh, mesh)
    return UncoveredFace(mesh, from_frame, view, motion)


def covered_face(
    mesher: MediaPipeDetector,
    picture: Picture,
    before: UncoveredFace,
    mask: UInt8Array,
    mask_from_frame: Float64Array,
    motion_share: float = 1.0,
) -> UncoveredFace:
    """Returns a face that is partly covered.

    Args:
        picture: a frame, uint8 `(H, W, 3)` RGB.
        before: the same face in the frame before.
        mask: uint8 `(h, w)`, 255 where something is in front of the face.
        mask_from_frame: `(2, 3)`, frame pixels → pixels of the mask.
        motion_share: part of the last motion that is expected: less than 1 where that took longer.
    """
    still = np.eye(2, 3)
    motion = still + motion_share * (before.motion - still)
    mesh = transformed(before.mesh, motion)
    from_frame = _view_around(mesh)
    mask_to_view = composed(inverse(mask_from_frame), from_frame)
    edge = np.ones((2 * _EDGE_PX + 1, 2 * _EDGE_PX + 1), np.uint8)
    is_covered = cv2.dilate(_into_view(mask, mask_to_view), edge) >= _COVERED_LEVEL
    if _seen_share(is_covered, transformed(mesh, from_frame)) < _LEAST_SEEN:
        mesh = before.mesh
        motion = still

    source = cut(picture, from_frame, (_FACE_VIEW_PX, _FACE_VIEW_PX), outside=0)
    before_to_frame = inverse(before.from_frame)
    for _ in range(_CORRECTIONS):
        view_to_view = composed(composed(before_to_frame, motion), from_frame)
        view = np.where(is_covered[..., None], _into_view(before.view, view_to_view), source)
        region = Region.around(face_of(transformed(mesh, from_frame), 0))
        result = mesher.mesh_in(view, region)
        if result is None:
            break
        mesh = transformed(result[0][:, :2], inverse(from_frame))
        motion = _motion(before.mesh, mesh)
    return UncoveredFace(mesh, from_frame, view, motion)


def _view_around(mesh: Float32Array) -> Float64Array:
    """Returns `(2, 3)`: frame pixels → pixels of a view with an upright face in its middle."""
    to_view = inverse(Region.around(face_of(mesh, 0)).to_frame())
    to_view[:, 2] += (_FACE_VIEW_PX - MESH_SIDE_PX) / 2
    return to_view


def _seen_share(is_covered: BoolArray, mesh: Float32Array) -> float:
    """Returns the part of the box around a mesh, in pixels of the view, that is not covered."""
    left, top = np.maximum(mesh.min(axis=0), 0).astype(int)
    right, bottom = np.ceil(mesh.max(axis=0)).astype(int)
    box = is_covered[top:bottom, left:right]
    return 1 - float(box.mean())


def _motion(before: Float32Array, after: Float32Array) -> Float64Array:
    """Returns the similarity transform `(2, 3)` that brings points `(n, 2)` closest to others, in
    the sense of least squares.
    """
    start = as_complex(before)
    end = as_complex(after)
    spread = start - start.mean()
    factor = (spread.conj() @ end) / (spread.conj() @ spread)
    shift = end.mean() - factor * start.mean()
    return similarity(factor, shift)


def _into_view(image: UInt8Array, to_view: Float64Array) -> UInt8Array:
    """Returns a picture or mask in the view; `to_view`: its pixels → pixels of the view."""
    view = np.zeros((_FACE_VIEW_PX, _FACE_VIEW_PX, *image.shape[2:]), np.uint8)
    cv2.warpAffine(image, to_view, (_FACE_VIEW_PX, _FACE_VIEW_PX), dst=view, flags=cv2.INTER_LINEAR)
    return view
