"""Recognizes people: whether a face is another one than before at the same place, and who it is. No I/O.

**Cuts.** Neither signal suffices alone: light, captions and backgrounds change the picture around a face, and a fast
turn of the head changes its landmarks, as much as another person does. Only another person changes both at once. The
limits were measured on four people at the same place: within a shot (10,000 frames with pans, flashes, noise, moving
backgrounds, passing people, 4 to 8 pictures per second), and at 180 cuts between them.

**People** are told apart by their looks: a coarse picture of the upright face and hair, in colors relative to their
mean, so that brightness and a tint of the light do not count. Measured on six people in 75
pictures: pictures of one person are up to 0.35 apart (95 %), of two people 0.44 or more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import sqrt
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.face.geometry import SIDE_PX, Region, overlap
from latentsync_trt.types import Complex128Array, Face, Float32Array, Picture, UInt8Array, YuvPlanes

_LEAST_SHAPE_CHANGE, _LEAST_FACE_CHANGE = 0.04, 0.4
"""Both needed. Measured: cuts begin at 0.057 and 0.45. Within a shot fast heads reach 0.13 and 0.28, and moving light
0.08 and 0.73; both limits together are reached only at 4 pictures per second, and by captions on the face."""
MOST_COMPARED, _GRADUAL_FACTOR = 12, 1.4
"""A dissolve of half a second, and pictures blended by a conversion between frame rates, change little at a time.
Over half a second heads turn, too, so both limits are higher, and the scene must change as well."""
_LEAST_SCENE_CHANGE = 0.5
"""Measured: up to 0.37 over half a second of a steady camera."""
_CELLS = 16
_SAMPLES_PER_CELL = 4
_SAMPLES = _SAMPLES_PER_CELL * _CELLS
"""Per axis: enough to average noise and fine textures, and as fast for an 8K picture as for a small one."""
_LEAST_CONTRAST = 1.0
"""Standard deviation in levels below which a picture is flat: what is left is noise."""
_LUMA_SIDE_PX = 256

_SAME_PERSON = 0.36
SAME_PLACE_AND_PERSON = 0.43
"""Limit for a face at the place where the person was just seen."""
_SAME_PLACE_IOU = 0.3

_GRID = 16
_BLOCK_PX = SIDE_PX // _GRID
_Y, _X = (np.mgrid[0:_GRID, 0:_GRID] - (_GRID - 1) / 2) / _GRID
_FACE_AND_HAIR = np.hypot(_X / 0.39, _Y / 0.45) < 1
_DARK = 8 / 255
"""Keeps the noise of dark places from counting."""
_LEAST_COLOR_CONTRAST = 0.1
"""Norm per sample below which a picture is flat."""
_NEW_LOOK, _MOST_LOOKS = 0.06, 24
"""Looks of a person that are remembered are at least so different, and at most so many."""


Change = Literal["none", "face", "scene"]
"""What a frame shows, compared with those before: the same person, another one there, or another shot."""


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """What is compared of a frame.

    `scene`: the whole picture; `face`: the upright face and what is around; both luma levels less their mean, float32
    `(256,)`. `shape (n,)`: the landmarks as x + iy, centered, with a mean square of 1; None if there are none.
    """

    scene: Float32Array
    face: Float32Array
    shape: Complex128Array | None


class View:
    """A frame, `picture` with square pixels; luma of `planes`, if given, perhaps with other pixels. `scene`: see
    `Surroundings`. `look`: of a face, see `look_of`, computed once. `overview`: makes a picture for the search."""

    def __init__(
        self, picture: Picture, planes: YuvPlanes | None, overview: Callable[[], UInt8Array] | None = None
    ) -> None:
        self.picture, self._luma = picture, _luma_of(picture, planes)
        self.look, self.overview = cache(partial(look_of, picture)), overview or partial(np.asarray, picture)
        samples = np.empty((_SAMPLES, _SAMPLES), np.uint8)
        cv2.resize(self._luma, samples.shape, dst=samples, interpolation=cv2.INTER_LINEAR)
        self.scene = _averaged(samples)

    def around(self, face: Face) -> Surroundings:
        luma = self._luma
        scales = (own / whole for own, whole in zip(luma.shape[1::-1], self.picture.shape[1::-1], strict=False))
        rows, step = zip(scales, Region.around(face).to_frame().tolist(), strict=True), SIDE_PX / _SAMPLES
        matrix = np.array(
            [[a * step * scale, b * step * scale, start * scale + (scale - 1) / 2] for scale, (a, b, start) in rows]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        around = np.empty((_SAMPLES, _SAMPLES), np.uint8)
        cv2.warpAffine(luma, matrix, around.shape, dst=around, flags=flags, borderMode=cv2.BORDER_REPLICATE)
        if face.landmarks is None:
            return Surroundings(self.scene, _averaged(around), None)
        shape: Complex128Array = face.landmarks.astype(np.float64, "C").view(np.complex128)[:, 0]
        shape -= shape.mean()
        size = sqrt(np.vdot(shape, shape).real / len(shape))
        shape /= size or 1
        return Surroundings(self.scene, _averaged(around), shape)


def change_of(shot: Sequence[Surroundings], now: Surroundings) -> Change:
    """Compares a frame with the last `MOST_COMPARED` before it in its shot, at least one."""
    elsewhere = is_elsewhere(shot[0].scene, now.scene)
    if _is_another(shot[-1], now) or (elsewhere and _is_another(shot[0], now, _GRADUAL_FACTOR)):
        return "scene" if elsewhere else "face"
    return "none"


def is_elsewhere(before: Float32Array, now: Float32Array) -> bool:
    """Whether two scenes are so unlike that they are different shots, if no face says otherwise."""
    return _unlikeness(before, now) >= _LEAST_SCENE_CHANGE


def _luma_of(picture: Picture, planes: YuvPlanes | None) -> UInt8Array:
    """Luma `(h, w)` uint8: all of it where planes have 8 bits, else on a grid, perhaps from RGB."""
    if planes is not None and planes.bits == 8:
        return np.asarray(planes.y, np.uint8)
    step = max(1, min(picture.shape[:2] if planes is None else planes.y.shape) // _LUMA_SIDE_PX)
    if planes is not None:
        return (planes.y[::step, ::step] >> (planes.bits - 8)).astype(np.uint8)
    grid = np.ascontiguousarray(np.asarray(picture)[::step, ::step])
    return np.asarray(cv2.cvtColor(grid, cv2.COLOR_RGB2GRAY), np.uint8)


def _unlikeness(before: Float32Array, now: Float32Array) -> float:
    """1 − correlation of two pictures, so that brightness and contrast do not count; 0 if one is flat."""
    contrast = sqrt(float(before @ before) * float(now @ now))
    return 0.0 if contrast < _LEAST_CONTRAST**2 * now.size else 1.0 - float(before @ now) / contrast


def _is_another(before: Surroundings, now: Surroundings, factor: float = 1.0) -> bool:
    # Root-mean-square distance of the landmarks after the best similarity transform, 0 to 1; 1 if unknown.
    shape_change = 1.0
    if before.shape is not None and now.shape is not None and before.shape.shape == now.shape.shape:
        likeness = abs(complex((before.shape.conj() * now.shape).mean()))
        shape_change = max(0.0, 1.0 - likeness**2) ** 0.5
    is_changed = shape_change >= factor * _LEAST_SHAPE_CHANGE
    return is_changed and _unlikeness(before.face, now.face) >= factor * _LEAST_FACE_CHANGE


def _averaged(samples: NDArray[Any]) -> Float32Array:
    """The means of all cells, less the mean of these: `(256,)`."""
    grid = samples.reshape(_CELLS, _SAMPLES_PER_CELL, _CELLS, _SAMPLES_PER_CELL)
    means = grid.sum(axis=(1, 3), dtype=np.float32).ravel() / np.float32(_SAMPLES_PER_CELL**2)
    return np.asarray(means - means.sum() / np.float32(means.size), np.float32)


def look_of(picture: Picture, face: Face) -> Float32Array | None:
    """The look of `face`, float32 `(n,)` of length 1; None if the picture is flat there."""
    upright = Region.around(face).cut(picture)[0]
    grid = upright.reshape(3, _GRID, _BLOCK_PX, _GRID, _BLOCK_PX).mean(axis=(2, 4))
    levels = np.log(grid[:, _FACE_AND_HAIR] + _DARK)
    levels -= levels.mean(axis=1, keepdims=True)
    size = float(np.linalg.norm(levels))
    return None if size < _LEAST_COLOR_CONTRAST * levels.size**0.5 else np.asarray(levels.ravel() / size, np.float32)


class Person:
    """Someone who was seen, by `number`, and remembered by looks and the last face."""

    def __init__(self, number: int, face: Face) -> None:
        self.number, self._face = number, face
        self._looks: list[Float32Array] = []

    def is_likely(self, face: Face, look: Float32Array | None) -> bool:
        """Whether `face` can be that of the person; where neither has a look, the place decides."""
        here = overlap(self._face, [face]) >= _SAME_PLACE_IOU
        if look is None or not self._looks:
            return here and (look is None) == (not self._looks)
        return self.distance(look) <= (SAME_PLACE_AND_PERSON if here else _SAME_PERSON)

    def distance(self, look: Float32Array | None) -> float:
        """How unlike the person's other looks this one is: 0 = the same, 1 = unrelated; 0 where nothing is known."""
        return 0.0 if look is None or not self._looks else 1.0 - float(np.max(np.stack(self._looks) @ look))

    def learn(self, face: Face, look: Float32Array | None) -> None:
        self._face = face
        if look is not None and (not self._looks or self.distance(look) > _NEW_LOOK):
            self._looks.append(look)
            del self._looks[1:-_MOST_LOOKS]  # the first one stays
