"""Rows as text: numbers with units, and tables in the terminal."""

import shutil
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from latentsync_trt.bench.rows import Memory, Results, Row, Spread

_WIDTH_OF_A_FILE = 200
_MOST_PARTS = 3


def number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable: 0.0123, 1.23, 12.3, 123, 1230."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def milliseconds(value_ms: float) -> str:
    """As ms below ten seconds, then as s."""
    return f"{number(value_ms)} ms" if value_ms < 10_000 else f"{number(value_ms / 1000)} s"


def spread(time: Spread) -> str:
    """The 5th to 95th percentile in ms."""
    return "one run" if time.runs == 1 else f"{number(time.p5_ms)}–{number(time.p95_ms)}"


def title(row: Row) -> str:
    """Case, preset and provider, as far as the row has them."""
    return " · ".join(part for part in (row.case, row.preset, row.provider) if part)


def memory(found: Memory | None) -> str:
    """Host and device, GB."""
    if found is None:
        return ""
    device = "" if found.device_bytes is None else f" + {found.device_bytes / 1e9:.2f} device"
    return f"{found.host_bytes / 1e9:.2f} GB host{device}"


def parts(row: Row) -> str:
    """The parts of a run that take longest; those of a clip overlap."""
    longest = sorted(row.parts_s.items(), key=lambda part: -part[1])[:_MOST_PARTS]
    return ", ".join(f"{name} {milliseconds(1000 * time_s)}" for name, time_s in longest)


def show_rows(results: Results) -> None:
    """Prints a line for each row to stdout, without empty columns."""
    heads = "what", "scenario", "median", "p5–p95 ms", "runs", "rate", "longest parts", "quality", "memory"
    lines = []
    for row in results.rows:
        time = row.time
        rate = "" if row.frames_per_s is None else f"{number(row.frames_per_s)} frames/s"
        cells = milliseconds(time.median_ms), spread(time), f"{time.runs} after {row.warm_up}", rate, parts(row)
        lines.append((title(row), row.scenario, *cells, str(row.quality or ""), memory(row.memory)))
    filled = [column for column in zip(heads, *lines, strict=True) if any(column[1:])]
    table = plain_table(*(head for head, *_ in filled))
    for line in zip(*(cells for _, *cells in filled), strict=True):
        table.add_row(*line)
    console().print(table)


def plain_table(*heads: str) -> Table:
    """A table without a frame: the first two columns aligned left, all others right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, head in enumerate(heads):
        table.add_column(head, overflow="fold", justify="left" if index < 2 else "right")
    return table


def console() -> Console:
    """A console on stdout; without markup, as it prints names from foreign files."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    return Console(markup=False, highlight=False, emoji=False, width=width)
