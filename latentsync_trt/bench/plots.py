"""The report's plots: stacked bars, strips of single times, and a scatter. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from latentsync_trt.bench.spread import Spread
from latentsync_trt.bench.svg import WIDTH_PX, Axis, Drawing, label_of, tick_step
from latentsync_trt.bench.words import number

_LABEL_PX = 178
_NOTE_PX = 150
_ROW_PX, _BAR_PX = 30, 18
_TOP_PX, _BELOW_PX = 34, 40
_COLORS = 7
_HEADROOM = 1.04
_LABELS_LEFT_FROM = 0.6
"""Beyond this share of a scatter's width, labels would leave it on the right."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of segments `(name, value)`; `mark`: where a tick is drawn across it; `note`: text at its end."""

    label: str
    segments: tuple[tuple[str, float], ...]
    note: str = ""
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class Strip:
    """Single values in one line; `category` chooses the color."""

    label: str
    values: tuple[float, ...]
    category: str


@dataclass(frozen=True, slots=True)
class Point:
    """A point; where `y` is None it is drawn at the top, above all numbers."""

    label: str
    x: float
    y: float | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A line across a plot at a value that readers compare with."""

    value: float
    name: str


def stacked_bars(bars: Sequence[Bar], unit: str, description: str, rules: Sequence[Rule] = (), mark: str = "") -> str:
    """A bar for each of `bars`, one below the other; `mark` names their ticks. There must be a positive value."""
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.segments))
    totals = [max(sum(value for _, value in bar.segments), bar.mark or 0.0) for bar in bars]
    bottom = _TOP_PX + _ROW_PX * len(bars)
    drawing = Drawing(bottom + _BELOW_PX, description)
    axis = Axis(max(totals) * _HEADROOM, _LABEL_PX, WIDTH_PX - _NOTE_PX)
    drawing.axis(axis, _TOP_PX - 6, bottom, unit)
    if len(names) > 1:
        drawing.legend([(name, _color(names, name)) for name in names], _LABEL_PX, 14)
    for index, bar in enumerate(bars):
        _draw_bar(drawing, bar, names, axis, _TOP_PX + _ROW_PX * index)
    _draw_rules(drawing, rules, axis, bottom)
    if mark:
        drawing.text(axis.left_px, bottom + 32, f"▏{mark}", "tick")
    return drawing.done()


def _draw_bar(drawing: Drawing, bar: Bar, names: list[str], axis: Axis, top: float) -> None:
    y = top + (_ROW_PX - _BAR_PX) / 2
    drawing.text(_LABEL_PX - 10, y + 13, bar.label, "label", "end")
    start = 0.0
    for name, value in bar.segments:
        tip = f"{bar.label}: {name} {number(value)}"
        drawing.rect(axis.at(start), y, axis.at(start + value) - axis.at(start), _BAR_PX, _color(names, name), tip)
        start += value
    end = start
    if bar.mark is not None:
        x = axis.at(bar.mark)
        drawing.line((x, y - 4), (x, y + _BAR_PX + 4), "mark")
        end = max(start, bar.mark)
    drawing.text(axis.at(end) + 8, y + 13, bar.note, "tick")


def _draw_rules(drawing: Drawing, rules: Sequence[Rule], axis: Axis, bottom: float) -> None:
    for rule in rules:
        if rule.value <= axis.most:
            x = axis.at(rule.value)
            drawing.line((x, _TOP_PX - 6), (x, bottom), "rule")
            drawing.text(x + 4, _TOP_PX - 10, rule.name, "tick")


def strips(rows: Sequence[Strip], unit: str, description: str) -> str:
    """Every value as a dot, the median as a tick, and where nine of ten lie as a line."""
    names = list(dict.fromkeys(row.category for row in rows))
    bottom = _TOP_PX + _ROW_PX * len(rows)
    drawing = Drawing(bottom + _BELOW_PX, description)
    axis = Axis(max(max(row.values) for row in rows) * _HEADROOM, _LABEL_PX, WIDTH_PX - _NOTE_PX)
    drawing.axis(axis, _TOP_PX - 6, bottom, unit)
    drawing.legend([(name, _color(names, name)) for name in names], _LABEL_PX, 14)
    for index, row in enumerate(rows):
        _draw_strip(drawing, row, _color(names, row.category), axis, _TOP_PX + _ROW_PX * (index + 0.5))
    return drawing.done()


def _draw_strip(drawing: Drawing, row: Strip, color: str, axis: Axis, y: float) -> None:
    found = Spread.of(row.values)
    drawing.text(_LABEL_PX - 10, y + 4, row.label, "label", "end")
    drawing.line((axis.at(found.p5_ms), y), (axis.at(found.p95_ms), y), "range")
    for index, value in enumerate(row.values):
        # Spread in height, by a fixed pattern, so that dots on top of one another show as many.
        drawing.dot(axis.at(value), y + 3.2 * (index % 5 - 2), 2.2, f"dot {color}", f"{row.label}: {number(value)}")
    x = axis.at(found.median_ms)
    drawing.line((x, y - 11), (x, y + 11), "mark")
    rest = f"{number(found.median_ms)}  ({number(found.p5_ms)}–{number(found.p95_ms)})"
    drawing.text(max(axis.at(max(row.values)), x) + 8, y + 4, rest, "tick")


def scatter(points: Sequence[Point], x_unit: str, y_unit: str, description: str, rules: Sequence[Rule] = ()) -> str:
    """Points with their labels; y begins below the lowest number, as decibels have no zero that means anything."""
    top, bottom = 30.0, 260.0
    drawing = Drawing(bottom + _BELOW_PX, description)
    axis = Axis(max(point.x for point in points) * 1.1, 70, WIDTH_PX - 30)
    drawing.axis(axis, top, bottom, x_unit)
    heights = [point.y for point in points if point.y is not None]
    low, high = _range(heights)
    for tick in _ticks(low, high):
        y = bottom + (top + 26 - bottom) * (tick - low) / (high - low)
        drawing.line((axis.left_px, y), (axis.right_px, y), "faint")
        drawing.text(axis.left_px - 8, y + 4, label_of(tick), "tick", "end")
    drawing.line((axis.left_px, top), (axis.right_px, top), "rule")
    drawing.text(axis.right_px, top - 6, "the reference itself, and what equals it", "tick", "end")
    drawing.text(axis.left_px, top - 6, y_unit, "tick")
    for rule in rules:
        if rule.value <= axis.most:
            drawing.line((axis.at(rule.value), top), (axis.at(rule.value), bottom), "rule")
            drawing.text(axis.at(rule.value) + 4, bottom - 6, rule.name, "tick")
    for point in points:
        y = top if point.y is None else bottom + (top + 26 - bottom) * (point.y - low) / (high - low)
        drawing.dot(axis.at(point.x), y, 6, "point c0", point.label)
        on_left = point.x > _LABELS_LEFT_FROM * axis.most
        x = axis.at(point.x) + (-11 if on_left else 11)
        drawing.text(x, y + (18 if point.y is None else 4), point.label, "label", "end" if on_left else "start")
    return drawing.done()


def _range(heights: Sequence[float]) -> tuple[float, float]:
    """A little more than from the lowest to the highest."""
    if not heights:
        return 0.0, 1.0
    margin = max((max(heights) - min(heights)) * 0.2, 2.0)
    return min(heights) - margin, max(heights) + margin


def _ticks(low: float, high: float) -> list[float]:
    step = tick_step(high - low)
    first = int(low // step) + 1
    return [step * index for index in range(first, int(high // step) + 1)]


def _color(names: Sequence[str], name: str) -> str:
    return f"c{names.index(name) % _COLORS}"
