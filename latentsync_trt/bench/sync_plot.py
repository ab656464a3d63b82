"""A plot of a clip over time: how loud the speech is, what its mouth should do where that is known, what it does."""

import math
from dataclasses import dataclass

import numpy as np

from latentsync_trt.bench.canvas import FAINT, INK, RULE, Canvas, Color
from latentsync_trt.bench.clip_sync import Curves, SyncScore
from latentsync_trt.bench.sync_measure import CLOSED_GAP
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import BoolArray, Float32Array, Float64Array

MOST_SHOWN_S = 12.0
"""A longer clip is cut: more would be one block of ink."""

_WIDTH_PX, _HEIGHT_PX = 1600, 860
_LEFT_PX, _RIGHT_PX = 96, 1552
_LOUD_TOP_PX, _LOUD_BOTTOM_PX = 164, 300
_MOUTH_TOP_PX, _MOUTH_BOTTOM_PX = 372, 772

_FLOOR_DB = -50.0
_LIPS_AT_REST = 0.03
"""What the measure gives for lips that touch; the known mouth's 0 is drawn there."""
_LEAST_TOP = 0.15
"""The axis of gaps reaches at least so far, so that noise of shut lips looks like noise."""

_LOUD: Color = (196, 202, 212)
_WANTED: Color = (52, 116, 214)
_WANTED_FILL: Color = (221, 232, 250)
_MEASURED: Color = (224, 92, 30)
_SHUT: Color = (247, 214, 217)
_SILENT: Color = (243, 244, 246)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Seconds and values to pixels."""

    duration_s: float
    top_px: float
    bottom_px: float
    low: float
    high: float

    def x(self, frame: float) -> float:
        return _LEFT_PX + (_RIGHT_PX - _LEFT_PX) * frame / MODEL_FPS / self.duration_s

    def y(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.bottom_px - share * (self.bottom_px - self.top_px)

    def points(self, values: Float32Array | Float64Array) -> list[tuple[float, float]]:
        """Of consecutive frames; a frame's value is drawn in its middle."""
        return [(self.x(index + 0.5), self.y(float(value))) for index, value in enumerate(values)]


def draw_plot(curves: Curves, found: SyncScore) -> Canvas:
    """The plot of a clip of at least one frame; of a long one, its beginning. The numbers are those of the whole."""
    shown = min(len(curves), round(MOST_SHOWN_S * MODEL_FPS))
    canvas = Canvas(_WIDTH_PX, _HEIGHT_PX)
    duration_s = shown / MODEL_FPS
    highest = float(np.nan_to_num(curves.gaps[:shown]).max(initial=_LEAST_TOP / 1.05))
    loud = _Axis(duration_s, _LOUD_TOP_PX, _LOUD_BOTTOM_PX, _FLOOR_DB, 0.0)
    mouth = _Axis(duration_s, _MOUTH_TOP_PX, _MOUTH_BOTTOM_PX, 0.0, 1.05 * highest)
    _bands(canvas, loud, curves.silent[:shown], _SILENT)
    _bands(canvas, mouth, curves.silent[:shown], _SILENT)
    if curves.mouth is not None:
        _bands(canvas, mouth, curves.mouth.shut[:shown], _SHUT)
    _draw_loudness(canvas, loud, curves.level_db[:shown])
    _draw_wanted(canvas, mouth, curves, shown)
    _draw_measured(canvas, mouth, curves.gaps[:shown])
    _draw_time(canvas, loud, labels=False)
    _draw_time(canvas, mouth, labels=True)
    _draw_head(canvas, found, len(curves) / MODEL_FPS, duration_s)
    _draw_legend(canvas, curves)
    return canvas


def _bands(canvas: Canvas, axis: _Axis, where: BoolArray, color: Color) -> None:
    for index in np.flatnonzero(where).tolist():
        canvas.box(axis.x(index), axis.top_px, axis.x(index + 1), axis.bottom_px, color)


def _draw_loudness(canvas: Canvas, axis: _Axis, level_db: Float32Array) -> None:
    points = axis.points(level_db)
    canvas.area([(points[0][0], axis.bottom_px), *points, (points[-1][0], axis.bottom_px)], _LOUD)
    canvas.text(_LEFT_PX, axis.top_px - 12, "loudness of the speech", 18, bold=True)
    for value in (0.0, -20.0, -40.0):
        canvas.text(_LEFT_PX - 10, axis.y(value) + 5, f"{value:.0f} dB", 15, FAINT, anchor=1)


