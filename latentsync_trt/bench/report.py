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

Cells = tuple[str, ...]

_COLORS = ("#2f6fd0", "#1b9e85", "#e0972b", "#cf4a63", "#7b5cc4", "#4aa3c7", "#8792a1", "#b08d57", "#6b8e23")
"""Of parts; readable on a light and on a dark page."""

_PRESET_HEADS = ("preset", "a window", "frames/s", "for 1 s of video", "full steps", "likeness to quality", "memory")
_GRAPH_HEADS = ("graph", "median", "p5–p95 ms", "TFLOP", "TFLOP/s", "of matmul", "build s", "open s", "memory")
_TORCH_HEADS = ("network", "ours", "eager", "eager / ours", "torch.compile", "compiled / ours")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a figure: its parts by name, and a note at its end."""

    label: str
    parts: Mapping[str, float]
    note: str


def write_report(results: Results, path: Path) -> None:
    """Writes the page; raises `OutputError` if it cannot be written."""
    rows, bundle, environment = results.rows, results.bundle, results.environment
    machine = environment.get("gpu") or environment.get("cpu", "")
    measured_at = environment.get("measured_at", "")[:16].replace("T", " ")
    loops = [row for row in rows if row.scenario == "loop"]
    torch = [row for row in rows if row.scenario == "pytorch"]
    write_html(
        "bench.html.j2",
        path,
        title=f"{bundle.name} at {bundle.resolution_px} px on {machine}",
        subtitle=f"{bundle.precision}, {bundle.shapes} shapes, windows of {bundle.frames} frames · {measured_at} UTC",
        preset_heads=_PRESET_HEADS,
        presets=[_preset_cells(row) for row in loops],
        references=list(dict.fromkeys(row.quality.reference for row in loops if row.quality)),
        figures=[*_windows(loops), *_clips(rows), *_stages(rows)],
        graph_heads=_GRAPH_HEADS,
        graphs=[_graph_cells(row) for row in rows if row.scenario == "graph"],
        torch_heads=_TORCH_HEADS,
        torch=[cells for row in rows if (cells := _torch_cells(row, torch))],
        torch_notes=list(dict.fromkeys(note for row in torch for note in row.notes)),
        row_heads=text.ROW_HEADS,
        rows=[text.row_cells(row) for row in rows],
        facts=[
            *((name.replace("_", " "), value) for name, value in environment.items()),
            ("bundle", f"{bundle.name}, SHA-256 {bundle.sha256[:16]}…"),
        ],
        notes=list(dict.fromkeys(f"{text.title(row)}: {note}" for row in rows for note in row.notes)),
    )


def _preset_cells(row: Row) -> Cells:
    equivalents = row.facts.get("full_step_equivalents")
    return (
        f"{row.preset} on {row.provider}",
        text.milliseconds(row.time.median_ms),
        text.number(row.frames_per_s or 0.0),
        f"{text.number(row.facts['seconds_per_second_of_video'])} s",
        "" if equivalents is None else f"{equivalents:.2f}",
        text.quality(row.quality) or "reference",
        text.memory(row.memory),
    )


def _graph_cells(row: Row) -> Cells:
    found = row.arithmetic
    return (
        f"{row.case} · {row.provider}",
        text.milliseconds(row.time.median_ms),
        text.spread(row.time),
        text.number(found.tflop) if found else text.NOT_MEASURED,
        text.number(found.tflop_per_s) if found else "",
        f"{found.ceiling_share:.0%}" if found and found.ceiling_share else "",
        *(f"{row.start_up_s[part]:.2f}" if part in row.start_up_s else "" for part in ("build", "open")),
        text.memory(row.memory),
    )


def _torch_cells(row: Row, torch: Iterable[Row]) -> Cells:
    """A graph beside the same network in PyTorch on the same kind of device; empty where there is none."""
    device = "cpu" if row.provider == "cpu" else "cuda"
    times_ms = {other.case: other.time.median_ms for other in torch if other.provider == device}
    found = [times_ms.get(f"{row.case} {mode}") for mode in ("eager", "compiled")]
    if row.scenario != "graph" or not any(found):
        return ()
    ours_ms = row.time.median_ms
    cells = [f"{row.case} · {row.provider}", text.milliseconds(ours_ms)]
    for time_ms in found:
        cells += [text.NOT_MEASURED, ""] if time_ms is None else [text.milliseconds(time_ms), f"{time_ms / ours_ms:.2f}×"]
    return tuple(cells)


def _windows(loops: Sequence[Row]) -> list[dict[str, Any]]:
    if not loops:
        return []
    bars = {
        provider: [Bar(f"{row.preset} · {provider}", _window_parts(row), text.milliseconds(row.time.median_ms)) for row in rows]
        for provider, rows in _by_provider(loops).items()
    }
    first = loops[0]
    caption = (
        f"{first.case.capitalize()}, {first.frames} frames, {text.number(first.frames / MODEL_FPS)} s of video. "
        "“Other” is what lies between the parts, such as copies to and from the device."
    )
    return [_figure("Where the time of a window goes", bars.values(), "ms", caption)]


def _window_parts(row: Row) -> dict[str, float]:
    """Milliseconds by part; the loop by kinds of steps."""
    steps_ms = {_step_kind(kind): kind.in_a_run * fmean(kind.times_ms) for kind in row.steps}
    encode_ms, decode_ms = (1000 * row.parts_s.get(part, 0.0) for part in (ENCODE, DECODE))
    parts_ms = {ENCODE: encode_ms, **steps_ms, DECODE: decode_ms}
    return {**parts_ms, "other": max(row.time.median_ms - sum(parts_ms.values()), 0.0)}


def _step_kind(steps: StepTimes) -> str:
    kind = "full steps" if steps.full else "cached steps"
    return kind if steps.guided else f"{kind}, unguided"


def _clips(rows: Sequence[Row]) -> list[dict[str, Any]]:
    clips = [row for row in rows if row.scenario == "end-to-end"]
    if not clips:
        return []
    bars = {
        provider: [
            Bar(
                f"{row.preset} · {provider}",
                row.parts_s,
                f"wall {text.milliseconds(row.time.median_ms)}, painting {row.facts['paint_busy_share']:.0%} of it",
            )
            for row in found
        ]
        for provider, found in _by_provider(clips).items()
    }
    first = clips[0]
    start_up = "; ".join(f"{text.title(row)} {text.number(sum(row.start_up_s.values()))} s" for row in clips)
    caption = (
        f"{first.case}, {first.frames} frames: seconds that each stage was busy. Stages overlap, so their sum exceeds "
        f"the wall time. Start-up, which is not in the bars: {start_up}."
    )
    return [_figure("Where the time of a clip goes", bars.values(), "s", caption)]


def _stages(rows: Sequence[Row]) -> list[dict[str, Any]]:
    stages = [row for row in rows if row.scenario == "stage"]
    if not stages:
        return []
    bars = [Bar(text.title(row), {"ms": 1000 / (row.frames_per_s or 1.0)}, text.rate(row)) for row in stages]
    notes = dict.fromkeys(note for row in stages for note in row.notes)
    caption = f"Milliseconds per frame of each stage with the machine to itself: {'; '.join(notes)}."
    return [_figure("Stages by themselves", [bars], "ms per frame", caption)]


def _by_provider(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.provider or "", []).append(row)
    return groups


def _figure(title: str, groups: Iterable[Sequence[Bar]], unit: str, caption: str) -> dict[str, Any]:
    """A section of the page; a drawing for each group, as times of providers differ by orders of magnitude."""
    return {"title": title, "drawings": [svg(stacked_bars(bars, unit)) for bars in groups], "caption": caption}


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
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), frameon=False, fontsize=9)
    return figure
