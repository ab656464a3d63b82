"""A comparison as a table in the terminal."""

from collections.abc import Iterable

from rich.table import Table

from latentsync_trt.bench.quality import wording
from latentsync_trt.bench.quality.results import Comparison
from latentsync_trt.bench.table import console, plain_table


def show_comparison(found: Comparison) -> None:
    """Prints all numbers, but those of single steps and layers, to stdout."""
    screen = console()
    screen.print(f"A: {wording.title(found.a)}")
    screen.print(f"B: {wording.title(found.b)}")
    screen.print(found.settings)
    table = plain_table(*wording.HEADS)
    for line in wording.sides(found):
        table.add_row(*line)
    for clip in found.clips:
        _add_section(table, f"{clip.name}, {clip.frames} frames", wording.clip(clip))
    if len(found.clips) > 1:
        _add_section(table, "all clips", wording.together(found))
    _add_section(table, "the first window", wording.network(found))
    screen.print(table)


def _add_section(table: Table, title: str, lines: Iterable[wording.Line]) -> None:
    """Nothing where there are no lines."""
    for index, line in enumerate(lines):
        if not index:
            table.add_section()
            table.add_row(title)
        table.add_row(*line)