def _draw_wanted(canvas: Canvas, axis: _Axis, curves: Curves, shown: int) -> None:
    """The known opening: its 0 where lips at rest are measured, its unit where it fits the measured gaps best."""
    if curves.mouth is None:
        return
    opening = curves.mouth.opening[:shown].astype(np.float64)
    points = axis.points(_LIPS_AT_REST + _unit(opening, curves.gaps[:shown]) * opening)
    base = axis.y(_LIPS_AT_REST)
    canvas.area([(points[0][0], base), *points, (points[-1][0], base)], _WANTED_FILL)
    for index in np.flatnonzero(curves.mouth.shut[:shown]).tolist():  # the bands lie under the fill
        canvas.box(axis.x(index), axis.top_px, axis.x(index + 1), axis.bottom_px, _SHUT)
    canvas.line(points, _WANTED, 2)


def _unit(opening: Float64Array, gaps: Float32Array) -> float:
    """The gap that belongs to an opening of 1, by least squares; at least what fills half of the smallest axis."""
    known = ~np.isnan(gaps)
    wanted = opening[known]
    fitted = float(wanted @ (gaps[known] - _LIPS_AT_REST) / max(float(wanted @ wanted), 1e-9))
    return max(fitted, _LEAST_TOP / 2)


def _draw_measured(canvas: Canvas, axis: _Axis, gaps: Float32Array) -> None:
    canvas.dashed(_LEFT_PX, _RIGHT_PX, axis.y(CLOSED_GAP), FAINT)
    canvas.text(_LEFT_PX - 10, axis.y(CLOSED_GAP) + 5, "shut", 15, FAINT, anchor=1)
    for value in np.arange(0.1, axis.high, 0.1).tolist():
        canvas.text(_LEFT_PX - 10, axis.y(value) + 5, f"{value:.1f}", 15, FAINT, anchor=1)
    points = axis.points(gaps)
    known = ~np.isnan(gaps)
    for index in np.flatnonzero(known[:-1] & known[1:]).tolist():
        canvas.line(points[index : index + 2], _MEASURED, 3)
    for index in np.flatnonzero(known).tolist():
        canvas.dot(*points[index], 3.5 if len(gaps) <= 200 else 2.0, _MEASURED)


def _draw_time(canvas: Canvas, axis: _Axis, *, labels: bool) -> None:
    canvas.line([(_LEFT_PX, axis.bottom_px), (_RIGHT_PX, axis.bottom_px)], FAINT)
    step_s = 0.5 if axis.duration_s <= 6 else 1.0
    for tick in range(math.floor(axis.duration_s / step_s + 1e-9) + 1):
        x = axis.x(tick * step_s * MODEL_FPS)
        canvas.line([(x, axis.bottom_px), (x, axis.bottom_px + 6)], FAINT)
        if labels:
            canvas.text(x, axis.bottom_px + 26, f"{tick * step_s:.1f} s", 15, FAINT, anchor=0.5)


def _draw_head(canvas: Canvas, found: SyncScore, whole_s: float, shown_s: float) -> None:
    cut = f" (its first {shown_s:.0f} s of {whole_s:.0f} s)" if shown_s < whole_s else ""
    canvas.text(_LEFT_PX, 48, f"Do the lips follow the speech?{cut}", 28, bold=True)
    numbers = [
        (f"{found.opening:.2f}", "correlation with " + ("the spoken mouth" if found.known else "the loudness")),
        (f"{found.lag_frames}", f"frames late where it is best ({found.best:.2f})"),
    ]
    if not math.isnan(found.closures):
        numbers.append((f"{found.closures:.0%}", "of m, b, p shown shut"))
    if not math.isnan(found.silence):
        numbers.append((f"{found.silence:.0%}", "of silent frames shut"))
    for place, (value, meaning) in enumerate(numbers):
        x = _LEFT_PX + place * (_RIGHT_PX - _LEFT_PX) / 4
        width = canvas.text(x, 100, value, 30, bold=True)
        canvas.text(x + width + 10, 100, meaning, 17, FAINT)
    canvas.line([(_LEFT_PX, 122), (_RIGHT_PX, 122)], RULE)


def _draw_legend(canvas: Canvas, curves: Curves) -> None:
    y = _MOUTH_TOP_PX - 16
    canvas.text(_LEFT_PX, y, "opening of the mouth", 18, bold=True)
    x = _LEFT_PX + 240.0
    entries: list[tuple[str, Color, bool]] = [("measured in the result", _MEASURED, True)]
    if curves.mouth is not None:
        entries += [("what the words ask for", _WANTED, True), ("m, b, p: lips must touch", _SHUT, False)]
    entries.append(("silence", RULE, False))
    for name, color, is_line in entries:
        if is_line:
            canvas.line([(x, y - 6), (x + 30, y - 6)], color, 3)
        else:
            canvas.box(x, y - 14, x + 30, y + 2, color)
        canvas.text(x + 40, y, name, 17, INK)
        x += 270
