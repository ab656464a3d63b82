"""Reports: self-contained HTML pages from one template, figures of lips and faces."""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.face.people import PORTRAIT_PX, PersonSummary
from latentsync_trt.files import whole_file
from latentsync_trt.measure.lips import CLOSED_GAP, SILENCE_DB, Curves
from latentsync_trt.media.files import reason_of
from latentsync_trt.paths import check_file_to_write, check_free, local_path
from latentsync_trt.types import BoolArray, UInt8Array, runs_of_true

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SUFFIXES = (".html", ".htm")
_TEMPLATES = Path(__file__).parents[1] / "assets" / "reports"
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

_DPI = 100
_MOST_POINTS = 120 * MODEL_FPS
"""Lines with more are drawn as pixels."""
_FLOOR_DB = SILENCE_DB - 10
"""Where the axis of the loudness ends."""
_LEAST_TOP = 0.15
"""The axis of gaps reaches at least this far, so that the noise of shut lips looks small."""
_LINE_COLORS = ("#d9591c", "#1b9e85")
_GRAY = "#8792a1"

SHOWN_PX = PORTRAIT_PX
"""Side of the faces in figures."""
_LABELS_PX = 180
_FOOT_PX = 64


def page_path(name: object, option: str, *, overwrite: bool) -> Path:
    """Returns the path that `option` names; raises `InputError` if no page can be written there, or
    one is to be kept.
    """
    path = local_path(str(name), option)
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{option} {path}: is not the name of a page; end it with .html")
    check_file_to_write(path, option)
    check_free(path, overwrite=overwrite)
    return path


