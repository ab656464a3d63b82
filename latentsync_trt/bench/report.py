"""The rows as one HTML file that needs nothing else: no network, no script."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from latentsync_trt.bench import figures, words
from latentsync_trt.bench.figures import Figure
from latentsync_trt.bench.page import Cells, facts, figure_of, page, table, write_page
from latentsync_trt.bench.rows import Results, Row

_HOW = (
    "Times are medians; a range holds nine of ten runs (5th to 95th percentile). Runs are synchronized, warm-up runs "
    "are left out, and inputs of single graphs are random numbers that lie on the device. Arithmetic is counted from "
    "the bundle's own graphs: convolutions, matrix products and attention, whatever a provider makes of them."
)


def write_report(results: Results, path: Path) -> None:
    """Writes the page; raises `OutputError` if that cannot be done."""
    write_page(report(results), path)


def report(results: Results) -> str:
    """The page."""
    bundle, environment = results.bundle, results.environment
    machine = environment.get("gpu") or environment.get("cpu", "")
    title = f"{bundle.name} at {bundle.resolution_px} px on {machine}"
    what = f"{bundle.precision}, {bundle.shapes} shapes, windows of {bundle.frames} frames"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(what)} · {escape(environment.get("measured_at", "")[:16].replace("T", " "))} UTC</p>',
        *_presets(results.rows),
        *(_figure(figure) for figure in figures.all_figures(results.rows)),
        *_graphs(results.rows),
        *_pytorch(results.rows),
        *_everything(results.rows),
        *_environment(results),
    ]
    return page(f"bench: {title}", parts)


def _figure(figure: Figure) -> str:
    return f"<h2>{escape(figure.title)}</h2>\n{figure_of(figure.svg, figure.caption)}"


def _presets(rows: Iterable[Row]) -> Iterator[str]:
    loops = [row for row in rows if row.scenario == "loop"]
    if not loops:
        return
    heads = ("preset", "a window", "frames/s", "for 1 s of video", "full steps", "near to quality", "memory")
    yield "<h2>Presets</h2>"
    yield table(heads, (_preset_cells(row) for row in loops))
    references = dict.fromkeys(row.quality.reference for row in loops if row.quality)
    note = "“Full steps”: what the loop costs in its own full, guided steps. "
    if references:
        note += f"“Near to quality”: the generated part of the faces against {', '.join(references)}. "
        note += "" if any(row.quality and row.quality.lpips is not None for row in loops) else "LPIPS: not measured."
    yield f'<p class="soft">{escape(note)}</p>'


def _preset_cells(row: Row) -> Cells:
    equivalents = row.facts.get("full_step_equivalents")
    return (
        f"{row.preset} on {row.provider}",
        words.milliseconds(row.time.median_ms),
        words.number(row.frames_per_s or 0.0),
        f"{words.number(row.facts['seconds_per_second_of_video'])} s",
        "" if equivalents is None else f"{equivalents:.2f}",
        words.quality(row.quality) or "reference",
        words.memory(row.memory),
    )


def _graphs(rows: Iterable[Row]) -> Iterator[str]:
    graphs = [row for row in rows if row.scenario == "graph"]
    if not graphs:
        return
    yield "<h2>Graphs</h2>"
    heads = ("graph", "median", "p5–p95 ms", "TFLOP", "TFLOP/s", "of matmul", "build s", "open s", "host GB", "GPU GB")
    on_gpu = any(row.memory is not None and row.memory.device_bytes is not None for row in graphs)
    columns = len(heads) - (not on_gpu)
    yield table(heads[:columns], (_graph_cells(row)[:columns] for row in graphs))
    yield '<p class="soft">“Of matmul”: share of what one large matrix product reached on the same provider. Building '
    yield "and opening happen before the first run and are no part of its time. Memory is the highest seen; the host's "
    yield "includes Python and all libraries.</p>"


def _graph_cells(row: Row) -> Cells:
    build_s, open_s = row.start_up_s.get("build"), row.start_up_s.get("open")
    found, used = row.arithmetic, row.memory
    return (
        f"{row.case} · {row.provider}",
        words.milliseconds(row.time.median_ms),
        words.spread(row.time),
        words.number(found.tflop) if found else words.NOT_MEASURED,
        words.number(found.tflop_per_s) if found else "",
        f"{found.ceiling_share:.0%}" if found and found.ceiling_share else "",
        "" if build_s is None else f"{build_s:.2f}",
        "" if open_s is None else f"{open_s:.2f}",
        words.gigabytes(used.host_bytes) if used else "",
        words.gigabytes(used.device_bytes) if used else "",
    )


def _pytorch(rows: Sequence[Row]) -> Iterator[str]:
    """The ratio to PyTorch, network by network, on the same kind of device."""
    baseline = {(row.case, row.provider): row for row in rows if row.scenario == "pytorch"}
    if not baseline:
        return
    lines = []
    for row in rows:
        device = "cpu" if row.provider == "cpu" else "cuda"
        found = [baseline.get((f"{row.case} {mode}", device)) for mode in ("eager", "compiled")]
        if row.scenario == "graph" and any(found):
            ours_ms = row.time.median_ms
            cells = [cell for other in found for cell in _ratio_cells(other, ours_ms)]
            lines.append((f"{row.case} · {row.provider}", words.milliseconds(ours_ms), *cells))
    yield "<h2>Against PyTorch</h2>"
    if lines:
        heads = ("network", "ours", "eager", "eager / ours", "torch.compile", "compiled / ours")
        yield table(heads, lines)
    notes = dict.fromkeys(note for row in baseline.values() for note in row.notes)
    yield f'<p class="soft">The same modules and inputs in one process. {escape("; ".join(notes))}.</p>'


def _ratio_cells(other: Row | None, ours_ms: float) -> tuple[str, str]:
    if other is None:
        return words.NOT_MEASURED, ""
    return words.milliseconds(other.time.median_ms), f"{other.time.median_ms / ours_ms:.2f}×"


def _everything(rows: Iterable[Row]) -> Iterator[str]:
    heads = ("what", "scenario", "median", "p5–p95 ms", "runs", "rate", "quality", "memory")
    cells = (
        (
            words.title(row),
            row.scenario,
            words.milliseconds(row.time.median_ms),
            words.spread(row.time),
            f"{row.time.runs} after {row.warm_up}",
            words.rate(row),
            words.quality(row.quality),
            words.memory(row.memory),
        )
        for row in rows
    )
    yield f"<details><summary>All rows</summary>{table(heads, cells)}</details>"


def _environment(results: Results) -> Iterator[str]:
    known = {**results.environment, "bundle": f"{results.bundle.name}, SHA-256 {results.bundle.sha256[:16]}…"}
    yield f"<h2>How and on what</h2><p>{_HOW}</p>"
    yield facts((name.replace("_", " "), value) for name, value in known.items())
    notes = dict.fromkeys(f"{words.title(row)}: {note}" for row in results.rows for note in row.notes)
    if notes:
        lines = (f"<tr><td>{escape(note)}</td></tr>" for note in notes)
        yield f'<details><summary>Notes</summary><table class="notes">{"".join(lines)}</table></details>'
