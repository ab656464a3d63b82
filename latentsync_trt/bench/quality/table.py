"""A comparison as a table in the terminal."""

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
        table.add_section()
        table.add_row(f"{clip.name}, {clip.frames} frames")
        for line in wording.clip(clip):
            table.add_row(*line)
    table.add_section()
    for line in wording.network(found):
        table.add_row(*line)
    screen.print(table)