def write_page(path: Path, template: str, **values: object) -> None:
    """Writes the page that a template in `assets/reports` makes of `values`; raises `OutputError`
    if it cannot be written.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_TEMPLATES)
    strict = StrictUndefined
    environment = Environment(
        loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["base64"] = _to_base64
    write_file(path, environment.get_template(template).render(values))


def _to_base64(file: bytes) -> str:
    return b64encode(file).decode("ascii")


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8, and makes its folder; raises `OutputError` if it cannot be
    written.
    """
    if isinstance(content, str):
        # On Linux, names of files may contain bytes that are not UTF-8; in JSON, a backslash stands
        # for them.
        content = content.encode("utf-8", "backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path, keep=True) as staged:
            staged.write_bytes(content)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({reason_of(error)})") from error


def jpeg(rgb: UInt8Array, height_px: int) -> bytes:
    """Returns a picture as a JPEG file of this height."""
    height, width = rgb.shape[:2]
    width_px = max(1, round(width * height_px / height))
    small = cv2.resize(rgb, (width_px, height_px), interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(small, cv2.COLOR_RGB2BGR)
    return bytes(cv2.imencode(".jpg", bgr)[1])


def svg(figure: "Figure") -> str:
    """Returns a matplotlib figure as an inline `<svg>` element; black parts take the color of the
    page's text.
    """
    import matplotlib
    from markupsafe import Markup

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(
            buffer, format="svg", bbox_inches="tight", transparent=True, metadata=_NO_METADATA
        )
    drawing = buffer.getvalue().replace("#000000", "currentColor")
    return Markup(drawing[drawing.index("<svg") :])  # noqa: S704 -- made by matplotlib, which escapes text


def write_png(path: Path, figure: "Figure") -> bytes:
    """Writes a figure as a PNG file, and returns the file's content; raises `OutputError` if it
    cannot be written.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_file(path, buffer.getvalue())
    return buffer.getvalue()


def sync_figure(
    results: Mapping[str, Curves],
    title: str = "",
    moments: Mapping[int, str] = MappingProxyType({}),
) -> "Figure":
    """Returns a plot of the loudness of the speech, and below it of the gap between the lips in one
    or two results of it, by name; `moments`: labels of frames of the first.
    """
    from matplotlib.figure import Figure

    first = next(iter(results.values()))
    figure = Figure(figsize=(12, 6.2), dpi=_DPI, layout="constrained")
    speech, lips = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    loud_db = first.levels_db[:, 0]
    time_s = (np.arange(len(first)) + 0.5) / MODEL_FPS  # the middles of frames
    as_pixels = len(first) > _MOST_POINTS
    speech.fill_between(
        time_s, _FLOOR_DB, loud_db, color=_GRAY, alpha=0.6, linewidth=0, rasterized=as_pixels
    )
    speech.set(ylim=(_FLOOR_DB, 0), ylabel="loudness of\nthe speech, dB")
    _draw_band(lips, first.silent, _GRAY, "nothing is said")
    top = _LEAST_TOP
    for color, (name, curves) in zip(_LINE_COLORS, results.items(), strict=False):
        top = max(top, float(np.nan_to_num(curves.gaps).max(initial=0.0)))
        lips.plot(
            time_s, curves.gaps, ".-", color=color, markersize=4, label=name, rasterized=as_pixels
        )
    for index, label in moments.items():
        place = (float(time_s[index]), float(first.gaps[index]))
        lips.plot(*place, "o", color="black", markersize=6, fillstyle="none")
        kind, _, _ = label.partition("\n")
        lips.annotate(kind, place, (6, 6), textcoords="offset points", fontsize=9)
    lips.axhline(CLOSED_GAP, color=_GRAY, linestyle="--", linewidth=1, label="below: lips touch")
    lips.set(xlim=(0, len(first) / MODEL_FPS), ylim=(0, 1.12 * top), xlabel="time, s")
    lips.set_ylabel("gap between the lips\n(distance between the eyes = 1)")
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    if title:
        figure.suptitle(title)
    return figure


def _draw_band(axes: "Axes", where: BoolArray, color: str, label: str) -> None:
    spans_s = list[tuple[float, float]]()
    for start, end in runs_of_true(where):
        spans_s.append((start / MODEL_FPS, (end - start) / MODEL_FPS))
    place = axes.get_xaxis_transform()
    axes.broken_barh(
        spans_s, (0, 1), transform=place, color=color, alpha=0.18, linewidth=0, label=label
    )


def face_grid(rows: Sequence[str], columns: Mapping[str, Sequence[UInt8Array]]) -> "Figure":
    """Returns a picture of labeled faces, pixel by pixel.

    Args:
        rows: labels from top to bottom.
        columns: the faces `(256, 256, 3)` RGB of each column, from top to bottom, by its label.
    """
    from matplotlib.figure import Figure

    width_px = _LABELS_PX + len(columns) * SHOWN_PX
    height_px = _FOOT_PX + len(rows) * SHOWN_PX
    figure = Figure(figsize=(width_px / _DPI, height_px / _DPI), dpi=_DPI)
    axes = figure.add_axes((_LABELS_PX / width_px, _FOOT_PX / height_px, 1, 1))
    axes.set(xlim=(0, width_px), ylim=(0, height_px))
    for column, faces in enumerate(columns.values()):
        figure.figimage(np.vstack(faces), _LABELS_PX + column * SHOWN_PX, _FOOT_PX)
    from_left = np.arange(len(columns))
    from_bottom = np.arange(len(rows))[::-1]
    axes.set_xticks((from_left + 0.5) * SHOWN_PX, [*columns])
    axes.set_yticks((from_bottom + 0.5) * SHOWN_PX, rows)
    axes.tick_params(length=0, labelsize=13)
    return figure


def contact_sheet(people: Sequence[PersonSummary], portraits: Mapping[int, UInt8Array]) -> "Figure":
    """Returns a picture of each person of a clip, with their number and for how long they are
    seen.
    """
    columns = dict[str, Sequence[UInt8Array]]()
    for person in people:
        label = f"{person.number}: {person.seen_s:.1f} s"
        columns[label] = [portraits[person.number]]
    return face_grid(("person",), columns)
