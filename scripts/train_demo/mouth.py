"""Draws the portrait's mouth in many poses at once: warps lips, cheeks and chin of the photograph,
and shows the inside of the mouth between the lips.

Coordinates are pixels of the rectangle `AREA` of the photograph, enlarged by `ENLARGE`, or local:
with the center of the mouth as origin, the first axis from its left to its right corner, the second
one down, and half its width as unit.
"""

import cv2
import numpy as np
import torch
from torch import Tensor

from latentsync_trt.types import Float32Array, Float64Array, UInt8Array
from scripts.train_demo.inside import InsideOfMouth, Lips, smoothstep
from scripts.train_demo.warp import warped

ENLARGE = 2
AREA = (160, 96, 288, 204)
"""Left, top, right and bottom in the photograph, in pixels; nothing outside is changed."""

# Points of FaceMesh.
_UPPER_INNER = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
_LOWER_INNER = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
_UPPER_OUTER = (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291)
_LOWER_OUTER = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291)
_JAW = (136, 150, 149, 176, 148, 152, 377, 400, 378, 379, 365)
_CHIN = (32, 208, 199, 428, 262)
_FIXED = (1, 2, 98, 327, 64, 294, 129, 358, 50, 280, 123, 352, 205, 425, 147, 376)
_CHEEK = (212, 432, 57, 287, 216, 436)

# In units of half the photographed mouth's width.
_HALF_WIDTH = 0.88
_SPREAD = 0.14
_PURSE = 0.4
_NARROW_WHEN_OPEN = 0.1
_GAP = 1.45
"""The gap between the lips of a fully open mouth; a distance between the eyes is 3.2."""
_CLOSER_WHEN_ROUND = 0.22
_UPPER_SHARE = 0.27
"""Share of the gap by which the upper lip rises; the jaw makes the rest."""
_JAW_SHARE = 0.52
"""Movement of the chin, as a share of the lower lip's."""
_LINE = 0.42
"""Where shut lips meet, from 0 = photographed upper lip to 1 = lower lip."""
_RELAXED = 0.85
"""How much of the photographed smile is taken from the line of the lips."""
_CORNER_DROP = 0.05
_CORNER_SHIFT = 0.03
_CLOSED_JAW = -0.09
"""Offset of the chin from where it was photographed when the lips are shut."""
_TUCK_RISE = 0.1
"""By how much the upper lip rises for f and v, whose teeth rest on the lower lip."""
_TUCK_GAP = 0.2
_LEAST_CURVE = 0.2
_CHEEK_SHARE = 0.3
_CHEEK_DROP = 0.1
"""By how much cheeks sink that don't smile."""

# Heights of the lips, in units of their photographed ones.
_FULL = (1.75, 1.1)
_THIN_WHEN_OPEN = (0.35, 0.28)
_THICK_WHEN_ROUND = (1.2, 0.45)
_TUCKED = 0.45
"""Of the lower lip for f and v."""

_LIP_TINT = (0.04, 0.16, 0.13)
"""Shares of red, green and blue that lips take from the light."""
_LIP_HEIGHTS = (0.13, 0.27)
"""Of the photographed lips, local."""
_LIP_EDGE_PX = 2.0

_SHADOW = 0.7
_SHADOW_COLOR = (0.8, 1.0, 1.0)
"""How much of red, green and blue the shadow between shut lips takes."""
_SHADOW_UNTIL = 0.16
_SHADOW_PX = 1.1
_DARK_LEVEL = 150
_CORNERS_FROM = 0.62
_BORDER_PX = 8.0
_EDGE_PX = 0.7
"""Half of the width over which a lip ends."""


