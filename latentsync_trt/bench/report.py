"""Rows as one HTML file: tables of what a user decides by, and figures of where the time goes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from latentsync_trt.bench import table as text
from latentsync_trt.bench.html import svg, write_html
from latentsync_trt.bench.measure import DECODE, ENCODE
from latentsync_trt.bench.rows import Results, Row, StepTimes
from latentsync_trt.config import MODEL_FPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLORS = ("#2f6fd0", "#1b9e85", "#e0972b", "#cf4a63", "#7b5cc4", "#4aa3c7", "#8792a1", "#b08d57", "#6b8e23")
"""Of parts; readable on a light and on a dark page."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a figure: its parts by name, and a note at its end."""

    label: str
    parts: Mapping[str, float]
    note: str


def write_report(results: Results, path: Path) -> None:
    """Writes the page; raises `OutputError` if it cannot be written."""
    rows, environment = results.rows, results.environment
    by_scenario = {row.scenario: [other for other in rows if other.scenario == row.scenario] for row in rows}
    loops, graphs, torch = (by_scenario.get(name, []) for name in ("loop", "graph", "pytorch"))
    write_html(
        "bench.html.j2",
        path,
        title=f"{results.bundle.name} at {results.bundle.resolution_px} px on "
        f"{environment.get('gpu') or environment.get('cpu', 'an unknown machine')}",
        text=text,
        fps=MODEL_FPS,
        environment=environment,
        bundle=results.bundle,
        cells=[text.row_cells(row) for row in rows],
        loops=loops,
        graphs=graphs,
        references=list(dict.fromkeys(row.quality.reference for row in loops if row.quality)),
        figures=[
            *_windows(loops),
            *_clips(by_scenario.get("end-to-end", [])),
            *_stages(by_scenario.get("stage", [])),
        ],
        torch=[cells for row in graphs if (cells := _torch_cells(row, torch))],
        torch_notes=list(dict.fromkeys(note for row in torch for note in row.notes)),
        notes=list(dict.fromkeys(f"{text.title(row)}: {note}" for row in rows for note in row.notes)),
    )


def _torch_cells(row: Row, torch: Iterable[Row]) -> list[str]:
    """A graph beside the same network in PyTorch on the same kind of device; empty where there is none."""
    device = "cpu" if row.provider == "cpu" else "cuda"
    times_ms = {other.case: other.time.median_ms for other in torch if other.provider == device}
    found = [times_ms.get(f"{row.case} {mode}") for mode in ("eager", "compiled")]
    if not any(found):
        return []
    ours_ms = row.time.median_ms
    cells = [f"{row.case} · {row.provider}", text.milliseconds(ours_ms)]
    for theirs_ms in found:
        if theirs_ms is None:
            cells += ["not measured", ""]
        else:
            cells += [text.milliseconds(theirs_ms), f"{theirs_ms / ours_ms:.2f}×"]
    return cells


def _windows(loops: Sequence[Row]) -> list[dict[str, Any]]:
    kinds = list(dict.fromkeys(_step_kind(kind) for row in loops for kind in row.steps))
    bars = [(row, _window_parts(row, kinds), text.milliseconds(row.time.median_ms)) for row in loops]
    caption = (
        "The VAE encodes each face twice, all steps run, the VAE decodes. “Other” is what lies between, such as copies "
        "to and from the device."
    )
    return _figure("Where the time of a window goes", bars, "ms", caption)


def _window_parts(row: Row, kinds: Sequence[str]) -> dict[str, float]:
    """Milliseconds by part; those of the loop by kinds of steps."""
    steps_ms = {_step_kind(kind): kind.in_a_run * fmean(kind.times_ms) for kind in row.steps}
    encode_ms, decode_ms = (1000 * row.parts_s.get(part, 0.0) for part in (ENCODE, DECODE))
    parts_ms = {ENCODE: encode_ms, **{kind: steps_ms.get(kind, 0.0) for kind in kinds}, DECODE: decode_ms}
    return {**parts_ms, "other": max(row.time.median_ms - sum(parts_ms.values()), 0.0)}


def _step_kind(steps: StepTimes) -> str:
    kind = "full steps" if steps.full else "cached steps"
    return kind if steps.guided else f"{kind}, unguided"


def _clips(clips: Sequence[Row]) -> list[dict[str, Any]]:
    bars = []
    for row in clips:
        share = 1000 * row.parts_s.get("paint", 0.0) / row.time.median_ms
        bars.append((row, row.parts_s, f"{text.milliseconds(row.time.median_ms)}, painting {share:.0%}"))
    start_up = "; ".join(f"{text.title(row)} {text.number(sum(row.start_up_s.values()))} s" for row in clips)
    caption = (
        "Seconds that each stage was busy, the wall time, and the share of it in which painting was busy. Stages "
        f"overlap, so their sum exceeds the wall time. Start-up, which is not in the bars: {start_up}."
    )
    return _figure("Where the time of a clip goes", bars, "s", caption)


def _stages(stages: Sequence[Row]) -> list[dict[str, Any]]:
    bars = [(row, {"ms": row.time.median_ms / row.frames}, text.rate(row)) for row in stages]
    notes = "; ".join(dict.fromkeys(note for row in stages for note in row.notes))
    return _figure("Stages by themselves", bars, "ms per frame", f"Each stage with the machine to itself: {notes}.")


def _figure(
    title: str, bars: Iterable[tuple[Row, Mapping[str, float], str]], unit: str, caption: str
) -> list[dict[str, Any]]:
    """A section of the page, none without bars; a drawing for each provider, as their times differ by far."""
    groups: dict[str | None, list[Bar]] = {}
    for row, parts, note in bars:
        groups.setdefault(row.provider, []).append(Bar(text.title(row), parts, note))
    drawings = [svg(stacked_bars(group, unit)) for group in groups.values()]
    return [{"title": title, "drawings": drawings, "caption": caption}] if drawings else []


def stacked_bars(bars: Sequence[Bar], unit: str) -> "Figure":
    """Horizontal bars from top to bottom, with a legend where they have several parts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.9 + 0.36 * len(bars)))
    axes = figure.subplots()
    names = list(dict.fromkeys(name for bar in bars for name in bar.parts))
    ends = [0.0] * len(bars)
    for index, name in enumerate(names):
        widths = [bar.parts.get(name, 0.0) for bar in bars]
        axes.barh(range(len(bars)), widths, 0.62, ends, label=name, color=_COLORS[index % len(_COLORS)])
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    for index, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        axes.annotate(bar.note, (end, index), (6, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(ends))
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.15, color="black")
    axes.set_axisbelow(True)
    if len(names) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(len(names), 5), frameon=False, fontsize=9)
    return figure
