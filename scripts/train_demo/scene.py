"""Renders clips of the portrait with varying camera, head movement, light, color and grain."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import pi

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import region_around
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import Float32Array, UInt8Array
from scripts.train_demo.atlas import Atlas
from scripts.train_demo.mouth import AREA, ENLARGE, Mouth, MouthPose
from scripts.train_demo.visemes import MouthTrack

SIDE_PX = 320
"""Frames are squares of this size; the face fills most of one."""

_FACE_PX = (224.0, 125.0)
_ZOOM = (1.35, 2.1)
_LEANS_PX, _TURNS_DEG, _ZOOMS, _HEAD_DEG = 9.0, 4.0, 0.05, 9.0
_PERIODS_S = (2.5, 9.0)
_HEAD_EDGE_PX = 18
"""Width of the transition from the head's depth to 0 around the mesh."""

_GAMMA, _GAIN, _TINT, _SATURATION = (0.8, 1.25), (0.8, 1.15), 0.06, (0.7, 1.2)
_SHADE, _GRAIN, _BLUR_PX = 0.3, (0.0, 4.0), (0.0, 0.7)


@dataclass(frozen=True, slots=True)
class Sway:
    """A slow sum of two sines."""

    amplitude: tuple[float, float]
    period_s: tuple[float, float]
    phase: tuple[float, float]

    def at(self, time_s: float) -> float:
        """The value at a time."""
        waves = zip(self.amplitude, self.period_s, self.phase, strict=True)
        return float(sum(a * np.sin(2 * pi * time_s / period + phase) for a, period, phase in waves))


@dataclass(frozen=True, slots=True)
class Scene:
    """Camera, head movement, light and grain of one clip.

    `zoom`: frame pixels for a pixel of the photograph; `lean_x`, `lean_y` pixels, `turn` and the head's `yaw`, `pitch`
    degrees, `zooming` a share; light: `gamma`, `gain` and `tint` by channel, `saturation`, a shadow over the picture of
    depth `shade` from the direction `shade_angle`; `grain` levels; `blur_px`; `mirrored`; `seed` of the grain.
    """

    zoom: float
    lean_x: Sway
    lean_y: Sway
    turn: Sway
    zooming: Sway
    yaw: Sway
    pitch: Sway
    flicker: Sway
    gamma: float
    gain: tuple[float, float, float]
    saturation: float
    shade: float
    shade_angle: float
    grain: float
    blur_px: float
    mirrored: bool
    seed: int


def draw_scene(generator: np.random.Generator) -> Scene:
    """A random scene."""

    def sway(amplitude: float) -> Sway:
        share = generator.uniform(0.1, 1.0) * amplitude
        periods = generator.uniform(*_PERIODS_S, 2)
        phases = generator.uniform(0, 2 * pi, 2)
        return Sway((0.7 * share, 0.3 * share), (periods[0], periods[1] / 3), (phases[0], phases[1]))

    level = generator.uniform(*_GAIN)
    red, green, blue = (level * (1 + generator.normal(0, _TINT)) for _ in range(3))
    return Scene(
        zoom=generator.uniform(*_ZOOM),
        lean_x=sway(_LEANS_PX),
        lean_y=sway(_LEANS_PX),
        turn=sway(_TURNS_DEG),
        zooming=sway(_ZOOMS),
        yaw=sway(_HEAD_DEG),
        pitch=sway(_HEAD_DEG / 2),
        flicker=sway(0.05),
        gamma=generator.uniform(*_GAMMA),
        gain=(red, green, blue),
        saturation=generator.uniform(*_SATURATION),
        shade=generator.uniform(0, _SHADE),
        shade_angle=generator.uniform(0, 2 * pi),
        grain=generator.uniform(*_GRAIN) if generator.random() < 0.5 else 0.0,
        blur_px=generator.uniform(*_BLUR_PX),
        mirrored=bool(generator.random() < 0.5),
        seed=int(generator.integers(2**31)),
    )


