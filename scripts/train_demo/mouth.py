"""Draws the portrait's mouth in any pose: warps lips and chin of the photograph, and paints the
inside of the mouth.

Coordinates are pixels of the rectangle `AREA` of the photograph, enlarged by `ENLARGE`. Local
coordinates have their origin in the center of the mouth, the first axis from its left to its right
corner, and half its width as their unit.
"""

import cv2
import numpy as np
from scipy.interpolate import RBFInterpolator

from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

ENLARGE = 2
_GRID_PX = 6
# keeps a spline solvable where two points nearly coincide, at an error far below a pixel
_SMOOTHING = 5e-4
# left, top, right, bottom in the photograph, in pixels; nothing outside is changed
AREA = (160, 96, 288, 204)
_UPPER_INNER = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
_LOWER_INNER = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
_UPPER_OUTER = (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291)
_LOWER_OUTER = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291)
_JAW = (136, 150, 149, 176, 148, 152, 377, 400, 378, 379, 365)
_CHIN = (32, 208, 199, 428, 262)
_FIXED = (1, 2, 98, 327, 64, 294, 129, 358, 50, 280, 123, 352, 205, 425, 147, 376)
_CHEEK = (212, 432, 57, 287, 216, 436)

# In units of half the photographed mouth's width.
_HALF_WIDTH = 0.9
_SPREAD = 0.1
_PURSE = 0.3
_GAP = 0.66  # the gap between the lips of a fully open mouth
_UPPER_SHARE = 0.16  # share of the gap by which the upper lip rises; the jaw makes the rest
_JAW_SHARE = 0.62  # movement of the chin, as a share of the lower lip's
_LINE = 0.38  # where shut lips meet, from 0 = photographed upper lip to 1 = lower lip
_CORNER_DROP = 0.05
_SHADOW = 0.75
_SHADOW_UNTIL = 0.15
_DARK_LEVEL = 150
_CORNERS_FROM = 0.62
_POUT = 0.12
_CORNER_SHIFT = 0.03
_FLATTEN = 0.75  # how much pursed lips flatten the photographed smile
# how far the outer edge of a lip follows its inner edge; lips get thinner as they open
_FOLLOW = 0.72
_CLOSED_JAW = -0.09  # offset of the chin from its photographed position when the lips are shut


