"""Renders clips of the portrait with varying camera, head movement, light, color and grain, many
frames at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, pi

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array
from scripts.train_demo.mouth import AREA, ENLARGE, Mouth
from scripts.train_demo.warp import sampled

SIDE_PX = 320
"""Frames are squares of this size; the face fills most of one."""
_FACE_PX = (224.0, 125.0)
_ZOOM = (0.85, 1.45)
"""About 1 in the built-in clip, which shows the photograph in its own size."""
_LEANS_PX = 9.0
_TURNS_DEG = 4.0
_ZOOMS = 0.05
_HEAD_DEG = 9.0
_PERIODS_S = (2.5, 9.0)
_HEAD_EDGE_PX = 18
"""Width of the transition from the head's depth to 0 around the mesh."""
_DEPTH_SPREAD_PX = 5.0
_GAMMA = (0.8, 1.25)
_GAIN = (0.8, 1.15)
_TINT = 0.06
_SATURATION = (0.7, 1.2)
_SHADE = 0.3
_GRAIN = (0.0, 4.0)
_BLUR_PX = (0.0, 0.5)
_LEAST_BLUR_PX = 0.25
_OF_LIGHT = (
    *("gain", "flicker", "gamma", "saturation", "shade", "shade_angle"),
    *("grain", "blur_px", "seed"),
)


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

    def take_light(self, other: "Scene") -> None:
        """Takes light, colors, blur and grain of another scene; camera and head stay."""
        for name in _OF_LIGHT:
            setattr(self, name, getattr(other, name))


@dataclass(frozen=True, slots=True, eq=False)
class Portrait:
    """The photograph, and where the face is in it, in pixels."""

    photograph: UInt8Array
    """`(H, W, 3)` RGB."""
    mesh: Float32Array
    """FaceMesh's points, `(468, 3)`: x, y and depth."""
    pinned: Float64Array
    """Points along the lower border of the region that the model generates, `(n, 2)`: skin there
    stays where it is, so that no border is seen.
    """


class PortraitRenderer:
    """Renders frames of the portrait on a device."""

    def __init__(self, portrait: Portrait, device: torch.device) -> None:
        photograph = portrait.photograph
        size = (photograph.shape[1] * ENLARGE, photograph.shape[0] * ENLARGE)
        large = np.asarray(cv2.resize(photograph, size, interpolation=cv2.INTER_CUBIC), np.uint8)
        self.device = device
        self._large = torch.from_numpy(large).to(device).permute(2, 0, 1).float()[None]
        depth = _depth(photograph.shape[:2], portrait.mesh)
        self._depth = torch.from_numpy(depth).to(device)[None, None]
        self.mouth = Mouth(photograph, portrait.mesh, portrait.pinned, device)

    def variants(
        self, scene: Scene, indices: Tensor, poses: Sequence[Tensor | None]
    ) -> Iterator[Tensor]:
        """Yields frames of a scene once for each of `poses`, float32 `(n, 3, 320, 320)` RGB, whole
        numbers in [0, 255]; all else is equal, the grain as well.

        `indices (n,)` of the frames; `poses (n, 5)` of the mouth, None keeps the photographed one.
        """
        time_s = indices.to(self.device).float() / MODEL_FPS
        x, y = self._places(scene, time_s)
        still = sampled(self._large.expand(len(x), -1, -1, -1), x, y)
        grain = scene.grain * self._grain(scene.seed, indices) if scene.grain else None
        left, top, right, bottom = (edge * ENLARGE for edge in AREA)
        within = (x > left) & (x < right - 1) & (y > top) & (y < bottom - 1)
        for pose in poses:
            shown = still
            if pose is not None:
                mouths = sampled(self.mouth.draw(pose.to(self.device)), x - left, y - top)
                shown = torch.where(within[:, None], mouths, still)
            if scene.mirrored:
                shown = shown.flip(3)
            lit = self._lit(shown, scene, time_s)
            if grain is not None:
                lit = lit + grain
            yield lit.round().clamp(0, 255)

    def _places(self, scene: Scene, time_s: Tensor) -> tuple[Tensor, Tensor]:
        """For each pixel of the frames its x and y in the enlarged photograph, `(n, 320, 320)`."""
        zoom = scene.zoom * (1 + _at(scene.zooming, time_s))
        turn = torch.deg2rad(_at(scene.turn, time_s))
        cos = torch.cos(turn) / zoom
        sin = torch.sin(turn) / zoom
        middle = (SIDE_PX - 1) / 2
        steps = torch.arange(SIDE_PX, device=self.device) - middle
        across = steps - _at(scene.lean_x, time_s)
        down = steps[:, None] - _at(scene.lean_y, time_s)
        x = cos * across + sin * down + _FACE_PX[0]
        y = cos * down - sin * across + _FACE_PX[1] + 4
        near = sampled(self._depth.expand(len(x), -1, -1, -1), x, y)[:, 0]
        x = x + near * torch.sin(torch.deg2rad(_at(scene.yaw, time_s)))
        y = y + near * torch.sin(torch.deg2rad(_at(scene.pitch, time_s)))
        return (x + 0.5) * ENLARGE - 0.5, (y + 0.5) * ENLARGE - 0.5

    def _lit(self, shown: Tensor, scene: Scene, time_s: Tensor) -> Tensor:
        """Applies the scene's light, colors and blur."""
        gain = (
            shown.new_tensor(scene.gain)[:, None, None] * (1 + _at(scene.flicker, time_s))[:, None]
        )
        lit = 255 * ((shown.clamp(0, 255) / 255) ** scene.gamma * gain).clamp(0, 1)
        gray = lit.mean(1, keepdim=True)
        lit = gray + scene.saturation * (lit - gray)
        ramp = torch.linspace(-1, 1, SIDE_PX, device=self.device)
        slope = float(np.cos(scene.shade_angle)) * ramp
        slope = slope + float(np.sin(scene.shade_angle)) * ramp[:, None]
        lit = lit * (1 - scene.shade / 2 * (1 + slope.clamp(-1, 1)))
        if scene.blur_px > _LEAST_BLUR_PX:
            lit = _blurred(lit, scene.blur_px)
        return lit

    def _grain(self, seed: int, indices: Tensor) -> Tensor:
        """Standard normal values, `(n, 3, 320, 320)`."""
        generator = torch.Generator(self.device).manual_seed(seed + int(indices[0]))
        shape = (len(indices), 3, SIDE_PX, SIDE_PX)
        return torch.randn(shape, generator=generator, device=self.device)


