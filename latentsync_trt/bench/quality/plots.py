"""The report's plots: values over time, steps or layers. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from latentsync_trt.bench.svg import WIDTH_PX, Axis, Drawing, label_of, tick_step

STYLE = """
.s0, .s1, .s2 { fill: none; stroke-width: 1.8; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c2); } .s2 { stroke: var(--c6); stroke-dasharray: 3 3; }
.quiet { fill: var(--panel); }
img { max-width: 100%; height: auto; } video { width: 100%; max-width: 66rem; }
"""
"""What these plots and the pictures beside them need beyond the style of all reports."""

_COLORS = ("c0", "c2", "c6")
_LEFT_PX, _RIGHT_PX = 70.0, WIDTH_PX - 20.0
_TOP_PX, _BOTTOM_PX, _BELOW_PX = 34.0, 244.0, 40.0
_FALLBACK = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Series:
    """Values at places 0, 1, …; None where there is none. `joined`: by lines, else dots; `tips` name the dots."""

    name: str
    values: tuple[float | None, ...]
    joined: bool = True
    tips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """What is around the values: units, how many units of x lie between two places, and what the whole shows."""

    x_unit: str
    y_unit: str
    x_step: float
    description: str


def curves(series: Sequence[Series], frame: Frame, quiet: Sequence[bool] = (), *, from_zero: bool = False) -> str:
    """Up to three series over one another; places in `quiet` are shaded. `from_zero`: y begins at 0."""
    count = max(len(one.values) for one in series)
    drawing = Drawing(_BOTTOM_PX + _BELOW_PX, frame.description)
    axis = Axis(max(count - 1, 1) * frame.x_step, _LEFT_PX, _RIGHT_PX)
    for place, shaded in enumerate(quiet):
        if shaded:
            x = axis.at(max(place - 0.5, 0) * frame.x_step)
            drawing.rect(x, _TOP_PX, axis.at(frame.x_step) - axis.at(0), _BOTTOM_PX - _TOP_PX, "quiet")
    drawing.axis(axis, _TOP_PX, _BOTTOM_PX, frame.x_unit)
    low, high = _range(series, from_zero=from_zero)
    _draw_levels(drawing, low, high, frame.y_unit)
    for index, one in enumerate(series):
        points = [
            None if value is None else (axis.at(place * frame.x_step), _y(value, low, high))
            for place, value in enumerate(one.values)
        ]
        _draw(drawing, one, points, index)
    drawing.legend([(one.name, _COLORS[index]) for index, one in enumerate(series)], _LEFT_PX + 60, 16)
    return drawing.done()


def _draw(drawing: Drawing, one: Series, points: Sequence[tuple[float, float] | None], index: int) -> None:
    if one.joined:
        for start, end in pairwise(points):
            if start is not None and end is not None:
                drawing.line(start, end, f"s{index}")
        return
    for place, point in enumerate(points):
        if point is not None:
            drawing.dot(*point, 3, f"dot {_COLORS[index]}", one.tips[place] if one.tips else "")


def _draw_levels(drawing: Drawing, low: float, high: float, unit: str) -> None:
    step = tick_step(high - low)
    for count in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        y = _y(count * step, low, high)
        drawing.line((_LEFT_PX, y), (_RIGHT_PX, y), "faint")
        drawing.text(_LEFT_PX - 8, y + 4, label_of(count * step), "tick", "end")
    drawing.text(_LEFT_PX - 8, 16, unit, "tick", "end")


def _range(series: Sequence[Series], *, from_zero: bool) -> tuple[float, float]:
    known = [value for one in series for value in one.values if value is not None]
    if not known:
        return _FALLBACK
    low, high = min(known), max(known)
    margin = 0.06 * (high - low) or 1.0
    return (0.0 if from_zero else low - margin), high + margin


def _y(value: float, low: float, high: float) -> float:
    return _BOTTOM_PX - (_BOTTOM_PX - _TOP_PX) * (value - low) / (high - low)
