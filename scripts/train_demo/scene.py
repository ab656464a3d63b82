"""Renders clips of the portrait with varying camera, head movement, light, color and grain."""

from collections.abc import Callable, Sequence
from math import pi

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import Region
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array
from scripts.train_demo.mouth import AREA, ENLARGE, Mouth

SIDE_PX = 320  # frames are squares of this size; the face fills most of one
_FACE_PX = (224.0, 125.0)
_ZOOM = (1.35, 2.1)
_LEANS_PX = 9.0
_TURNS_DEG = 4.0
_ZOOMS = 0.05
_HEAD_DEG = 9.0
_PERIODS_S = (2.5, 9.0)
_HEAD_EDGE_PX = 18  # width of the transition from the head's depth to 0 around the mesh
_GAMMA = (0.8, 1.25)
_GAIN = (0.8, 1.15)
_TINT = 0.06
_SATURATION = (0.7, 1.2)
_SHADE = 0.3
_GRAIN = (0.0, 4.0)
_BLUR_PX = (0.0, 0.7)


class Scene:
    """Camera, head movement, light and grain of one clip, drawn at random.

    `zoom`: frame pixels for a pixel of the photograph; `lean_x`, `lean_y` pixels, `turn` and the
    head's `yaw`, `pitch` degrees, `zooming` a share; light: `gamma`, `gain` and tint by channel,
    `saturation`, a shadow over the picture of depth `shade` from the direction `shade_angle`;
    `grain` levels; `blur_px`; `mirrored`; `seed` of the grain.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        def sway(amplitude: float) -> Float64Array:
            """A slow sum of two sines: amplitude, period in seconds and phase of each, `(3, 2)`."""
            share = generator.uniform(0.1, 1.0) * amplitude
            periods = generator.uniform(*_PERIODS_S, 2)
            phases = generator.uniform(0, 2 * pi, 2)
            return np.array([(0.7 * share, 0.3 * share), (periods[0], periods[1] / 3), phases])

        level = generator.uniform(*_GAIN)
        self.gain = [level * (1 + generator.normal(0, _TINT)) for _ in range(3)]
        self.zoom = generator.uniform(*_ZOOM)
        self.lean_x = sway(_LEANS_PX)
        self.lean_y = sway(_LEANS_PX)
        self.turn = sway(_TURNS_DEG)
        self.zooming = sway(_ZOOMS)
        self.yaw = sway(_HEAD_DEG)
        self.pitch = sway(_HEAD_DEG / 2)
        self.flicker = sway(0.05)
        self.gamma = generator.uniform(*_GAMMA)
        self.saturation = generator.uniform(*_SATURATION)
        self.shade = generator.uniform(0, _SHADE)
        self.shade_angle = generator.uniform(0, 2 * pi)
        self.grain = generator.uniform(*_GRAIN) if generator.random() < 0.5 else 0.0
        self.blur_px = generator.uniform(*_BLUR_PX)
        self.mirrored = bool(generator.random() < 0.5)
        self.seed = int(generator.integers(2**31))


class PortraitRenderer:
    """Renders frames of the portrait; not thread-safe."""

    def __init__(self, draw: Callable[[Float32Array], UInt8Array] | None = None) -> None:
        """`draw` makes the mouth's part of the enlarged portrait, uint8 `(h, w, 3)` RGB, for a pose
        `(3,)`.
        """
        photograph = portrait()
        detector = MediaPipeDetector()
        mesh, _ = detector.mesh_in(photograph, Region.around(detector.detect(photograph)[0]))
        size = (photograph.shape[1] * ENLARGE, photograph.shape[0] * ENLARGE)
        self._large = np.asarray(
            cv2.resize(photograph, size, interpolation=cv2.INTER_CUBIC), np.uint8
        )
        self._depth = _depth(photograph.shape[:2], mesh)
        self.draw = Mouth(photograph, mesh).draw if draw is None else draw

    def variants(
        self, scene: Scene, poses: Sequence[Float32Array | None], index: int
    ) -> tuple[UInt8Array, ...]:
        """Frame `index` of a scene once for each pose `(3,)` of the mouth; None keeps the
        photographed mouth.

        All else is equal, including the grain.
        """
        x, y = self._sampling_map(scene, index / MODEL_FPS)
        frames = []
        for pose in poses:
            frame = cv2.remap(
                self._enlarged(pose), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
            )
            frames.append(
                _apply_look(
                    np.ascontiguousarray(frame[:, ::-1] if scene.mirrored else frame), scene, index
                )
            )
        return tuple(frames)

    def _enlarged(self, pose: Float32Array | None) -> UInt8Array:
        if pose is None:
            return self._large
        large = self._large.copy()
        left, top, right, bottom = (edge * ENLARGE for edge in AREA)
        large[top:bottom, left:right] = self.draw(pose)
        return large

    def _sampling_map(self, scene: Scene, time_s: float) -> tuple[Float32Array, Float32Array]:
        """For each pixel of the frame its x and y in the enlarged photograph."""
        zoom = scene.zoom * (1 + _at(scene.zooming, time_s))
        turn = np.deg2rad(_at(scene.turn, time_s))
        cos = np.cos(turn) / zoom
        sin = np.sin(turn) / zoom
        middle = (SIDE_PX - 1) / 2
        across = np.arange(SIDE_PX, dtype=np.float32) - np.float32(
            middle + _at(scene.lean_x, time_s)
        )
        down = np.arange(SIDE_PX, dtype=np.float32)[:, None] - np.float32(
            middle + _at(scene.lean_y, time_s)
        )
        x = np.float32(cos) * across + np.float32(sin) * down + np.float32(_FACE_PX[0])
        y = np.float32(cos) * down - np.float32(sin) * across + np.float32(_FACE_PX[1] + 4)
        near = cv2.remap(self._depth, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        x += near * np.float32(np.sin(np.deg2rad(_at(scene.yaw, time_s))))
        y += near * np.float32(np.sin(np.deg2rad(_at(scene.pitch, time_s))))
        return (x + np.float32(0.5)) * ENLARGE - np.float32(0.5), (
            y + np.float32(0.5)
        ) * ENLARGE - np.float32(0.5)


def _at(sway: Float64Array, time_s: float) -> float:
    amplitude, period_s, phase = sway
    return float(sum(amplitude * np.sin(2 * pi * time_s / period_s + phase)))


def _depth(shape: tuple[int, ...], mesh: Float32Array) -> Float32Array:
    """Depth of each pixel of the photograph towards the camera, in pixels; 0 away from the head."""
    canvas = np.zeros(shape, np.float32)
    weight = np.zeros(shape, np.float32)
    far = float(mesh[:, 2].max())
    for x, y, z in mesh.tolist():
        canvas[round(y), round(x)] += far - z
        weight[round(y), round(x)] += 1
    spread = 5.0
    known = cv2.GaussianBlur(weight, (0, 0), spread)
    inside = cv2.GaussianBlur(canvas, (0, 0), spread) / np.maximum(known, 1e-6)
    hull = np.zeros(shape, np.uint8)
    cv2.fillConvexPoly(hull, cv2.convexHull(np.rint(mesh[:, :2]).astype(np.int32)), 1)
    return cv2.GaussianBlur(
        np.where(hull > 0, inside, 0).astype(np.float32), (0, 0), _HEAD_EDGE_PX / 2
    )


def _apply_look(frame: UInt8Array, scene: Scene, index: int) -> UInt8Array:
    """Applies the scene's light, colors, blur and grain."""
    levels = np.arange(256, dtype=np.float64) / 255
    level = 1 + _at(scene.flicker, index / MODEL_FPS)
    tables = [255 * (levels**scene.gamma * gain * level).clip(0, 1) for gain in scene.gain]
    table = np.stack(tables, axis=1).astype(np.float32)[None]
    lit = cv2.LUT(frame, table).astype(np.float32)
    gray = lit.mean(axis=2, keepdims=True)
    lit = gray + np.float32(scene.saturation) * (lit - gray)
    ramp = np.linspace(-1, 1, SIDE_PX, dtype=np.float32)
    slope = (
        np.float32(np.cos(scene.shade_angle)) * ramp
        + np.float32(np.sin(scene.shade_angle)) * ramp[:, None]
    )
    lit *= (1 - np.float32(scene.shade / 2) * (1 + slope.clip(-1, 1)))[..., None]
    if scene.blur_px > 0.25:
        lit = cv2.GaussianBlur(lit, (0, 0), scene.blur_px)
    if scene.grain:
        generator = np.random.Generator(np.random.PCG64([scene.seed, index]))
        lit += np.float32(scene.grain) * generator.standard_normal(lit.shape, np.float32)
    return np.rint(lit.clip(0, 255)).astype(np.uint8)