def _at(sway: Float64Array, time_s: Tensor) -> Tensor:
    """A sway at each of `time_s (n,)`: `(n, 1, 1)`."""
    total = torch.zeros_like(time_s)
    for amplitude, period_s, phase in sway.T.tolist():
        total = total + amplitude * torch.sin(2 * pi * time_s / period_s + phase)
    return total[:, None, None]


def _blurred(pictures: Tensor, spread_px: float) -> Tensor:
    """Blurs `(n, 3, h, w)` by a Gaussian of this standard deviation."""
    reach = ceil(3 * spread_px)
    steps = torch.arange(-reach, reach + 1, device=pictures.device)
    weights = torch.exp(-((steps / spread_px) ** 2) / 2)
    weights = (weights / weights.sum()).expand(pictures.shape[1], 1, 1, -1)
    padded = F.pad(pictures, (reach,) * 4, mode="reflect")
    across = F.conv2d(padded, weights, groups=pictures.shape[1])
    return F.conv2d(across, weights.transpose(2, 3), groups=pictures.shape[1])


def _depth(shape: tuple[int, ...], mesh: Float32Array) -> Float32Array:
    """Depth of each pixel of the photograph towards the camera, in pixels; 0 away from the head."""
    canvas = np.zeros(shape, np.float32)
    weight = np.zeros(shape, np.float32)
    far = float(mesh[:, 2].max())
    for x, y, z in mesh.tolist():
        canvas[round(y), round(x)] += far - z
        weight[round(y), round(x)] += 1
    known = cv2.GaussianBlur(weight, (0, 0), _DEPTH_SPREAD_PX)
    inside = cv2.GaussianBlur(canvas, (0, 0), _DEPTH_SPREAD_PX) / np.maximum(known, 1e-6)
    hull = np.zeros(shape, np.uint8)
    cv2.fillConvexPoly(hull, cv2.convexHull(np.rint(mesh[:, :2]).astype(np.int32)), 1)
    return cv2.GaussianBlur(
        np.where(hull > 0, inside, 0).astype(np.float32), (0, 0), _HEAD_EDGE_PX / 2
    )
