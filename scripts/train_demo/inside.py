"""What is seen between the lips: the cavity, the tongue and the photographed teeth.

Coordinates are local as in `mouth`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latentsync_trt.types import Float64Array, UInt8Array
from scripts.train_demo.warp import sampled

_UPPER_INNER = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
_LOWER_INNER = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
_SMILE = -0.02
"""How far the corners of relaxed lips lie above their middle."""
_POINTED = (1.5, 0.85)
_ROUND = 0.75
"""Exponents of the arcs that nearly shut, open and rounded lips make: at 1 it is an ellipse."""

# Red, green and blue in [0, 255].
_CAVITY = (46.0, 17.0, 17.0)
_TONGUE = (116.0, 54.0, 54.0)
_TONGUE_RAISED = (205.0, 112.0, 108.0)
_TIP_FROM = 0.88
"""Above, the tip of the tongue lies before the teeth."""
_TONGUE_OVERLAP = 0.09
_TONGUE_HALF = 0.62
_TONGUE_HEIGHT = (0.22, 0.2)
"""Of a tongue at rest above the lower lip: with lips that are shut, and more with open ones."""
_TONGUE_BEND = 0.45
_JAW_FROM = 0.3
"""The gap of the lips up to which the teeth stay together."""
_JAW_SHARE = 0.86
_LOWER_TEETH = 0.8
_HIDDEN_WHEN_ROUND = 0.8
"""Lips that are pushed forward shade the teeth."""
_LIP_SHADOW = 0.5
_LIP_SHADOW_REACH = 0.16
_SIDE_SHADOW = 0.5


def smoothstep(x: Tensor) -> Tensor:
    """From 0 at −1 to 1 at 1."""
    share = ((x + 1) / 2).clamp(0, 1)
    return share * share * (3 - 2 * share)


@dataclass(frozen=True, slots=True, eq=False)
class Lips:
    """The lips in N poses; all `(N, 1, 1)`, local.

    `opening` to `tongue`: of the poses; `line`: the height at which shut lips meet; `gap`: between
    the lips, in their middle; `rise`: of the upper lip.
    """

    opening: Tensor
    half_width: Tensor
    rounding: Tensor
    tuck: Tensor
    tongue: Tensor
    line: Tensor
    gap: Tensor
    rise: Tensor

    def edges(self, across: Tensor) -> tuple[Tensor, Tensor]:
        """The heights of the upper and the lower lip's inner edge at `across`, a tensor that
        broadcasts with `(N, 1, 1)`.
        """
        share = across / self.half_width
        pointed = _POINTED[0] + (_POINTED[1] - _POINTED[0]) * self.opening
        arc = (1 - share**2).clamp_min(0) ** (
            pointed.lerp(share.new_tensor(_ROUND), self.rounding) / 2
        )
        smile = _SMILE * (1 - self.rounding)
        closed = self.line + smile * (0.4 - share.abs().clamp_max(1.3) ** 1.5)
        return closed - self.rise * arc, closed + (self.gap - self.rise) * arc


class InsideOfMouth:
    """Cavity, tongue and teeth of a photographed mouth.

    `picture`: the enlarged area, uint8 `(h, w, 3)` RGB; `mesh (468, 2)`, `places (h, w, 2)`: the
    points of the face and the pixels of the area, local; `place`: the mouth's center, and half its
    width in pixels.
    """

    def __init__(
        self,
        picture: UInt8Array,
        mesh: Float64Array,
        places: Tensor,
        place: tuple[Float64Array, float],
    ) -> None:
        self._across = places[..., 0]
        self._down = places[..., 1]
        self._half = place[1]
        self._teeth_end = float(mesh[14, 1]) - 0.06
        self._teeth = _photographed_teeth(picture, mesh, places, place[1])

    def paint(self, lips: Lips) -> Tensor:
        """What lies behind the lips, float32 `(N, 3, h, w)` in [0, 255]."""
        across = self._across
        down = self._down
        ceiling, floor = lips.edges(across)
        share = (across / lips.half_width).clamp(-1, 1)
        jaw = (lips.gap - _JAW_FROM).clamp_min(0) * _JAW_SHARE
        low = self._teeth_end + jaw
        cavity = across.new_tensor(_CAVITY)[:, None, None]
        depth = ((down - ceiling) / (floor - ceiling).clamp_min(0.05)).clamp(0, 1)
        drawn = cavity * (0.7 + 0.5 * depth)[:, None]
        drawn = self._with_lower_teeth(drawn, low, lips.rounding)
        tongue, over = self._tongue(lips)
        drawn = torch.lerp(drawn, tongue, over)
        colors, opacity = self._teeth
        shown = 1 - _HIDDEN_WHEN_ROUND * lips.rounding[:, None]
        tip = smoothstep((lips.tongue - _TIP_FROM) * 10)[:, None]
        drawn = torch.lerp(drawn, colors, opacity * shown * (1 - tip * over))
        near = ((down - ceiling) / _LIP_SHADOW_REACH).clamp(0, 1)
        light = (1 - _LIP_SHADOW * (1 - near) ** 2) * (1 - _SIDE_SHADOW * share**2)
        return drawn * light[:, None]

    def _tongue(self, lips: Lips) -> tuple[Tensor, Tensor]:
        """Colors `(N, 3, h, w)` and opacity `(N, 1, h, w)` of the tongue."""
        rest = lips.line + lips.gap - lips.rise - _TONGUE_HEIGHT[0]
        rest = rest - _TONGUE_HEIGHT[1] * lips.opening
        raised = rest.clamp_max(self._teeth_end - _TONGUE_OVERLAP)
        top = rest + (raised - rest) * lips.tongue + _TONGUE_BEND * self._across**2
        height = (self._down - top) * self._half
        width = _TONGUE_HALF * lips.half_width
        opacity = smoothstep(height / 1.5) * smoothstep((width - self._across.abs()) * 8)
        # It catches light along its edge, and has a furrow.
        light = 0.66 + 0.34 * torch.exp(-((height - 5) ** 2) / 40)
        light = light * (1 - 0.16 * torch.exp(-((self._across / 0.06) ** 2)))
        low = light.new_tensor(_TONGUE)[:, None, None]
        high = light.new_tensor(_TONGUE_RAISED)[:, None, None]
        color = torch.lerp(low, high, lips.tongue[:, None]) * light[:, None]
        return color, opacity[:, None]

    def _with_lower_teeth(self, below: Tensor, top: Tensor, rounding: Tensor) -> Tensor:
        """Adds the photographed teeth, flipped and darkened, with their edge at `top`."""
        colors, opacity = self._teeth
        # A little narrower than the upper ones.
        columns = torch.arange(colors.shape[2], device=colors.device)
        rows = torch.arange(colors.shape[1], device=colors.device)[:, None]
        flipped = (2 * self._edge_row() + (top - self._teeth_end) * self._half - rows).float()
        middle = colors.shape[2] / 2
        x = ((columns - middle) * 1.2 + middle).expand(len(top), colors.shape[1], -1).float()
        y = flipped.expand(-1, -1, colors.shape[2])
        both = torch.cat([colors, opacity])
        seen = sampled(both.expand(len(top), -1, -1, -1), x, y)
        shown = 1 - _HIDDEN_WHEN_ROUND * rounding[:, None]
        return torch.lerp(below, seen[:, :3] * _LOWER_TEETH, seen[:, 3:] * shown)

    def _edge_row(self) -> float:
        """The row at which the upper teeth end in the middle of the mouth."""
        column = self._across.shape[1] // 2
        return float((self._down[:, column] - self._teeth_end).abs().argmin())


def _photographed_teeth(
    picture: UInt8Array, mesh: Float64Array, places: Tensor, half: float
) -> tuple[Tensor, Tensor]:
    """Colors `(3, h, w)` and opacity `(1, h, w)` of the upper teeth, which don't move."""
    across = places[..., 0].cpu().double().numpy()
    down = places[..., 1].cpu().double().numpy()
    ceiling = np.interp(across, *mesh[list(_UPPER_INNER)].T) + 0.06
    floor = np.interp(across, *mesh[list(_LOWER_INNER)].T) - 0.07
    # The lip hides rows above the teeth in the photograph: repeat the teeth's upper edge.
    inner = np.clip(down, ceiling + 1.5 / half, np.maximum(floor, ceiling + 1.5 / half))
    rows = np.arange(down.shape[0])[:, None] + (inner - down) * half
    x = torch.arange(down.shape[1]).expand(1, *down.shape).float()
    y = torch.from_numpy(rows).float()[None]
    tensor = torch.from_numpy(picture).permute(2, 0, 1).float()[None]
    colors = sampled(tensor, x, y)[0]
    opacity = smoothstep(torch.from_numpy((floor - down) * half / 1.5))
    opacity = opacity * smoothstep(torch.from_numpy((0.8 - np.abs(across)) / 0.06))
    opacity = opacity * smoothstep(torch.from_numpy((down - ceiling + 0.5) * half / 2.0))
    device = places.device
    return colors.to(device), opacity.float()[None].to(device)
