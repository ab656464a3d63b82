"""A picture of all people in a clip: their numbers, and when, how large and how frontal they are seen."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from latentsync_trt.face.track_file import Tracks
from latentsync_trt.sync.analysis import PORTRAIT_PX, PersonSummary, summaries
from latentsync_trt.temporary import whole_file
from latentsync_trt.types import UInt8Array

_WIDTH_PX, _MARGIN_PX, _BAR_PX = 1000, 16, 22
_INK, _FAINT, _PAPER = "#202124", "#d5d8dd", "#ffffff"
_COLORS = ("#1a73e8", "#d93025", "#188038", "#f29900", "#9334e6", "#12858d", "#c5221f", "#5f6368")
_TITLE_PX, _TEXT_PX = 40, 18


def write_contact_sheet(path: Path, tracks: Tracks, portraits: Mapping[int, UInt8Array]) -> None:
    """Writes a PNG with a row for each person.

    Args:
        portraits: uint8 `(160, 160, 3)` RGB of each person.

    Raises:
        OSError: it cannot be written.
    """
    people = summaries(tracks)
    end_s = max(tracks.clip.duration_s, *(end for person in people for _, end in person.times_s))
    row_px = PORTRAIT_PX + _MARGIN_PX
    sheet = Image.new("RGB", (_WIDTH_PX, row_px * len(people) + _MARGIN_PX), _PAPER)
    for place, person in enumerate(people):
        top = _MARGIN_PX + place * row_px
        sheet.paste(Image.fromarray(np.asarray(portraits[person.number])), (_MARGIN_PX, top))
        _describe(ImageDraw.Draw(sheet), person, top, end_s)
    with whole_file(path) as part:
        sheet.save(part, "PNG")


def time_text(time_s: float) -> str:
    """ "1:02.5" for 62.5 seconds."""
    minutes, seconds = divmod(round(time_s, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:04.1f}" if hours else f"{minutes}:{seconds:04.1f}"


def describe(person: PersonSummary) -> tuple[str, str]:
    """How large and how frontal a person is seen."""
    return f"{person.height_px} px", f"{100 * person.frontal:.0f} %"


def _describe(draw: ImageDraw.ImageDraw, person: PersonSummary, top: int, end_s: float) -> None:
    color = _COLORS[person.number % len(_COLORS)]
    left, right = PORTRAIT_PX + 2 * _MARGIN_PX, _WIDTH_PX - _MARGIN_PX
    title, text = (ImageFont.load_default(size) for size in (_TITLE_PX, _TEXT_PX))
    height, frontal = describe(person)
    times = "once" if len(person.times_s) == 1 else f"{len(person.times_s)} times"
    draw.text((left, top), str(person.number), color, title)
    draw.text((left, top + 54), f"seen for {person.seen_s:.1f} s, {times}", _INK, text)
    draw.text((left, top + 78), f"{height} high, frontal in {frontal}", _INK, text)
    bar = top + PORTRAIT_PX - _BAR_PX - 24
    draw.rectangle((left, bar, right, bar + _BAR_PX), _FAINT)
    for start_s, stop_s in person.times_s:
        x0, x1 = (left + (right - left) * time_s / end_s for time_s in (start_s, stop_s))
        draw.rectangle((x0, bar, max(x1, x0 + 1), bar + _BAR_PX), color)
    for time_s, anchor, x in ((0.0, "la", left), (end_s, "ra", right)):
        draw.text((x, bar + _BAR_PX + 4), time_text(time_s), _INK, text, anchor=anchor)
