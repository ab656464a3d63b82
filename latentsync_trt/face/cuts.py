"""Recognizes a cut to another shot although a face is at the same place before and after it. No I/O.

No signal suffices alone: a pan, a flash or a fade changes the picture as much as a cut does, and a fast turn of the
head changes the face as much as another person does. In a cut, the landmarks and the picture change at once.

The limits lie between what was measured on four people filmed at the same place: within a shot (4,400 frames with pans
by 5 % of the width per frame, zooms, shaking, flashes, fades, noise, strong compression and 5 pictures per second), and
at cuts between them (130, also in the dark and strongly compressed).
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import product

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.face.mesh import SIDE_PX, region_around
from latentsync_trt.types import Face, Float32Array, Picture, UInt8Array

_LEAST_SHAPE_CHANGE = 0.025
"""Measured: median 0.012 from frame to frame, but up to 0.08 for fast heads and 0.2 at 5 pictures per second; from
0.033 at cuts."""
_LEAST_CORRELATION_LOSS, _LEAST_NEW_CONTENT = 0.5, 0.22
"""Of the whole picture, both needed. Measured: flashes reach 0.41 of the first, pans 0.17 of the second; cuts begin at
0.66 and 0.27."""
_LEAST_FACE_CHANGE = 0.5
"""Measured: up to 0.3, or 0.42 at 8 pictures per second; from 0.52 at cuts."""

_BLENDED_FRAMES = 2
"""Compared frames are also this far apart: conversion between frame rates can blend the two shots in one picture."""
_GRADUAL_FRAMES = 12
"""A dissolve of half a second changes little from frame to frame. Over this time, a pan and a turn of the head can
change picture or face alone, so both must change, and the face by `_LEAST_GRADUAL_FACE_CHANGE`."""
_LEAST_GRADUAL_FACE_CHANGE = 0.55
"""Measured: picture and face reach their limits together only in cuts and dissolves."""

_SCENE_LONG_PX, _SCENE_SHORT_PX = 32, 24
_FACE_PX = 16
_SAMPLES_PER_PX = 4
"""Per axis: enough to average noise and fine textures, and as fast for an 8K picture as for a small one."""

_BLOCK_PX, _REACH_PX = 8, 6
"""Blocks of a scene are searched this far: a pan or zoom by a sixth of the picture's width only moves them."""
_LEAST_CONTRAST = 1.0
"""Standard deviation in levels below which a block or a picture is flat: what is left is noise."""

_LUMA_SIDE_PX = 256


class Change(Enum):
    """What a frame shows, compared with those before: the same shot, another face in it, or another shot."""

    NONE = 0
    FACE = 1
    SCENE = 2


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What is compared of a frame.

    `scene`: the whole picture, float32 `(24, 32)` or, if it is upright, `(32, 24)`; `face`: the upright face and its
    surroundings, float32 `(16, 16)`; both luma levels. `shape (n,)` complex128: the landmarks as x + iy, centered, with
    a mean square of 1; None if the detector gives none.
    """

    scene: Float32Array
    face: Float32Array
    shape: NDArray[np.complex128] | None


class CutDetector:
    """Compares the frames of one shot as they come; not thread-safe."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=_GRADUAL_FRAMES)

    def restart(self, look: Look) -> None:
        """Begins a shot with its first frame."""
        self._looks.clear()
        self._looks.append(look)

    def compare(self, look: Look) -> Change:
        """Compares the next frame with those of the shot and adds it to them."""
        lags = [(self._looks[-lag], lag) for lag in (1, _BLENDED_FRAMES, _GRADUAL_FRAMES) if len(self._looks) >= lag]
        self._looks.append(look)
        found = [_change(before, look, gradual=lag == _GRADUAL_FRAMES) for before, lag in lags]
        return max(found, key=lambda change: change.value, default=Change.NONE)


def _change(before: Look, now: Look, *, gradual: bool) -> Change:
    if shape_change(before, now) < _LEAST_SHAPE_CHANGE:
        return Change.NONE
    face = unlikeness(before.face, now.face)
    if gradual and face < _LEAST_GRADUAL_FACE_CHANGE:
        return Change.NONE
    if (
        unlikeness(before.scene, now.scene) >= _LEAST_CORRELATION_LOSS
        and new_content(before.scene, now.scene) >= _LEAST_NEW_CONTENT
    ):
        return Change.SCENE
    return Change.FACE if face >= _LEAST_FACE_CHANGE and not gradual else Change.NONE


