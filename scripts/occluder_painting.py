"""Tools to draw objects: layers with soft edges, solids of revolution and the light on them."""

from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.types import Float32Array
from scripts.occluder_objects import Cutout

_CANVAS_PX = 600
"""Side of the canvas of a drawn object, which is larger than any face: it is only made smaller."""
EDGE = 4 / _CANVAS_PX
"""Width of an edge, in sides of the canvas: about a pixel where an object is shown."""
_GRAIN_LEVELS = 2.0
"""Standard deviation of the grain of drawn objects, about that of the clips."""

Color = tuple[float, float, float]
"""RGB, 0 to 255."""


class Painting:
    """A canvas on which layers are laid over each other."""

    def __init__(self) -> None:
        y, x = np.mgrid[:_CANVAS_PX, :_CANVAS_PX].astype(np.float32) / _CANVAS_PX
        self.x = x
        self.y = y
        self._alpha = np.zeros_like(x)
        self._levels = np.zeros((*x.shape, 3), np.float32)
        """Multiplied by alpha."""

    def lay(self, part: Float32Array, color: Color | Float32Array) -> None:
        """Covers a part, `(h, w)` in [0, 1], with a color, `(3,)` or `(h, w, 3)`."""
        cover = part[..., None]
        self._levels = self._levels * (1 - cover) + np.asarray(color, np.float32) * cover
        self._alpha = self._alpha * (1 - part) + part

    def tint(self, part: Float32Array, color: Color | Float32Array) -> None:
        """Covers a part with a color where something was laid before; alpha stays."""
        kept = 1 - part[..., None]
        added = np.asarray(color, np.float32) * (part * self._alpha)[..., None]
        self._levels = self._levels * kept + added

    def shade(self, gain: Float32Array) -> None:
        """Multiplies what was laid by `(h, w)`."""
        self._levels = self._levels * gain[..., None]

    def cutout(self, anchor: tuple[float, float]) -> Cutout:
        """Returns the object, with its colors spread around it for its soft edge."""
        nearby = cv2.GaussianBlur(self._levels, (0, 0), 4)
        weight = cv2.GaussianBlur(self._alpha, (0, 0), 4)
        spread = nearby / np.maximum(weight, 1e-4)[..., None]
        own = self._levels / np.maximum(self._alpha, 0.1)[..., None]
        levels = np.where(self._alpha[..., None] > 0.1, own, spread)
        grain = _GRAIN_LEVELS * noise(1.5, 3)
        levels = np.clip(levels + grain[..., None], 0, 255).astype(np.float32)
        return Cutout(levels, self._alpha.astype(np.float32), anchor)


@dataclass(frozen=True, slots=True)
class Wall:
    """A solid of revolution, seen from slightly above."""

    across: Float32Array
    """From -1 at its left edge to 1 at its right one."""
    height: Float32Array
    """From 0 at its top to 1 at its bottom."""
    inside: Float32Array
    """Where it is, in [0, 1]."""
    opening: Float32Array
    """Where one looks into it, in [0, 1]."""
    rim: Float32Array
    """The edge of its opening, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a `Wall`, in sides of the canvas."""

    top: float
    bottom: float
    top_half: float
    """Half of its width at the top."""
    bottom_half: float
    bow: float = 0.0
    """Half of the height of the opening."""
    middle: float = 0.5

    def wall(self, painting: Painting) -> Wall:
        height = (painting.y - self.top) / (self.bottom - self.top)
        widening = self.bottom_half - self.top_half
        half = self.top_half + widening * np.clip(height, 0, 1)
        across = (painting.x - self.middle) / half
        bow = self.bow * np.sqrt(np.clip(1 - across**2, 0, 1))
        sides = soft((1 - np.abs(across)) * half)
        below_rim = soft(painting.y - self.top + bow)
        above_foot = soft(self.bottom + bow - painting.y)
        away = np.abs(painting.y - self.top)
        opening = sides * soft(bow - away - EDGE)
        rim = sides * np.exp(-(((away - bow) / EDGE) ** 2))
        return Wall(np.clip(across, -1, 1), height, sides * below_rim * above_foot, opening, rim)


def soft(inside: Float32Array) -> Float32Array:
    """Returns cover in [0, 1] from how far inside each point is, in sides of the canvas."""
    return np.clip(0.5 + inside / EDGE, 0, 1).astype(np.float32)


def between(values: Float32Array, low: float, high: float, edge: float = 0.01) -> Float32Array:
    """Returns 1 where values lie between two others, with soft edges."""
    above = np.clip(0.5 + (values - low) / edge, 0, 1)
    below = np.clip(0.5 + (high - values) / edge, 0, 1)
    return (above * below).astype(np.float32)


def ellipse(
    painting: Painting, center: tuple[float, float], axes: tuple[float, float]
) -> Float32Array:
    """Returns the distance from an ellipse's center, 1 at its edge."""
    return np.hypot((painting.x - center[0]) / axes[0], (painting.y - center[1]) / axes[1])


def ball(around: Float32Array) -> Float32Array:
    """Returns how much a ball faces the viewer, from an ellipse's distance: 1 in its middle."""
    return np.sqrt(np.clip(1 - around**2, 0, 1))


def lit(color: Color, across: Float32Array, light: float = -0.4, dark: float = 0.3) -> Float32Array:
    """Returns the levels of a round wall; `light`: where across it is brightest; `dark`: the light
    that reaches all of it.
    """
    facing = across * light + np.sqrt(1 - across**2) * np.sqrt(1 - light**2)
    gain = dark + (1 - dark) * np.maximum(facing, 0)
    return np.array(color, np.float32) * gain[..., None]


def shine(across: Float32Array, at: float, width: float) -> Float32Array:
    """Returns a vertical highlight of a round wall, 1 in its middle."""
    return np.exp(-(((across - at) / width) ** 2))


def noise(grain_px: float, seed: int, stretch: tuple[float, float] = (1, 1)) -> Float32Array:
    """Returns noise of standard deviation 1; `stretch`: of grains, along x and y."""
    grains = np.random.default_rng(seed).normal(size=(_CANVAS_PX, _CANVAS_PX)).astype(np.float32)
    grains = cv2.GaussianBlur(grains, (0, 0), grain_px * stretch[0], sigmaY=grain_px * stretch[1])
    return grains / float(grains.std())
