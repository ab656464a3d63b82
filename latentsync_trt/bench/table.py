"""Rows and comparisons as tables in the terminal."""

import shutil
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from latentsync_trt.bench import words
from latentsync_trt.bench.compare import Comparison, Pair
from latentsync_trt.bench.rows import Results

# Where the table goes to a file or a pipe, there is no screen that it must fit.
_WIDE = 200

_ARROWS = {"faster": "faster", "slower": "SLOWER", "within noise": "within noise"}


def show_rows(results: Results) -> None:
    """Prints a line for each row to stdout."""
    table = plain_table("scenario", "what", "median", "p5–p95 ms", "rate", "quality", "memory")
    for row in results.rows:
        table.add_row(
            row.scenario,
            words.title(row),
            words.milliseconds(row.time.median_ms),
            words.spread(row.time),
            words.rate(row),
            words.quality(row.quality),
            words.memory(row.memory),
        )
    _print(table)


def show_comparison(found: Comparison, before: str, after: str) -> None:
    """Prints what changed from `before` to `after`, names of files, to stdout."""
    screen = console()
    for name, first, second in found.differences:
        screen.print(f"differs: {name}: {first} → {second}")
    table = plain_table("scenario", "what", before, "p5–p95 ms", after, "p5–p95 ms", "change", "")
    for pair in found.pairs:
        table.add_row(*_cells(pair))
    screen.print(table if found.pairs else "no measurement is in both files")
    for name, rows in ((before, found.only_before), (after, found.only_after)):
        for row in rows:
            screen.print(f"only in {name}: {row.scenario} {words.title(row)}")


def _cells(pair: Pair) -> tuple[str, ...]:
    before, after = pair.before.time, pair.after.time
    return (
        pair.before.scenario,
        words.title(pair.before),
        words.milliseconds(before.median_ms),
        words.spread(before),
        words.milliseconds(after.median_ms),
        words.spread(after),
        f"{pair.ratio - 1:+.1%}",
        _ARROWS[pair.change] if min(before.runs, after.runs) > 1 else "one run: noise unknown",
    )


def plain_table(*heads: str) -> Table:
    """A table without a frame: the first two columns begin at the left, all others end at the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, head in enumerate(heads):
        table.add_column(head, overflow="fold", justify="left" if index < 2 else "right")
    return table


def _print(table: Table) -> None:
    console().print(table)


def console() -> Console:
    """Where tables go: stdout, as wide as it is."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDE
    # Names come from files of others: no markup in them.
    return Console(markup=False, highlight=False, emoji=False, width=width)
