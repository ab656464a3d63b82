"""The people of a clip: when, how large and how frontal each is seen, as numbers and as a contact sheet."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latentsync_trt.face.geometry import turn
from latentsync_trt.face.track_file import Tracks
from latentsync_trt.measure.page import png, write_file
from latentsync_trt.types import UInt8Array

PORTRAIT_PX = 160

_FRONTAL_TURN = 0.25
"""About 25°."""

_WIDTH_PX, _MARGIN_PX, _BAR_PX, _BELOW_PX = 1000, 16, 22, 24
_DPI = 100


@dataclass(frozen=True, slots=True)
class PersonSummary:
    """One person of a clip, by `number`. `times_s`: begin and end of each time the person is seen.

    `seen_s`: sum of these. `height_px`: of the face, the median. `frontal`: share of the time in
    which the face looks into the camera, or less than about 25° aside.
    """

    number: int
    times_s: tuple[tuple[float, float], ...]
    seen_s: float
    height_px: int
    frontal: float


def summaries(tracks: Tracks) -> list[PersonSummary]:
    """What is known of each person, by number."""
    found = []
    for number in tracks.people:
        spans = [span for span in tracks.spans if span.person == number]
        times_s = tuple((float(span.rows[0, 0]), float(span.rows[-1, 0])) for span in spans)
        rows = np.concatenate([span.rows for span in spans])
        frontal = float((turn(rows[:, 5:].reshape(-1, 3, 2)) < _FRONTAL_TURN).mean())
        height_px = round(float(np.median(rows[:, 4] - rows[:, 2])))
        seen_s = sum(end_s - start_s for start_s, end_s in times_s)
        found.append(PersonSummary(number, times_s, seen_s, height_px, frontal))
    return found


def write_contact_sheet(path: Path, tracks: Tracks, portraits: Mapping[int, UInt8Array]) -> None:
    """Writes a PNG with a row for each person.

    Args:
        portraits: uint8 `(160, 160, 3)` RGB of each person.

    Raises:
        OutputError: it cannot be written.
    """
    from matplotlib.figure import Figure

    people = summaries(tracks)
    end_s = max(tracks.clip.duration_s, *(end for person in people for _, end in person.times_s))
    row_px, left_px = PORTRAIT_PX + _MARGIN_PX, PORTRAIT_PX + 3 * _MARGIN_PX
    height_px = row_px * len(people) + _MARGIN_PX
    size = np.array([_WIDTH_PX, height_px, _WIDTH_PX, height_px])
    sheet = Figure(figsize=(_WIDTH_PX / _DPI, height_px / _DPI), dpi=_DPI, facecolor="white")
    for row, person in enumerate(people):
        bottom_px, color = height_px - (row + 1) * row_px, f"C{person.number % 10}"
        sheet.figimage(portraits[person.number], _MARGIN_PX, bottom_px)
        box = np.array([left_px, bottom_px + _BELOW_PX, _WIDTH_PX - left_px - 2 * _MARGIN_PX, _BAR_PX]) / size
        bar = sheet.add_axes((box[0], box[1], box[2], box[3]))
        spans_s = [(start_s, max(stop_s - start_s, end_s / _WIDTH_PX)) for start_s, stop_s in person.times_s]
        bar.broken_barh(spans_s, (0, 1), color=color)
        bar.set(xlim=(0, end_s), ylim=(0, 1), yticks=[], xticks=[0, end_s])
        bar.set_xticklabels([time_text(0), time_text(end_s)])
        bar.set_facecolor("#d5d8dd")
        times = "once" if len(person.times_s) == 1 else f"{len(person.times_s)} times"
        height, frontal = describe(person)
        text = f"{person.number}: seen for {person.seen_s:.1f} s, {times}; {height} high, frontal in {frontal}"
        bar.set_title(text, loc="left", color=color)
    write_file(path, png(sheet))


def time_text(time_s: float) -> str:
    """ "1:02.5" for 62.5 seconds."""
    minutes, seconds = divmod(round(time_s, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{seconds:04.1f}" if hours else f"{minutes}:{seconds:04.1f}"


def describe(person: PersonSummary) -> tuple[str, str]:
    """How large and how frontal a person is seen."""
    return f"{person.height_px} px", f"{100 * person.frontal:.0f} %"
