"""Figures: lips and speech over time, faces side by side, the people of a clip."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measure.clips import SHOWN_PX
from latentsync_trt.measure.lips import CLOSED_GAP, QUIET_DB, Curves, runs_of_true
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, UInt8Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 120 * MODEL_FPS
"""Lines with more are drawn as pixels."""

_DPI = 100
_FLOOR_DB = QUIET_DB - 10
_LIPS_AT_REST = 0.03
"""The measured gap of touching lips; the 0 of a known mouth is drawn there."""
_LEAST_TOP = 0.15
"""The axis of gaps reaches at least this far, so that the noise of shut lips looks small."""

_BORDER_PX, _LABELS_PX, _FOOT_PX = 8, 180, 64

_LINES = ("#d9591c", "#1b9e85")
_TARGET, _SHUT, _SPEECH, _SILENT = "#3f7fd6", "#cf4a63", "#8792a1", "#8792a1"


def sync_figure(results: Mapping[str, Curves], title: str = "") -> "Figure":
    """The loudness of the speech, and below it the gap between the lips in each result.

    Args:
        results: one or two by name, of the same speech, with at least one frame each.
    """
    from matplotlib.figure import Figure

    first = next(iter(results.values()))
    count, as_pixels = len(first), len(first) > _MOST_POINTS
    time_s = (np.arange(count) + 0.5) / MODEL_FPS
    figure = Figure(figsize=(12, 6.2), dpi=_DPI, layout="constrained")
    speech, lips = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    speech.fill_between(time_s, _FLOOR_DB, first.level_db, color=_SPEECH, alpha=0.6, linewidth=0, rasterized=as_pixels)
    speech.set(ylim=(_FLOOR_DB, 0), ylabel="loudness of\nthe speech, dB")
    _band(lips, first.silent, _SILENT, "nothing is said")
    if first.mouth is not None:
        _band(lips, first.mouth.shut, _SHUT, "m, b, p: lips must touch")
        target = _target_gaps(first.mouth.opening.astype(np.float64), first.gaps)
        lips.plot(time_s, target, color=_TARGET, linewidth=1.5, label="what the words require (scaled)")
        lips.fill_between(time_s, _LIPS_AT_REST, target, color=_TARGET, alpha=0.12, linewidth=0)
    for color, (name, curves) in zip(_LINES, results.items(), strict=False):
        lips.plot(time_s, curves.gaps, ".-", color=color, markersize=4, label=name, rasterized=as_pixels)
    lips.axhline(CLOSED_GAP, color=_SPEECH, linestyle="--", linewidth=1, label="below: lips touch")
    top = max(float(np.nan_to_num(curves.gaps).max(initial=0.0)) for curves in results.values())
    lips.set(xlim=(0, count / MODEL_FPS), ylim=(0, max(1.05 * top, _LEAST_TOP)), xlabel="time, s")
    lips.set_ylabel("gap between the lips\n(distance between the eyes = 1)")
    for axes in (speech, lips):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def _band(axes: "Axes", where: BoolArray, color: str, label: str) -> None:
    spans_s = [(start / MODEL_FPS, (end - start) / MODEL_FPS) for start, end in runs_of_true(where)]
    axes.broken_barh(
        spans_s, (0, 1), transform=axes.get_xaxis_transform(), color=color, alpha=0.18, linewidth=0, label=label
    )


def _target_gaps(opening: Float64Array, gaps: Float32Array) -> Float64Array:
    """The known opening on the scale of the gaps: 0 at the gap of lips at rest, the unit fitted by least squares."""
    known = ~np.isnan(gaps)
    target = opening[known]
    unit = float(target @ (gaps[known] - _LIPS_AT_REST) / max(float(target @ target), 1e-9))
    return _LIPS_AT_REST + max(unit, _LEAST_TOP / 2) * opening


def face_grid(rows: Sequence[str], columns: Mapping[str, Sequence[UInt8Array]]) -> "Figure":
    """Labeled faces pixel by pixel.

    Args:
        rows: labels. columns: label → faces from top to bottom, `(256, 256, 3)` RGB each.
    """
    from matplotlib.figure import Figure

    step_px = SHOWN_PX + _BORDER_PX
    width_px, height_px = _LABELS_PX + len(columns) * step_px, len(rows) * step_px + _BORDER_PX + _FOOT_PX
    figure = Figure(figsize=(width_px / _DPI, height_px / _DPI), dpi=_DPI, facecolor="white")

    def write(x_px: float, y_px: float, text: str, side: str) -> None:
        figure.text(x_px / width_px, y_px / height_px, text, ha=side, va="center", size=13)

    for row, label in enumerate(rows):
        write(_LABELS_PX - 12, height_px - row * step_px - step_px / 2, label, "right")
    for column, (label, faces) in enumerate(columns.items()):
        left_px = _LABELS_PX + column * step_px
        write(left_px + SHOWN_PX / 2, _FOOT_PX / 2, label, "center")
        for row, face in enumerate(faces):
            figure.figimage(face, left_px, height_px - (row + 1) * step_px)
    return figure