class Mouth:
    """The mouth of `photograph`, uint8 `(H, W, 3)` RGB, with FaceMesh's points in it, `(468, 3)`,
    in pixels.
    """

    def __init__(self, photograph: UInt8Array, mesh: Float32Array) -> None:
        left, top, right, bottom = AREA
        part = photograph[top:bottom, left:right]
        self.size_px = ((right - left) * ENLARGE, (bottom - top) * ENLARGE)
        self.picture = np.asarray(
            cv2.resize(part, self.size_px, interpolation=cv2.INTER_CUBIC), np.uint8
        )
        self._points = (mesh[:, :2].astype(np.float64) - (left, top) + 0.5) * ENLARGE - 0.5
        first = self._points[78]
        last = self._points[308]
        self._center = (first + last) / 2
        self._half = float(np.linalg.norm(last - first)) / 2
        along = (last - first) / (2 * self._half)
        self._axes = np.stack([along, (-along[1], along[0])])
        self._local = (self._points - self._center) @ self._axes.T / self._half
        self._sources = self._points.copy()
        # The photographed corners are dark beyond FaceMesh's inner points: lips begin at its outer
        # ones.
        for inner, outer, sign in ((78, 61, -1.0), (308, 291, 1.0)):
            self._sources[inner] = self._points[outer] + sign * _CORNER_SHIFT * self._half * along
            self._sources[outer] = (
                self._points[outer] + sign * 3 * _CORNER_SHIFT * self._half * along
            )
        # Points along the border, which stay.
        right = self.size_px[0] - 1.0
        low = self.size_px[1] - 1.0
        x = np.linspace(0, right, 7)
        y = np.linspace(0, low, 6)[1:-1]
        sides = np.meshgrid(x, (0.0, low)), np.meshgrid((0.0, right), y)
        self._edge = np.concatenate([np.stack(side, -1).reshape(-1, 2) for side in sides])
        self._teeth = self._photographed_teeth()
        self._skin = self._without_corners()
        # 1 inside the area, 0 at its border.
        columns, rows = (
            np.minimum(np.arange(side), np.arange(side)[::-1]) for side in self.size_px
        )
        self._fade = _smoothstep(np.minimum(columns, rows[:, None]) / 8.0 - 1)

    def draw(self, pose: Float32Array) -> UInt8Array:
        """The area with the mouth in `pose (3,)`, uint8 `(height, width, 3)` RGB; its border is
        unchanged.

        `pose`: opening and rounding in [0, 1], width in [−1, 1] between them; see `visemes`.
        """
        opening, width, rounding = map(float, pose)
        upper_inner, lower_inner, upper_outer, lower_outer, rest, kept = self._targets(
            opening, width, rounding
        )
        upper = self._warped(_UPPER_INNER, upper_inner, _UPPER_OUTER, upper_outer, rest, kept)
        lower = self._warped(_LOWER_INNER, lower_inner, _LOWER_OUTER, lower_outer, rest, kept)
        upper_line = self._pixels(upper_inner)
        lower_line = self._pixels(lower_inner)
        inside = self._inside(upper_line, lower_line, opening)
        hole = _polygon(np.concatenate([upper_line, lower_line[::-1]]), self.size_px, grow_px=1.5)
        result = _mix(lower, inside, hole)
        result = _mix(result, lower, self._side_mask(lower_line, 1.0))
        result = _mix(result, upper, self._side_mask(upper_line, -1.0))
        result *= self._contact_shadow(upper_line, lower_line, opening)[..., None]
        result = _mix(self.picture.astype(np.float32), result, self._fade)
        return np.rint(result.clip(0, 255)).astype(np.uint8)

    def _targets(self, opening: float, width: float, rounding: float) -> tuple[Float64Array, ...]:
        """Inner and outer edges of the lips and other moved points, local; and the indices of those
        other points.
        """
        local = self._local
        width = _HALF_WIDTH + (_SPREAD if width > 0 else _PURSE) * width
        gap = _GAP * opening
        lines = []
        for inner, outer, sign, share in (
            (_UPPER_INNER, _UPPER_OUTER, -1.0, _UPPER_SHARE),
            (_LOWER_INNER, _LOWER_OUTER, 1.0, 1 - _UPPER_SHARE),
        ):
            across = np.linspace(-1, 1, len(inner))
            across = np.sign(across) * np.abs(across) ** 0.85
            closed = self._lip_line(across, rounding)
            bow = np.sqrt((1 - across**2).clip(0)) ** (1.0 + 0.25 * (1 - rounding))
            edge = np.stack([across * width, closed + sign * share * gap * bow], axis=1)
            moved = edge - local[list(inner)]
            outer_edge = local[list(outer)] + (1, _FOLLOW) * moved
            outer_edge[:, 1] += sign * _POUT * rounding * bow
            lines.append((edge, outer_edge))
        (upper_inner, upper_outer), (lower_inner, lower_outer) = lines
        drop = _CLOSED_JAW + _JAW_SHARE * (1 - _UPPER_SHARE) * gap
        kept = np.array([*_JAW, *_CHIN, *_CHEEK])
        rest = local[kept].copy()
        reach = np.exp(-((rest[:, 0] / 1.5) ** 2) * 1.2)
        rest[: len(_JAW), 1] += drop * reach[: len(_JAW)]
        chin = slice(len(_JAW), len(_JAW) + len(_CHIN))
        rest[chin, 1] += drop * reach[chin]
        cheek = slice(len(_JAW) + len(_CHIN), None)
        rest[cheek] += np.stack(
            [rest[cheek, 0] * (width - 1) * 0.3, np.full(len(_CHEEK), 0.25 * drop)], axis=1
        )
        return upper_inner, lower_inner, upper_outer, lower_outer, rest, kept

    def _lip_line(self, across: Float64Array, rounding: float) -> Float64Array:
        """Where the lips meet, at horizontal positions `across`; all local."""
        upper = np.interp(
            across, self._local[list(_UPPER_INNER), 0], self._local[list(_UPPER_INNER), 1]
        )
        lower = np.interp(
            across, self._local[list(_LOWER_INNER), 0], self._local[list(_LOWER_INNER), 1]
        )
        line = upper + _LINE * (lower - upper) + _CORNER_DROP * across**2
        return line + _FLATTEN * rounding * (line.mean() - line)

    def _warped(
        self,
        inner: tuple[int, ...],
        inner_at: Float64Array,
        outer: tuple[int, ...],
        outer_at: Float64Array,
        rest_at: Float64Array,
        rest: Float64Array,
    ) -> Float32Array:
        still = self._points[list(_FIXED)]
        targets = np.concatenate(
            [self._pixels(np.concatenate([inner_at, outer_at, rest_at])), still, self._edge]
        )
        moved = self._sources[[*inner, *outer, *rest.tolist()]]
        return _warped(self._skin, targets, np.concatenate([moved, still, self._edge]))

    def _without_corners(self) -> UInt8Array:
        """The image with the dark corners of the mouth inpainted, so that warped lips have lip
        color there.
        """
        outer = self._points[[*_UPPER_OUTER, *_LOWER_OUTER[::-1]]]
        away = np.abs(np.arange(self.size_px[0]) - self._center[0]) / self._half
        dark = (self.picture.max(axis=2) < _DARK_LEVEL) & (away > _CORNERS_FROM)
        dark &= _polygon(outer, self.size_px, grow_px=5.0) > 0
        mask = cv2.dilate(dark.astype(np.uint8), np.ones((3, 3), np.uint8))
        return np.asarray(cv2.inpaint(self.picture, mask, 3, cv2.INPAINT_TELEA), np.uint8)

    def _pixels(self, local: Float64Array) -> Float64Array:
        return local * self._half @ self._axes + self._center

    def _side_mask(self, line: Float64Array, sign: float) -> Float32Array:
        """Mask of what lies below (`sign` 1) or above (−1) a lip's inner edge, extended straight
        past the corners.
        """
        width, height = self.size_px
        far = height * 2.0 if sign > 0 else -float(height)
        left = (-10.0, line[0, 1] + sign * 2)
        right = (width + 10.0, line[-1, 1] + sign * 2)
        outline = np.array([(-10.0, far), left, *line, right, (width + 10.0, far)])
        return _polygon(outline, self.size_px)

    def _inside(self, upper: Float64Array, lower: Float64Array, opening: float) -> Float32Array:
        """Cavity, tongue and teeth, float32 `(height, width, 3)`, to be covered by the lips."""
        width, height = self.size_px
        rows = np.arange(height, dtype=np.float32)[:, None]
        columns = np.arange(width, dtype=np.float32)
        ceiling = np.interp(columns, upper[:, 0], upper[:, 1]).astype(np.float32)
        floor = np.interp(columns, lower[:, 0], lower[:, 1]).astype(np.float32)
        depth = ((rows - ceiling) / np.maximum(floor - ceiling, 1.0)).clip(0, 1)
        away = np.abs(columns - float(self._center[0])) / self._half
        side = np.float32(1) - np.float32(0.55) * (away**2).clip(0, 1)
        cavity = np.array([62.0, 24.0, 22.0], np.float32) * (0.75 + 0.25 * depth[..., None])
        tongue_top = lower[len(lower) // 2, 1] - self._half * (0.2 + 0.1 * (1 - opening))
        tongue = _smoothstep((rows - tongue_top - 6 * away**2) / 3.0) * (away < 0.62)
        result = _mix(
            np.broadcast_to(cavity, (height, width, 3)),
            np.array([150.0, 78.0, 76.0], np.float32),
            tongue,
        )
        result = self._with_lower_teeth(result, lower)
        colors, opacity = self._teeth
        result = _mix(result, colors, opacity)
        shade = 0.62 + 0.38 * _smoothstep((rows - ceiling - 1.0) / 3.0)
        return np.asarray(result * (shade * side)[..., None], np.float32)

    def _contact_shadow(
        self, upper: Float64Array, lower: Float64Array, opening: float
    ) -> Float32Array:
        """The dark line between touching lips, as a factor; 1 for open lips."""
        canvas = np.zeros(self.size_px[::-1], np.uint8)
        line = np.rint((upper + lower) / 2 * 16).astype(np.int32)
        cv2.polylines(canvas, [line], False, 255, 1, cv2.LINE_AA, 4)
        strength = _SHADOW * max(0.0, 1 - opening / _SHADOW_UNTIL)
        blurred = cv2.GaussianBlur(canvas.astype(np.float32) / 255, (0, 0), 0.9)
        return np.asarray(1 - np.float32(strength) * blurred, np.float32)

    def _with_lower_teeth(self, inside: Float32Array, lower: Float64Array) -> Float32Array:
        """Adds lower teeth: the photographed teeth flipped and darkened."""
        colors, opacity = self._teeth
        middle = lower[len(lower) // 2, 1]
        teeth_bottom = self._pixels(self._local[[14]])[0, 1]
        flip = np.array([[1.0, 0.0, 0.0], [0.0, -1.0, teeth_bottom + middle - self._half * 0.13]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        flipped = cv2.warpAffine(np.dstack([colors, opacity]), flip, self.size_px, flags=flags)
        return _mix(inside, flipped[..., :3] * np.float32(0.72), flipped[..., 3] * np.float32(0.85))

    def _photographed_teeth(self) -> tuple[Float32Array, Float32Array]:
        """Colors `(height, width, 3)` and opacity of the upper teeth, which do not move."""
        upper = self._points[list(_UPPER_INNER)]
        lower = self._points[list(_LOWER_INNER)]
        width, height = self.size_px
        columns = np.arange(width)
        ceiling = np.interp(columns, upper[:, 0], upper[:, 1]) + 0.06 * self._half
        floor = np.interp(columns, lower[:, 0], lower[:, 1]) - 0.07 * self._half
        rows = np.arange(height)[:, None]
        # The lip hides rows above the teeth in the photograph: repeat the teeth's upper edge.
        source = np.clip(rows, ceiling + 1.5, np.maximum(floor, ceiling + 1.5)).astype(np.float32)
        across = np.broadcast_to(columns.astype(np.float32), source.shape)
        colors = cv2.remap(
            self.picture, np.ascontiguousarray(across), source, cv2.INTER_LINEAR
        ).astype(np.float32)
        away = np.abs(columns - self._center[0]) / self._half
        opacity = _smoothstep((floor - rows) / 1.5) * _smoothstep((0.8 - away) / 0.06)
        opacity *= _smoothstep((rows - ceiling + 0.5 * self._half) / 2.0)
        return colors, opacity.astype(np.float32)


def _mix(below: Float32Array, above: Float32Array, opacity: Float32Array) -> Float32Array:
    return np.asarray(below + opacity[..., None] * (above - below), np.float32)


def _smoothstep(x: Float32Array | Float64Array) -> Float32Array:
    """From 0 at −1 to 1 at 1."""
    t = np.clip((x + 1) / 2, 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def _polygon(points: Float64Array, size_px: tuple[int, int], grow_px: float = 0.0) -> Float32Array:
    """Coverage of a polygon, `(height, width)` in [0, 1]."""
    bits = 4
    canvas = np.zeros((size_px[1], size_px[0]), np.uint8)
    corners = np.rint(points * (1 << bits)).astype(np.int32)
    cv2.fillPoly(canvas, [corners], 255, cv2.LINE_AA, bits)
    if grow_px:
        cv2.polylines(canvas, [corners], True, 255, round(2 * grow_px), cv2.LINE_AA, bits)
    return canvas.astype(np.float32) / np.float32(255)


def _warped(picture: UInt8Array, targets: Float64Array, sources: Float64Array) -> Float32Array:
    """`picture (height, width, 3)` with what is at `sources` moved to `targets` by a thin-plate
    spline, float32.

    `targets`, `sources` `(n, 2)`: (x, y) in pixels. The spline is evaluated on a coarse grid.
    """
    height, width = picture.shape[:2]
    columns = -(-width // _GRID_PX) + 1
    rows = -(-height // _GRID_PX) + 1
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(
        -1, 2
    ) * float(_GRID_PX)
    smoothing = _SMOOTHING * len(targets) ** 2
    spline = RBFInterpolator(
        targets, sources - targets, smoothing=smoothing, kernel="thin_plate_spline"
    )
    shift = spline(grid).reshape(rows, columns, 2).astype(np.float32)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    dense = cv2.warpAffine(shift, np.eye(2, 3) / _GRID_PX, (width, height), flags=flags)
    x = dense[..., 0] + np.arange(width, dtype=np.float32)
    y = dense[..., 1] + np.arange(height, dtype=np.float32)[:, None]
    return cv2.remap(picture, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE).astype(
        np.float32
    )
