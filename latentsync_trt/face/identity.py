"""Recognizes people: whether a face is another one than before at the same place, and who it is. No
I/O.

**Cuts.** Neither signal suffices alone: light, captions and backgrounds change the picture around a
face, and a fast turn of the head changes its landmarks, as much as another person does. Only
another person changes both at once. The limits were measured on four people at the same place:
within a shot (10,000 frames with pans, flashes, noise, moving backgrounds, passing people, 4 to 8
pictures per second), and at 180 cuts between them.

**People** are told apart by their looks: a coarse picture of the upright face and hair, in colors
relative to their mean, so that brightness and a tint of the light do not count. Measured on six
people in 75 pictures: pictures of one person are up to 0.35 apart (95 %), of two people 0.44 or
more.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from math import sqrt
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.face.geometry import MESH_SIDE_PX, REGION_SCALE, Region, overlap
from latentsync_trt.types import Complex128Array, Face, Float32Array, Picture, UInt8Array, YuvPlanes

_LEAST_SHAPE_CHANGE = 0.04
_LEAST_FACE_CHANGE = 0.4
"""Both needed. Measured: cuts begin at 0.057 and 0.45. Within a shot fast heads reach 0.13 and
0.28, and moving light 0.08 and 0.73; both limits together are reached only at 4 pictures per
second, and by captions on the face.
"""
MOST_COMPARED = 12
_GRADUAL_FACTOR = 1.4
"""A dissolve of half a second, and pictures blended by a conversion between frame rates, change
little at a time. Over half a second heads turn, too, so both limits are higher, and the scene must
change as well.
"""
_LEAST_SCENE_CHANGE = 0.5
"""Measured: up to 0.37 over half a second of a steady camera."""
_LEAST_DISSOLVED = 0.25
_MOST_BESIDE = 0.25
"""How unlike scenes are from a dissolve on, and how far those between may be from a blend of both,
in parts of the change. Measured: 0.11 to 0.27 in dissolves between filmed people, 0.31 or more
where a camera moves, or people do.
"""
_SCENE_STEP_S = Fraction(1, 9)
"""Time between the scenes that are remembered."""
_DISSOLVE_SCENES = (4, 8, 16)
"""So many scenes ago a dissolve may have begun: half a second, one, and two."""
_MOST_SCENES = max(_DISSOLVE_SCENES) + 1
_CELLS = 16
_SAMPLES_PER_CELL = 4
_SAMPLES = _SAMPLES_PER_CELL * _CELLS
"""Per axis: enough to average noise and fine textures, and as fast for an 8K picture as for a small
one.
"""
_LEAST_CONTRAST = 1.0
"""Standard deviation in levels below which a picture is flat: what is left is noise."""
_LUMA_SIDE_PX = 256

_SAME_PERSON = 0.36
SAME_PLACE_AND_PERSON = 0.43
"""Limit for a face at the place where the person was just seen."""
_SAME_PLACE_IOU = 0.3

_GRID = 16
_BLOCK_PX = MESH_SIDE_PX // _GRID
_Y, _X = (np.mgrid[0:_GRID, 0:_GRID] - (_GRID - 1) / 2) / _GRID
_HALF_WIDTH = 0.39
_HALF_HEIGHT = 0.45
_FACE_AND_HAIR = np.hypot(_X / _HALF_WIDTH, _Y / _HALF_HEIGHT) < 1
LOOK_REACH = (REGION_SCALE * _HALF_WIDTH, REGION_SCALE * _HALF_HEIGHT)
"""How far a look reaches from the middle of a face, across and up, in lengths of the longer side of
its box.
"""
_DARK = 8 / 255
"""Keeps the noise of dark places from counting."""
_LEAST_COLOR_CONTRAST = 0.1
"""Norm per sample below which a picture is flat."""
_NEW_LOOK = 0.06
_MOST_LOOKS = 24
"""Looks of a person that are remembered are at least so different, and at most so many."""
_STEADY = 0.12
"""Measured: while people talk, looks of one person differ by 0.08 to 0.15 in the mean over seconds;
in a dissolve of a second, and while a face comes in at an edge, by 0.3 or more within 0.4 s.
"""

Change = Literal["none", "face", "scene"]
"""What a frame shows, compared with those before: the same person, another one there, or another
shot.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """What is compared of a frame.

    `scene`: the whole picture; `face`: the upright face and what is around; both luma levels less
    their mean, float32 `(256,)`. `shape (n,)`: the landmarks as x + iy, centered, with a mean
    square of 1; None if there are none.
    """

    scene: Float32Array
    face: Float32Array
    shape: Complex128Array | None


