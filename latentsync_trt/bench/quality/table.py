"""A comparison as a table in the terminal."""

from collections.abc import Iterable

from rich.table import Table

from latentsync_trt.bench.quality import wording
from latentsync_trt.bench.quality.results import Comparison
from latentsync_trt.bench.table import console, plain_table

_LABEL_WIDTH = 44
"""Of the first column, at most; names of clips that are longer go on in the next line. With what the others hold, a
table is then less than 100 wide."""


def show_comparison(found: Comparison) -> None:
    """Prints all numbers, but those of single steps and layers, to stdout."""
    screen = console()
    screen.print(f"A: {wording.title(found.a)}")
    screen.print(f"B: {wording.title(found.b)}")
    screen.print(found.settings)
    table = plain_table(*wording.HEADS)
    label, side_a, *_ = table.columns
    label.max_width, side_a.justify = _LABEL_WIDTH, "right"
    for line in wording.sides(found):
        table.add_row(*line)
    for clip in found.clips:
        _add_section(table, f"{clip.name}, {clip.frames} frames", wording.clip(clip))
    if len(found.clips) > 1:
        _add_section(table, "all clips", wording.together(found))
    _add_section(table, "the first window", wording.network(found))
    screen.print(table)
    # A layer's name is as long as the rest of a line.
    if (layer := wording.worst_layer(found.layers)) is not None:
        screen.print(f"worst layer: {layer}", soft_wrap=True)


def _add_section(table: Table, title: str, lines: Iterable[wording.Line]) -> None:
    """Nothing where there are no lines."""
    for index, line in enumerate(lines):
        if not index:
            table.add_section()
            table.add_row(title)
        table.add_row(*line)
