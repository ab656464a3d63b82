"""Recognizes whether a frame shows another face than before at the same place, or another shot. No
I/O.

Neither signal suffices alone: light, captions and backgrounds change the picture around a face, and
a fast turn of the head changes its landmarks, as much as another person does. Only another person
changes both at once. The limits were measured on four people at the same place: within a shot
(10,000 frames with pans, flashes, noise, moving backgrounds, passing people, 4 to 8 pictures per
second), and at 180 cuts between them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from math import sqrt
from typing import Literal

import cv2
import numpy as np

from latentsync_trt.face.align import scaled_matrix
from latentsync_trt.face.geometry import MESH_SIDE_PX, Region, as_complex
from latentsync_trt.face.identity import look_of
from latentsync_trt.types import Complex128Array, Face, Float32Array, Picture, UInt8Array, YuvPlanes

_LEAST_SHAPE_CHANGE = 0.04
_LEAST_FACE_CHANGE = 0.4
"""How much the landmarks and the picture of a face change at least where it is another one.
Measured: cuts begin at 0.057 and 0.45. Within a shot fast heads reach 0.13 and 0.28, and moving
light 0.08 and 0.73; both limits together are reached only at 4 pictures per second, and by captions
on the face.
"""
MOST_COMPARED = 12
"""Frames before, half a second, with which a frame is compared."""
_GRADUAL_FACTOR = 1.4
"""Both limits are higher by this over half a second, in which heads turn, too; the scene must
change as well. A dissolve, and pictures blended by a conversion between frame rates, change little
at a time.
"""
_LEAST_SCENE_CHANGE = 0.5
"""How unlike two scenes of different shots are. Measured: up to 0.37 over half a second of a steady
camera.
"""
_LEAST_DISSOLVED = 0.25
_MOST_BESIDE = 0.25
"""How unlike scenes are from a dissolve on, and how far those between may be from a blend of both,
in parts of the change. Measured: 0.11 to 0.27 in dissolves between filmed people, 0.31 or more
where a camera moves, or people do.
"""
_HALFWAY_FROM = 0.2
_HALFWAY_TO = 0.8
_LEAST_HALFWAY = 2
"""At least so many scenes of a dissolve lie between these parts of the change. At a cut none does,
or one that a conversion between frame rates has blended.
"""
_SCENE_STEP_S = Fraction(1, 9)
"""Time between the scenes that are remembered."""
_DISSOLVE_SCENES = (4, 8, 16)
"""Numbers of scenes ago when a dissolve may have begun: half a second, one, and two."""
_MOST_SCENES = max(_DISSOLVE_SCENES) + 1
_CELLS = 16
_SAMPLES_PER_CELL = 4
_SAMPLES = _SAMPLES_PER_CELL * _CELLS
"""Samples per axis: enough to average noise and fine textures, and as fast for an 8K picture as for
a small one.
"""
_LEAST_CONTRAST = 1.0
"""Standard deviation in levels below which a picture is flat: what is left is noise."""
_LUMA_SIDE_PX = 256
"""Shorter side, or more, of the luma that is compared."""

Change = Literal["none", "face", "scene"]
"""What a frame shows, compared with those before: the same person, another one there, or another
shot.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """What is compared of a frame. Pictures are luma levels less their mean, float32 `(256,)`."""

    scene: Float32Array
    """The whole picture."""
    face: Float32Array
    """The upright face and what is around it."""
    shape: Complex128Array | None
    """The landmarks `(n,)` as x + iy, centered, with a mean square of 1; None if there are none."""


