"""What is in front of a face, kept steady from frame to frame: a mask that flickers is worse than
one that is not exact. Pure.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.compositing.appearance import SIDE_PX, disk
from latentsync_trt.face.align import composed, inverse
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, UInt8Array

LEAST_COVERED_PX = 20
"""Fewer pixels of the painted region, of about 4,000, are nothing."""
_CHANGE_BLUR_PX = 1.2
"""Changes of single pixels are noise."""
_SAME_LEVELS = 10.0
"""Levels by which a pixel that shows the same as before differs at most, about."""
_LEFT_SHARE = 0.4
_STAYS_SHARE = 0.8
"""Parts of an object's edge that look as before: with less than the first, the object has moved;
from the second on, it stays.
"""
_MOST_KEPT = 0.85
_MOST_KEPT_COVERED = 0.98
"""Parts of the mask of the frame before that are kept where the picture has not changed: what is
taken for free, and for covered. An object that stays is better known from how it came.
"""
_LEAST_EDGE_LEFT = 0.65
"""Part of the slopes along an object's edge that is left at its place in the frame while it stays:
0.75 and more in 95 of 100 frames of most composed scenes, whatever the face behind does.
"""
_AT_REST_FRAMES = 3
_MOST_FLIPPED = 0.025
"""When an object has stayed for so many frames, at most this part of its cover changes from one
frame to the next, so that it does not flicker.
"""
_FLIPPED_NEAR_PX = 4
"""A head that turns shows what was so close to the painted region: this counts as well."""


@dataclass(frozen=True, slots=True, eq=False)
class FaceView:
    """A face in one frame."""

    from_frame: Float64Array
    """Shape `(2, 3)`: frame pixels → pixels of the view."""
    pixels: UInt8Array
    """Shape `(128, 128, 3)`, RGB."""
    mesh: Float32Array
    """FaceMesh's points, `(468, 2)` in pixels of the view."""
    inside: UInt8Array
    """Shape `(128, 128)`: 255 in the frame, 0 beyond it."""
    region: UInt8Array
    """Shape `(128, 128)`: 1 where a mouth is painted, inside the face's outline and the frame,
    elsewhere 0.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Covered:
    """A view of the frame before, and what was in front of the face there."""

    view: FaceView
    cover: Float32Array
    """Shape `(128, 128)`, 0 to 1."""
    frames_at_rest: int = 0
    """Frames for which the object has stayed where it is."""


def steadied(cover: Float32Array | None, view: FaceView, before: Covered | None) -> Covered | None:
    """Returns a cover that changes little where the picture does not; None if nothing is covered.

    The cover of the frame before is where the object was in the frame.
    """
    if before is None:
        return None if cover is None else Covered(view, cover)
    size_px = (SIDE_PX, SIDE_PX)
    moved = composed(inverse(before.view.from_frame), view.from_frame)
    earlier = np.asarray(cv2.warpAffine(before.cover, moved, size_px), np.float32)
    pixels = np.asarray(cv2.warpAffine(before.view.pixels, moved, size_px), np.uint8)
    change = cv2.absdiff(view.pixels, pixels).max(axis=2)
    smooth = np.asarray(change, np.float32)
    cv2.GaussianBlur(smooth, (0, 0), _CHANGE_BLUR_PX, dst=smooth)
    now = np.zeros_like(earlier) if cover is None else cover
    kept = np.exp(-((smooth / np.float32(_SAME_LEVELS)) ** 2))
    kept *= np.where(now < earlier, np.float32(_MOST_KEPT_COVERED), np.float32(_MOST_KEPT))
    is_edge = _edge_of(earlier)
    kept *= _stays(smooth[is_edge])
    steady = kept * earlier + (1 - kept) * now
    frames_at_rest = 0
    if _edge_left(is_edge, pixels, view.pixels) >= _LEAST_EDGE_LEFT:
        frames_at_rest = before.frames_at_rest + 1
    if frames_at_rest >= _AT_REST_FRAMES:
        steady = _slowed(steady, earlier, view.region)
    if np.count_nonzero(steady >= 0.5) < LEAST_COVERED_PX:
        return None
    return Covered(view, steady, frames_at_rest)


def _slowed(cover: Float32Array, earlier: Float32Array, region: UInt8Array) -> Float32Array:
    """Returns a cover in which no more pixels have changed sides than may at once: the surest."""
    was_covered = earlier >= 0.5
    is_near = cv2.dilate(region, disk(_FLIPPED_NEAR_PX)) > 0
    flips = ((cover >= 0.5) != was_covered) & is_near
    covered_px = np.count_nonzero(was_covered & (region > 0))
    most = max(int(_MOST_FLIPPED * covered_px), 1)
    if np.count_nonzero(flips) <= most:
        return cover
    sureness = np.abs(cover - 0.5)
    least = np.sort(sureness[flips])[-most]
    return np.where(flips & (sureness < least), earlier, cover)


def _edge_of(cover: Float32Array) -> BoolArray:
    """Returns the pixels on both sides of a cover's edge."""
    is_covered = (cover >= 0.5).astype(np.uint8)
    return cv2.dilate(is_covered, disk(1)) > cv2.erode(is_covered, disk(1))


def _edge_left(is_edge: BoolArray, before: UInt8Array, now: UInt8Array) -> float:
    """Returns which part of the slopes along an edge in one picture is in another, 0 to 1."""
    slopes = _slopes(before)[:, is_edge]
    slopes_now = _slopes(now)[:, is_edge]
    steepness = np.maximum(np.hypot(*slopes), np.float32(1e-3))
    along = (slopes * slopes_now).sum(axis=0) / steepness
    left = np.clip(along, 0, steepness).sum()
    return float(left / max(float(steepness.sum()), 1e-3))


def _slopes(pixels: UInt8Array) -> Float32Array:
    """Returns how brightness changes to the right and down, `(2, h, w)`."""
    brightness = pixels.mean(axis=2, dtype=np.float32)
    blurred = cv2.GaussianBlur(brightness, (0, 0), 1)
    to_right = cv2.Sobel(blurred, cv2.CV_32F, 1, 0)
    down = cv2.Sobel(blurred, cv2.CV_32F, 0, 1)
    return np.stack([to_right, down])


def _stays(change: Float32Array) -> float:
    """Returns how surely an object is where its cover was, 0 to 1: what is covered and what is
    beside may have the same color, but the edge between them is gone when the object is.

    Args:
        change: levels by which each pixel of that edge has changed, `(n,)`.
    """
    if not change.size:
        return 0.0
    same_share = np.count_nonzero(change < _SAME_LEVELS) / change.size
    return float(np.clip((same_share - _LEFT_SHARE) / (_STAYS_SHARE - _LEFT_SHARE), 0, 1))