class View:
    """A frame, `picture` with square pixels; luma of `planes`, if given, perhaps with other pixels.
    `scene`: see `Surroundings`. `look`: of a face, see `look_of`, computed once. `overview`: makes
    a picture for the search.
    """

    def __init__(
        self,
        picture: Picture,
        planes: YuvPlanes | None,
        overview: Callable[[], UInt8Array] | None = None,
    ) -> None:
        self.picture = picture
        self._luma = _luma_of(picture, planes)
        self.look = cache(partial(look_of, picture))
        self.overview = overview or partial(np.asarray, picture)
        samples = np.empty((_SAMPLES, _SAMPLES), np.uint8)
        cv2.resize(self._luma, samples.shape, dst=samples, interpolation=cv2.INTER_LINEAR)
        self.scene = _averaged(samples)

    def around(self, face: Face) -> Surroundings:
        luma = self._luma
        scales = (
            own / whole
            for own, whole in zip(luma.shape[1::-1], self.picture.shape[1::-1], strict=False)
        )
        rows = zip(scales, Region.around(face).to_frame().tolist(), strict=True)
        step = MESH_SIDE_PX / _SAMPLES
        matrix = np.array(
            [
                [a * step * scale, b * step * scale, start * scale + (scale - 1) / 2]
                for scale, (a, b, start) in rows
            ]
        )
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        around = np.empty((_SAMPLES, _SAMPLES), np.uint8)
        cv2.warpAffine(
            luma, matrix, around.shape, dst=around, flags=flags, borderMode=cv2.BORDER_REPLICATE
        )
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
        if elsewhere:
            return "scene"
        return "face"
    return "none"


class Past:
    """Scenes of the last two seconds of a shot, which tell a dissolve: all pictures in it are
    between two others.
    """

    def __init__(self) -> None:
        self._scenes: deque[tuple[Fraction, Float32Array]] = deque(maxlen=_MOST_SCENES)

    def add(self, scene: Float32Array, time_s: Fraction) -> None:
        """Remembers the next scene, if the last one is not too near."""
        if not self._scenes or time_s - self._scenes[-1][0] >= _SCENE_STEP_S:
            self._scenes.append((time_s, scene))

    def is_dissolved(self, now: Float32Array, time_s: Fraction) -> bool:
        """Whether the scene of a time has become `now` by a dissolve."""
        scenes = [scene for before_s, scene in self._scenes if time_s - before_s >= _SCENE_STEP_S]
        return any(
            _is_dissolve(scenes[-count:], now) for count in _DISSOLVE_SCENES if count <= len(scenes)
        )


def _is_dissolve(scenes: Sequence[Float32Array], now: Float32Array) -> bool:
    first, *between = scenes
    if _unlikeness(first, now) < _LEAST_DISSOLVED:
        return False
    change = now - first
    size = float(change @ change)
    shares = [float((scene - first) @ change) / size for scene in between]
    if sum(0.2 < share < 0.8 for share in shares) < 2:
        return False
    beside = (scene - first - share * change for scene, share in zip(between, shares, strict=True))
    return all(float(each @ each) <= _MOST_BESIDE**2 * size for each in beside)


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
    """1 − correlation of two pictures, so that brightness and contrast do not count; 0 if one is
    flat.
    """
    contrast = sqrt(float(before @ before) * float(now @ now))
    if contrast < _LEAST_CONTRAST**2 * now.size:
        return 0.0
    return 1.0 - float(before @ now) / contrast