def look_at(luma: UInt8Array, face: Face, picture_shape: tuple[int, ...]) -> Look:
    """The look of a frame.

    Args:
        luma: `(H, W)` uint8, of any size. face: its position in pixels of a picture of `picture_shape` (height, width).
    """
    long_px, short_px = _SAMPLES_PER_PX * _SCENE_LONG_PX, _SAMPLES_PER_PX * _SCENE_SHORT_PX
    size = (short_px, long_px) if luma.shape[0] > luma.shape[1] else (long_px, short_px)
    scene = cv2.resize(luma, size, interpolation=cv2.INTER_LINEAR)
    side = _SAMPLES_PER_PX * _FACE_PX
    matrix = region_around(face).to_frame()
    matrix[:, :2] *= SIDE_PX / side
    scale = np.divide(luma.shape[1::-1], picture_shape[1::-1])[:, None]
    matrix *= scale
    matrix[:, 2:] += (scale - 1) / 2
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    around = cv2.warpAffine(luma, matrix, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    shape = None if face.landmarks is None else _normalized(face.landmarks)
    return Look(_averaged(np.asarray(scene, np.uint8)), _averaged(np.asarray(around, np.uint8)), shape)


def luma_of(picture: Picture) -> UInt8Array:
    """Approximate luma `(h, w)` uint8 of a picture whose planes are unknown, on a grid fine enough for `look_at`."""
    rgb = np.asarray(picture)
    step = max(1, min(rgb.shape[:2]) // _LUMA_SIDE_PX)
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(rgb[::step, ::step]), cv2.COLOR_RGB2GRAY), np.uint8)


def shape_change(before: Look, now: Look) -> float:
    """Root-mean-square distance of the landmarks after the best similarity transform, 0 to 1; 1 if unknown."""
    if before.shape is None or now.shape is None or before.shape.shape != now.shape.shape:
        return 1.0
    likeness = abs(complex((before.shape.conj() * now.shape).mean()))
    return max(0.0, 1.0 - likeness**2) ** 0.5


def unlikeness(before: Float32Array, now: Float32Array) -> float:
    """1 − correlation of two pictures, so that brightness and contrast do not count; 0 if one is flat."""
    if before.shape != now.shape:
        return 1.0
    a, b = before - before.mean(), now - now.mean()
    contrast = float(np.sqrt((a * a).mean() * (b * b).mean()))
    return 0.0 if contrast < _LEAST_CONTRAST**2 else 1.0 - float((a * b).mean()) / contrast


def new_content(before: Float32Array, now: Float32Array) -> float:
    """How little of the scene `now` is near its place in the scene `before`: 0 = all of it, 1 = nothing.

    The mean over its blocks of 1 − the best correlation, weighted by contrast.
    """
    if before.shape != now.shape:
        return 1.0
    reach, block = _REACH_PX, _BLOCK_PX
    around = cv2.copyMakeBorder(before, reach, reach, reach, reach, cv2.BORDER_REPLICATE)
    unlike = weights = 0.0
    for top, left in product(*(range(0, side, block) for side in now.shape)):
        wanted = now[top : top + block, left : left + block]
        weight = float(wanted.std())
        if weight < _LEAST_CONTRAST:
            continue
        near = around[top : top + block + 2 * reach, left : left + block + 2 * reach]
        found = float(cv2.matchTemplate(near, wanted, cv2.TM_CCOEFF_NORMED).max())
        unlike += weight * (1.0 - max(found, 0.0))
        weights += weight
    return unlike / weights if weights else 0.0


def _averaged(samples: UInt8Array) -> Float32Array:
    height, width = (side // _SAMPLES_PER_PX for side in samples.shape)
    grid = samples.reshape(height, _SAMPLES_PER_PX, width, _SAMPLES_PER_PX)
    return np.asarray(grid.mean(axis=(1, 3), dtype=np.float32), np.float32)


def _normalized(landmarks: Float32Array) -> NDArray[np.complex128]:
    points = landmarks[:, 0] + 1j * landmarks[:, 1].astype(np.float64)
    points -= points.mean()
    size = float(np.sqrt((np.abs(points) ** 2).mean()))
    return np.asarray(points / max(size, float(np.finfo(np.float32).tiny)), np.complex128)