class View:
    """A frame as the tracker sees it.

    Args:
        picture: uint8 `(H, W, 3)` RGB of square pixels.
        planes: of the same picture, perhaps with other pixels; their luma is compared, if there are
            any.
        overview: makes a picture for the search of faces; None = `picture`.
    """

    def __init__(
        self,
        picture: Picture,
        planes: YuvPlanes | None,
        overview: Callable[[], UInt8Array] | None = None,
    ) -> None:
        self.picture = picture
        self.look = cache(partial(look_of, picture))
        """Returns the look of a face, see `look_of`, which it computes once."""
        self.overview = overview or partial(np.asarray, picture)
        self._luma = _luma_of(picture, planes)
        samples = np.empty((_SAMPLES, _SAMPLES), np.uint8)
        cv2.resize(self._luma, samples.shape, dst=samples, interpolation=cv2.INTER_LINEAR)
        self.scene = _averaged(samples)
        """See `Surroundings`."""

    def around(self, face: Face) -> Surroundings:
        """Returns what is compared of this frame, with `face` in it."""
        region = Region.around(face).to_frame()
        region[:, :2] *= MESH_SIDE_PX / _SAMPLES
        height, width = self._luma.shape
        x_scale = width / self.picture.shape[1]
        y_scale = height / self.picture.shape[0]
        samples = np.empty((_SAMPLES, _SAMPLES), np.uint8)
        cv2.warpAffine(
            self._luma,
            scaled_matrix(region, x_scale, y_scale),
            samples.shape,
            dst=samples,
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return Surroundings(self.scene, _averaged(samples), _shape_of(face.landmarks))


def _shape_of(landmarks: Float32Array | None) -> Complex128Array | None:
    if landmarks is None:
        return None
    shape = as_complex(landmarks)
    shape -= shape.mean()
    size = sqrt(np.vdot(shape, shape).real / len(shape))
    shape /= size or 1
    return shape


def change_of(before: Sequence[Surroundings], now: Surroundings) -> Change:
    """Compares a frame with the last `MOST_COMPARED` before it in its shot, at least one."""
    elsewhere = is_elsewhere(before[0].scene, now.scene)
    is_sudden = _is_another(before[-1], now)
    if not is_sudden and not (elsewhere and _is_another(before[0], now, _GRADUAL_FACTOR)):
        return "none"
    return "scene" if elsewhere else "face"


class SceneHistory:
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
        """Whether a scene of the last two seconds has become `now`, at `time_s`, by a dissolve."""
        scenes = [scene for before_s, scene in self._scenes if time_s - before_s >= _SCENE_STEP_S]
        for count in _DISSOLVE_SCENES:
            if count <= len(scenes) and _is_dissolve(scenes[-count:], now):
                return True
        return False


def _is_dissolve(scenes: Sequence[Float32Array], now: Float32Array) -> bool:
    """Whether all scenes are blends of the first one and `now`, and several show much of both."""
    first = scenes[0]
    if _unlikeness(first, now) < _LEAST_DISSOLVED:
        return False
    change = now - first
    size = float(change @ change)
    halfway = 0
    for scene in scenes[1:]:
        changed = scene - first
        share = float(changed @ change) / size
        beside = changed - share * change
        if float(beside @ beside) > _MOST_BESIDE**2 * size:
            return False
        halfway += _HALFWAY_FROM < share < _HALFWAY_TO
    return halfway >= _LEAST_HALFWAY


def is_elsewhere(before: Float32Array, now: Float32Array) -> bool:
    """Whether two scenes are so unlike that they are different shots, if no face says otherwise."""
    return _unlikeness(before, now) >= _LEAST_SCENE_CHANGE


def _luma_of(picture: Picture, planes: YuvPlanes | None) -> UInt8Array:
    """Returns luma, uint8 `(h, w)`: all of it where planes have 8 bits, else on a grid, perhaps
    from RGB.
    """
    if planes is None:
        step = max(1, min(picture.shape[:2]) // _LUMA_SIDE_PX)
        grid = np.ascontiguousarray(np.asarray(picture)[::step, ::step])
        return np.asarray(cv2.cvtColor(grid, cv2.COLOR_RGB2GRAY), np.uint8)
    if planes.bits == 8:
        return np.asarray(planes.y, np.uint8)
    step = max(1, min(planes.y.shape) // _LUMA_SIDE_PX)
    levels = planes.y[::step, ::step] >> (planes.bits - 8)
    return levels.astype(np.uint8)


def _unlikeness(before: Float32Array, now: Float32Array) -> float:
    """Returns 1 − the correlation of two pictures, so that brightness and contrast do not count; 0
    if one is flat.
    """
    contrast = sqrt(float(before @ before) * float(now @ now))
    if contrast < _LEAST_CONTRAST**2 * now.size:
        return 0.0
    return 1.0 - float(before @ now) / contrast


def shape_change(before: Complex128Array | None, now: Complex128Array | None) -> float:
    """Returns the root-mean-square distance of two shapes after the best similarity transform, 0 to
    1; 1 if one is unknown.
    """
    if before is None or now is None:
        return 1.0
    if before.shape != now.shape:
        return 1.0
    likeness = abs(complex((before.conj() * now).mean()))
    return max(0.0, 1.0 - likeness**2) ** 0.5


def _is_another(before: Surroundings, now: Surroundings, factor: float = 1.0) -> bool:
    if shape_change(before.shape, now.shape) < factor * _LEAST_SHAPE_CHANGE:
        return False
    return _unlikeness(before.face, now.face) >= factor * _LEAST_FACE_CHANGE


def _averaged(samples: UInt8Array) -> Float32Array:
    """Returns the means of all cells, less the mean of these: `(256,)`."""
    grid = samples.reshape(_CELLS, _SAMPLES_PER_CELL, _CELLS, _SAMPLES_PER_CELL)
    means = grid.mean(axis=(1, 3), dtype=np.float32).ravel()
    return means - means.mean()