def shape_change(before: Complex128Array | None, now: Complex128Array | None) -> float:
    """Root-mean-square distance of two shapes after the best similarity transform, 0 to 1; 1 if one
    is unknown.
    """
    if before is None or now is None or before.shape != now.shape:
        return 1.0
    likeness = abs(complex((before.conj() * now).mean()))
    return max(0.0, 1.0 - likeness**2) ** 0.5


def _is_another(before: Surroundings, now: Surroundings, factor: float = 1.0) -> bool:
    is_changed = shape_change(before.shape, now.shape) >= factor * _LEAST_SHAPE_CHANGE
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
    if size < _LEAST_COLOR_CONTRAST * levels.size**0.5:
        return None
    return np.asarray(levels.ravel() / size, np.float32)


class Person:
    """Someone who was seen, by `number`, and remembered by looks and the last face.

    As long as all looks are doubtful, for the face is partly hidden, or changes, each is learned.
    The first certain one replaces them; from then on, a doubtful one is learned only if it is like
    a certain one, so that a person does not become another one little by little.
    """

    def __init__(self, number: int, face: Face) -> None:
        self.number = number
        self._face = face
        self._looks: list[Float32Array] = []
        self._certain: list[Float32Array] = []

    @property
    def is_certain(self) -> bool:
        """Whether a certain look is known."""
        return bool(self._certain)

    def is_likely(self, face: Face, look: Float32Array | None) -> bool:
        """Whether `face` can be that of the person; where neither has a look, the place decides."""
        here = overlap(self._face, [face]) >= _SAME_PLACE_IOU
        if look is None or not self._looks:
            return here and (look is None) == (not self._looks)
        return self.distance(look) <= (SAME_PLACE_AND_PERSON if here else _SAME_PERSON)

    def distance(self, look: Float32Array | None) -> float:
        """How unlike the person's other looks this one is: 0 = the same, 1 = unrelated; 0 where
        nothing is known.
        """
        if look is None:
            return 0.0
        return _distance(self._looks, look)

    def learn(self, face: Face, look: Float32Array | None, *, is_certain: bool) -> None:
        """Remembers where the person was seen last, and how, if there is a look."""
        self._face = face
        if look is None:
            return
        if is_certain:
            _add(self._certain, look)
            self._looks = [one for one in self._looks if self._is_near(one)]
        if self._is_near(look):
            _add(self._looks, look)

    def _is_near(self, look: Float32Array) -> bool:
        """Whether a look is like a certain one, if there is one."""
        return _distance(self._certain, look) <= SAME_PLACE_AND_PERSON


def _add(looks: list[Float32Array], look: Float32Array) -> None:
    """Adds a look to different ones; the first one stays."""
    if not looks or _distance(looks, look) > _NEW_LOOK:
        looks.append(look)
        del looks[1:-_MOST_LOOKS]


def are_alike(one: Float32Array | None, other: Float32Array | None) -> bool:
    """Whether two looks are of one person; unknown ones are not."""
    return one is not None and other is not None and _distance([one], other) <= _SAME_PERSON


def _distance(looks: Sequence[Float32Array], look: Float32Array) -> float:
    """To the nearest of some looks; 0 if there are none."""
    if looks:
        return 1.0 - float(np.max(np.stack(looks) @ look))
    return 0.0


class Steady:
    """Whether a face has looked the same for a while: then nothing covers it, no light flashes, and
    it does not change into another one.
    """

    def __init__(self) -> None:
        self._look: Float32Array | None = None
        self._since_s = Fraction(0)

    def lasts_s(self, look: Float32Array | None, time_s: Fraction) -> Fraction:
        """How long the face has had about the `look` that it has at `time_s`; None = no look, which
        does not last.
        """
        is_same = (
            look is not None
            and self._look is not None
            and 1.0 - float(self._look @ look) <= _STEADY
        )
        if not is_same:
            self._look = look
            self._since_s = time_s
        return time_s - self._since_s
