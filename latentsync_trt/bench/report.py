"""The rows as one HTML file: tables for choosing options, and figures of where the time goes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latentsync_trt.bench import table as text
from latentsync_trt.bench.rows import Results, Row
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.sync.html import svg, write_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Bar = tuple[str, Mapping[str, float], str]
"""A bar of a figure: its label, its parts by name, and a note at its end."""


def write_report(results: Results, path: Path) -> None:
    """Writes the page; raises `OutputError` if it cannot be written."""
    rows, environment = results.rows, results.environment
    loops, graphs, clips, stages = (
        [row for row in rows if row.scenario == scenario] for scenario in ("loop", "graph", "end-to-end", "stage")
    )
    start_up = "; ".join(f"{text.title(row)} {text.number(sum(row.start_up_s.values()))} s" for row in clips)
    write_html(
        "bench.html.j2",
        path,
        title=f"{results.bundle.name} at {results.bundle.resolution_px} px on "
        f"{environment.get('gpu') or environment.get('cpu', 'an unknown machine')}",
        text=text,
        fps=MODEL_FPS,
        results=results,
        cells=[text.row_cells(row) for row in rows],
        loops=loops,
        graphs=graphs,
        references=list(dict.fromkeys(row.quality.reference for row in loops if row.quality)),
        figures=[
            *_figure("Where the time of a window goes", loops, _by_part, "s", "“Rest”: copies and setting up."),
            *_figure(
                "Where the time of a clip goes",
                clips,
                _by_part,
                "s",
                "Seconds that each stage was busy, and the wall time. Stages overlap, so their sum exceeds the wall "
                f"time. Start-up, which is not in the bars: {start_up}.",
            ),
            *_figure(
                "Stages by themselves",
                stages,
                lambda row: (text.title(row), {"": row.time.median_ms / row.frames}, text.rate(row)),
                "ms per frame",
                "Each stage with the machine to itself.",
            ),
        ],
        notes=list(dict.fromkeys(f"{text.title(row)}: {note}" for row in rows for note in row.notes)),
    )


def _by_part(row: Row) -> Bar:
    return text.title(row), row.parts_s, text.milliseconds(row.time.median_ms)


def _figure(
    title: str, rows: Sequence[Row], bar: Callable[[Row], Bar], unit: str, caption: str
) -> list[dict[str, Any]]:
    """A section of the page, none without rows; one drawing per provider, as their times differ widely."""
    groups: dict[str | None, list[Bar]] = {}
    for row in rows:
        groups.setdefault(row.provider, []).append(bar(row))
    drawings = [svg(stacked_bars(group, unit)) for group in groups.values()]
    return [{"title": title, "drawings": drawings, "caption": caption}] if drawings else []


def stacked_bars(bars: Sequence[Bar], unit: str) -> "Figure":
    """Horizontal bars from top to bottom, with a legend if they have several parts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.9 + 0.36 * len(bars)))
    axes = figure.subplots()
    labels, parts, notes = zip(*bars, strict=True)
    names = list(dict.fromkeys(name for each in parts for name in each))
    ends = [0.0] * len(bars)
    for name in names:
        widths = [each.get(name, 0.0) for each in parts]
        axes.barh(range(len(bars)), widths, 0.62, ends, label=name)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for index, (note, end) in enumerate(zip(notes, ends, strict=True)):
        axes.annotate(note, (end, index), (6, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set(yticks=range(len(bars)), yticklabels=labels, xlim=(0, 1.3 * max(ends)), xlabel=unit)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.15, color="black")
    axes.set_axisbelow(True)
    if len(names) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(len(names), 5), frameon=False, fontsize=9)
    return figure
