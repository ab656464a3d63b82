"""Grids of faces."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from latentsync_trt.bench.moments import SHOWN_PX
from latentsync_trt.types import UInt8Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 100
_BORDER_PX, _LABELS_PX, _FOOT_PX = 8, 180, 64


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