class Mouth:
    """The mouth of `photograph`, uint8 `(H, W, 3)` RGB, with FaceMesh's points in it, `(468, 3)`,
    in pixels, on a device.

    `pinned (n, 2)`: places of the photograph that don't move, in pixels.
    """

    def __init__(
        self,
        photograph: UInt8Array,
        mesh: Float32Array,
        pinned: Float64Array,
        device: torch.device,
    ) -> None:
        left, top, right, bottom = AREA
        part = photograph[top:bottom, left:right]
        self.size_px = ((right - left) * ENLARGE, (bottom - top) * ENLARGE)
        picture = np.asarray(
            cv2.resize(part, self.size_px, interpolation=cv2.INTER_CUBIC), np.uint8
        )
        points = (mesh[:, :2].astype(np.float64) - (left, top) + 0.5) * ENLARGE - 0.5
        pinned = (pinned - (left, top) + 0.5) * ENLARGE - 0.5
        first = points[78]
        last = points[308]
        center = (first + last) / 2
        half = float(np.linalg.norm(last - first)) / 2
        along = (last - first) / (2 * half)
        axes = np.stack([along, (-along[1], along[0])])
        self.device = device
        self._half = half
        self._to_pixels = torch.from_numpy(np.vstack([axes * half, center])).to(device)
        local = (points - center) @ axes.T / half
        self._local = torch.from_numpy(local).float().to(device)
        sources = points.copy()
        # The photographed corners are dark beyond FaceMesh's inner points: lips begin at its outer
        # ones.
        for inner, outer, sign in ((78, 61, -1.0), (308, 291, 1.0)):
            sources[inner] = points[outer] + sign * _CORNER_SHIFT * half * along
            sources[outer] = points[outer] + sign * 3 * _CORNER_SHIFT * half * along
        self._sources = torch.from_numpy(sources).to(device)
        still = [points[list(_FIXED)], _border(self.size_px), pinned]
        self._still = torch.from_numpy(np.concatenate(still)).to(device)
        self._picture = _as_tensor(picture, device)
        self._skin = _as_tensor(_without_corners(picture, points, center, half), device)
        columns, rows = np.meshgrid(*map(np.arange, self.size_px))
        inward = np.stack([columns, rows], -1) - center
        places = torch.from_numpy(inward @ axes.T / half).float().to(device)
        self._inside = InsideOfMouth(picture, local, places, (center, half))
        self._places = places
        edges = np.minimum(
            np.minimum(columns, self.size_px[0] - 1 - columns),
            np.minimum(rows, self.size_px[1] - 1 - rows),
        )
        self._fade = smoothstep(torch.from_numpy(edges).float().to(device) / _BORDER_PX - 1)

    def draw(self, poses: Tensor) -> Tensor:
        """The area with the mouth in each of `poses (N, 5)`, float32 `(N, 3, height, width)` RGB
        in [0, 255]; its border is unchanged.

        A pose is a row of `visemes.MouthTrack.values`.
        """
        lips = self._lips(poses.float())
        upper = self._warped(lips, -1)
        lower = self._warped(lips, 1)
        across = self._places[..., 0]
        down = self._places[..., 1]
        softness = _EDGE_PX / self._half
        ceiling, floor = lips.edges(across)
        above = smoothstep(((ceiling + floor) / 2 - down) / softness)
        between = smoothstep(torch.minimum(down - ceiling, floor - down) / softness - 1)
        skin = torch.lerp(lower, upper, above[:, None])
        skin = skin * self._lip_color(lips)
        drawn = torch.lerp(skin, self._inside.paint(lips), between[:, None])
        drawn = drawn * self._contact_shadow(lips)
        return torch.lerp(self._picture, drawn, self._fade).clamp(0, 255)

    def _lips(self, poses: Tensor) -> Lips:
        opening, width, rounding, tuck, tongue = poses[..., None, None].unbind(1)
        spread = torch.where(width > 0, _SPREAD * width, _PURSE * width)
        # Round lips look as open with a smaller gap.
        gap = _GAP * opening * (1 - _CLOSER_WHEN_ROUND * rounding)
        rise = _UPPER_SHARE * gap
        gap = gap + (_TUCK_GAP - gap).clamp_min(0) * tuck
        rise = rise + (_TUCK_RISE - rise).clamp_min(0) * tuck
        middle = self._local[[13, 14], 1]
        line = middle[0] + _LINE * (middle[1] - middle[0])
        half_width = _HALF_WIDTH + spread - _NARROW_WHEN_OPEN * opening * (1 - rounding)
        return Lips(opening, half_width, rounding, tuck, tongue, line, gap, rise)

    def _warped(self, lips: Lips, side: int) -> Tensor:
        """The skin as the upper (`side` −1) or the lower lip (1) moves it."""
        inner, outer = (_UPPER_INNER, _UPPER_OUTER) if side < 0 else (_LOWER_INNER, _LOWER_OUTER)
        count = len(lips.opening)
        place = torch.linspace(-1, 1, len(inner), device=self.device)
        place = place.sign() * place.abs() ** 0.85 * lips.half_width[:, 0]
        edge = torch.stack([place, lips.edges(place[:, None])[(side + 1) // 2][:, 0]], -1)
        height = self._local[list(outer)] - self._local[list(inner)]
        fullness = self._fullness(lips)[(side + 1) // 2]
        factors = torch.cat([torch.ones_like(fullness), fullness], -1)
        targets = [edge, edge + height * factors, *self._rest(lips)]
        moved = [*inner, *outer, *_JAW, *_CHIN, *_CHEEK]
        pixels = torch.cat(targets, 1).double() @ self._to_pixels[:2] + self._to_pixels[2]
        still = self._still.expand(count, -1, -1)
        sources = torch.cat([self._sources[moved], self._still])
        return warped(self._skin, torch.cat([pixels, still], 1), sources)

    def _rest(self, lips: Lips) -> list[Tensor]:
        """Where the points of jaw, chin and cheeks go, local, `(N, n, 2)` each."""
        drop = _CLOSED_JAW + _JAW_SHARE * (1 - _UPPER_SHARE) * _GAP * lips.opening
        parts = []
        for points in (_JAW, _CHIN):
            at = self._local[list(points)]
            reach = torch.exp(-((at[:, 0] / 1.5) ** 2) * 1.2)
            parts.append(at + torch.stack([torch.zeros_like(reach), reach], -1) * drop)
        at = self._local[list(_CHEEK)]
        narrower = (lips.half_width - 1)[..., 0] * _CHEEK_SHARE
        lower = 0.25 * drop[..., 0] + _CHEEK_DROP
        shift = torch.stack([at[:, 0] * narrower, lower.expand(-1, len(at))], -1)
        parts.append(at + shift)
        return parts

    def _lip_color(self, lips: Lips) -> Tensor:
        """Factors that give pale lips color, so that a small picture shows them."""
        across = self._places[..., 0]
        down = self._places[..., 1]
        ceiling, floor = lips.edges(across)
        share = (across / lips.half_width).clamp(-1, 1)
        arc = (1 - share**2).sqrt()
        fullness = self._fullness(lips)
        soft = _LIP_EDGE_PX / self._half
        upper = smoothstep((down - ceiling + _LIP_HEIGHTS[0] * fullness[0] * arc) / soft)
        lower = smoothstep((floor + _LIP_HEIGHTS[1] * fullness[1] * arc - down) / soft)
        lip = (upper * lower * (across.abs() < lips.half_width))[:, None]
        return 1 - lip * lip.new_tensor(_LIP_TINT)[:, None, None]

    def _fullness(self, lips: Lips) -> tuple[Tensor, Tensor]:
        """The heights of the upper and the lower lip, as shares of the photographed ones."""
        upper, lower = (
            full - thin * lips.opening + thick * lips.rounding
            for full, thin, thick in zip(_FULL, _THIN_WHEN_OPEN, _THICK_WHEN_ROUND, strict=True)
        )
        return upper, lower * (1 - (1 - _TUCKED) * lips.tuck)

    def _contact_shadow(self, lips: Lips) -> Tensor:
        """The dark line between touching lips, as a factor; 1 for open lips."""
        ceiling, floor = lips.edges(self._places[..., 0])
        off = (self._places[..., 1] - (ceiling + floor) / 2) * self._half / _SHADOW_PX
        beyond = (self._places[..., 0].abs() - lips.half_width).clamp_min(0) * self._half
        strength = _SHADOW * (1 - lips.gap / (_SHADOW_UNTIL * _GAP)).clamp_min(0)
        dark = strength * torch.exp(-(off**2) / 2 - (beyond / 2) ** 2)
        return 1 - dark[:, None] * dark.new_tensor(_SHADOW_COLOR)[:, None, None]


def _border(size_px: tuple[int, int]) -> Float64Array:
    """Points along the border of a picture."""
    right = size_px[0] - 1.0
    low = size_px[1] - 1.0
    x = np.linspace(0, right, 7)
    y = np.linspace(0, low, 6)[1:-1]
    sides = np.meshgrid(x, (0.0, low)), np.meshgrid((0.0, right), y)
    return np.concatenate([np.stack(side, -1).reshape(-1, 2) for side in sides])


def _without_corners(
    picture: UInt8Array, points: Float64Array, center: Float64Array, half: float
) -> UInt8Array:
    """The picture with the dark corners of the mouth inpainted, so that warped lips have lip color
    there.
    """
    outline = np.rint(points[[*_UPPER_OUTER, *_LOWER_OUTER[::-1]]]).astype(np.int32)
    lips = np.zeros(picture.shape[:2], np.uint8)
    cv2.fillPoly(lips, [outline], 1)
    cv2.polylines(lips, [outline], True, 1, 10)
    away = np.abs(np.arange(picture.shape[1]) - center[0]) / half
    dark = (picture.max(axis=2) < _DARK_LEVEL) & (away > _CORNERS_FROM) & (lips > 0)
    mask = cv2.dilate(dark.astype(np.uint8), np.ones((3, 3), np.uint8))
    return np.asarray(cv2.inpaint(picture, mask, 3, cv2.INPAINT_TELEA), np.uint8)


def _as_tensor(picture: UInt8Array, device: torch.device) -> Tensor:
    return torch.from_numpy(picture).to(device).permute(2, 0, 1).float()
