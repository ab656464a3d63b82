"""A comparison as a table in the terminal and as one HTML file."""

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from latentsync_trt.bench.compare.clip import GAIN, ClipResults, Lips
from latentsync_trt.bench.compare.run import Comparison
from latentsync_trt.bench.table import console, likeness, number, plain_table
from latentsync_trt.sync.html import svg, write_html
from latentsync_trt.sync.lip_figure import sync_figure

HEADS = ("", "A", "B", "B against A")

Line = tuple[str, str, str, str]


def show_comparison(found: Comparison) -> None:
    """Prints the numbers to stdout."""
    screen = console()
    screen.print(
        f"A: {found.a.title}\nB: {found.b.title}\n{found.settings}\n{found.clip.name}, {found.clip.frames} frames"
    )
    table = plain_table(*HEADS)
    table.columns[1].justify = "right"
    for line in lines_of(found):
        table.add_row(*line)
    screen.print(table)


def write_report(found: Comparison, path: Path) -> None:
    """Writes the page beside the pictures; raises `OutputError` if that cannot be done."""
    hashes = {f"SHA-256 of {letter}": side.sha256 for letter, side in (("A", found.a), ("B", found.b)) if side.sha256}
    picture = path.with_name(found.clip.picture).read_bytes()
    write_html(
        "compare.html.j2",
        path,
        title=f"{found.b.title} against {found.a.title}",
        found=found,
        heads=HEADS,
        lines=list(lines_of(found)),
        picture=f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}",
        video=quote(found.clip.video),
        lips=svg(sync_figure({"A": found.clip.a, "B": found.clip.b})),
        gain=GAIN,
        facts=[(name.replace("_", " "), value) for name, value in {**found.environment, **hashes}.items()],
    )


def lines_of(found: Comparison) -> Iterator[Line]:
    """What the two are (nothing for finished videos), then pictures, lips and flicker."""
    a, b = found.a, found.b
    if a.size_bytes is not None and b.size_bytes is not None:
        yield "precision", f"{a.precision}", f"{b.precision}", ""
        yield "resolution", f"{a.resolution_px} px", f"{b.resolution_px} px", ""
        ratio = f"{b.size_bytes / a.size_bytes:.2f}×"
        yield "size", f"{a.size_bytes / 1e6:.1f} MB", f"{b.size_bytes / 1e6:.1f} MB", ratio
    yield from clip_lines(found.clip)


def clip_lines(clip: ClipResults) -> Iterator[Line]:
    """Pictures, lips and flicker."""
    yield "generated part", "", "", likeness(clip.areas["generated"])
    yield "mouth", "", "", likeness(clip.areas["mouth"])
    yield from _lip_lines(clip.lips)
    source, a, b, difference = ("–" if value is None else number(value) for value in clip.flicker.values())
    yield f"flicker, levels (source {source})", a, b, f"{difference} in the difference"


def _lip_lines(found: Lips) -> Iterator[Line]:
    a, b = found.a, found.b
    target = "the spoken mouth" if a.known else "loudness"
    yield f"opening follows {target}, r", f"{a.opening:.3f}", f"{b.opening:.3f}", f"{b.opening - a.opening:+.3f}"
    yield "frames late", f"{a.lag_frames}", f"{b.lag_frames}", f"{b.lag_frames - a.lag_frames:+}"
    shares = (("m, b, p shown shut", a.closures, b.closures), ("shut in silence", a.silence, b.silence))
    for name, ours, theirs in shares:
        if not (math.isnan(ours) or math.isnan(theirs)):
            yield name, f"{ours:.0%}", f"{theirs:.0%}", f"{100 * (theirs - ours):+.0f} points"
    ratio = f"{found.moved_b / found.moved_a:.2f}×" if found.moved_a else "–"
    yield "lips move by", f"{found.moved_a:.4f}", f"{found.moved_b:.4f}", ratio
    yield "lips of B follow A's, r", "", "", f"{found.alike:.3f}, {found.apart:.4f} apart"
    if found.missing_a or found.missing_b:
        yield "frames without a face", f"{found.missing_a}", f"{found.missing_b}", ""