class PortraitRenderer:
    """Renders frames of the portrait; not thread-safe."""

    def __init__(self, atlas: Atlas | None = None) -> None:
        """With an atlas, mouths are interpolated from it instead of drawn.

        Raises:
            InputError: the portrait is missing.
            ValueError: no face was found in it.
        """
        photograph, mesh = _portrait_with_mesh()
        self._mouth = Mouth(photograph, mesh)
        size = (photograph.shape[1] * ENLARGE, photograph.shape[0] * ENLARGE)
        self._large = np.asarray(cv2.resize(photograph, size, interpolation=cv2.INTER_CUBIC), np.uint8)
        self._depth = _depth(photograph.shape[:2], mesh)
        self._mouth_image = self.draw if atlas is None else atlas.mouth

    def draw(self, pose: MouthPose) -> UInt8Array:
        """The mouth's part of the enlarged portrait, uint8 `(h, w, 3)` RGB."""
        return self._mouth.draw(pose)

    def frames(self, scene: Scene, track: MouthTrack | None, frames: int, first: int = 0) -> Iterator[UInt8Array]:
        """Frames from index `first`, uint8 `(320, 320, 3)` RGB; without a track, with the photographed mouth."""
        for index in range(first, first + frames):
            yield self.frame(scene, None if track is None else pose_at(track, index), index)

    def frame(self, scene: Scene, pose: MouthPose | None, index: int) -> UInt8Array:
        """Frame `index` of a scene with the mouth in `pose`; None keeps the photographed mouth."""
        return self.variants(scene, (pose,), index)[0]

    def variants(self, scene: Scene, poses: tuple[MouthPose | None, ...], index: int) -> tuple[UInt8Array, ...]:
        """Frame `index` of a scene once for each mouth pose; all else is equal, including the grain."""
        x, y = self._sampling_map(scene, index / MODEL_FPS)
        frames = []
        for pose in poses:
            frame = cv2.remap(self._enlarged(pose), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
            frames.append(_apply_look(np.ascontiguousarray(frame[:, ::-1] if scene.mirrored else frame), scene, index))
        return tuple(frames)

    def _enlarged(self, pose: MouthPose | None) -> UInt8Array:
        if pose is None:
            return self._large
        large = self._large.copy()
        left, top, right, bottom = (edge * ENLARGE for edge in AREA)
        large[top:bottom, left:right] = self._mouth_image(pose)
        return large

    def _sampling_map(self, scene: Scene, time_s: float) -> tuple[Float32Array, Float32Array]:
        """For each pixel of the frame its x and y in the enlarged photograph."""
        zoom = scene.zoom * (1 + scene.zooming.at(time_s))
        turn = np.deg2rad(scene.turn.at(time_s))
        cos, sin = np.cos(turn) / zoom, np.sin(turn) / zoom
        middle = (SIDE_PX - 1) / 2
        across = np.arange(SIDE_PX, dtype=np.float32) - np.float32(middle + scene.lean_x.at(time_s))
        down = np.arange(SIDE_PX, dtype=np.float32)[:, None] - np.float32(middle + scene.lean_y.at(time_s))
        x = np.float32(cos) * across + np.float32(sin) * down + np.float32(_FACE_PX[0])
        y = np.float32(cos) * down - np.float32(sin) * across + np.float32(_FACE_PX[1] + 4)
        near = cv2.remap(self._depth, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        x += near * np.float32(np.sin(np.deg2rad(scene.yaw.at(time_s))))
        y += near * np.float32(np.sin(np.deg2rad(scene.pitch.at(time_s))))
        return (x + np.float32(0.5)) * ENLARGE - np.float32(0.5), (y + np.float32(0.5)) * ENLARGE - np.float32(0.5)


def pose_at(track: MouthTrack, index: int) -> MouthPose:
    """The mouth in frame `index`."""
    return MouthPose(float(track.opening[index]), float(track.width[index]), float(track.rounding[index]))


@lru_cache(maxsize=1)
def _portrait_with_mesh() -> tuple[UInt8Array, Float32Array]:
    """The photograph, uint8 `(512, 512, 3)` RGB, and FaceMesh's points in it, `(468, 3)` pixels."""
    photograph = portrait()
    detector = MediaPipeDetector()
    faces = detector.detect(photograph)
    found = detector.mesh_in(photograph, region_around(faces[0])) if faces else None
    if found is None:
        raise ValueError("the demo portrait: no face found; make the demo assets again")
    return photograph, found[0]


def _depth(shape: tuple[int, ...], mesh: Float32Array) -> Float32Array:
    """Depth of each pixel of the photograph towards the camera, in pixels; 0 away from the head."""
    canvas, weight = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    far = float(mesh[:, 2].max())
    for x, y, z in mesh.tolist():
        canvas[round(y), round(x)] += far - z
        weight[round(y), round(x)] += 1
    spread = 5.0
    known = cv2.GaussianBlur(weight, (0, 0), spread)
    inside = cv2.GaussianBlur(canvas, (0, 0), spread) / np.maximum(known, 1e-6)
    hull = np.zeros(shape, np.uint8)
    cv2.fillConvexPoly(hull, cv2.convexHull(np.rint(mesh[:, :2]).astype(np.int32)), 1)
    return cv2.GaussianBlur(np.where(hull > 0, inside, 0).astype(np.float32), (0, 0), _HEAD_EDGE_PX / 2)


def _apply_look(frame: UInt8Array, scene: Scene, index: int) -> UInt8Array:
    """Applies the scene's light, colors, blur and grain."""
    levels = np.arange(256, dtype=np.float64) / 255
    level = 1 + scene.flicker.at(index / MODEL_FPS)
    tables = [255 * (levels**scene.gamma * gain * level).clip(0, 1) for gain in scene.gain]
    table = np.stack(tables, axis=1).astype(np.float32)[None]
    lit = cv2.LUT(frame, table).astype(np.float32)
    gray = lit.mean(axis=2, keepdims=True)
    lit = gray + np.float32(scene.saturation) * (lit - gray)
    ramp = np.linspace(-1, 1, SIDE_PX, dtype=np.float32)
    slope = np.float32(np.cos(scene.shade_angle)) * ramp + np.float32(np.sin(scene.shade_angle)) * ramp[:, None]
    lit *= (1 - np.float32(scene.shade / 2) * (1 + slope.clip(-1, 1)))[..., None]
    if scene.blur_px > 0.25:
        lit = cv2.GaussianBlur(lit, (0, 0), scene.blur_px)
    if scene.grain:
        generator = np.random.Generator(np.random.PCG64([scene.seed, index]))
        lit += np.float32(scene.grain) * generator.standard_normal(lit.shape, np.float32)
    return np.rint(lit.clip(0, 255)).astype(np.uint8)
