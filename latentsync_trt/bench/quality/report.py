"""A comparison as a table in the terminal and as one HTML file."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cv2
import numpy as np

from latentsync_trt.bench.clip_figures import sync_figure
from latentsync_trt.bench.html import png_url, svg, write_html
from latentsync_trt.bench.pictures import Likeness
from latentsync_trt.bench.quality.clip import GAIN
from latentsync_trt.bench.quality.results import Area, ClipQuality, Comparison, Lips
from latentsync_trt.bench.sync_measure import SyncScore
from latentsync_trt.bench.table import console, number, plain_table

HEADS = ("", "A", "B", "B against A")

_AREAS: Mapping[Area, str] = {"generated": "generated part", "mouth": "mouth"}

_LABEL_WIDTH = 40
"""Of the first column, at most, so that a table is less than 100 wide; longer names of clips are wrapped."""

Line = tuple[str, str, str, str]


def show_comparison(found: Comparison) -> None:
    """Prints the numbers to stdout."""
    screen = console()
    screen.print(f"A: {found.a.title}\nB: {found.b.title}\n{found.settings}")
    table = plain_table(*HEADS)
    label, side_a, *_ = table.columns
    label.max_width, side_a.justify = _LABEL_WIDTH, "right"
    for line in side_lines(found):
        table.add_row(*line)
    sections = [(f"{clip.name}, {clip.frames} frames", clip_lines(clip)) for clip in found.clips]
    for title, lines in [*sections, ("all clips", total_lines(found))]:
        for index, line in enumerate(lines):
            if not index:
                table.add_section()
                table.add_row(title)
            table.add_row(*line)
    screen.print(table)


def write_report(found: Comparison, path: Path) -> None:
    """Writes the page beside the pictures; raises `OutputError` if that cannot be done."""
    hashes = {
        f"SHA-256 of {letter}": f"{side.sha256[:16]}…"
        for letter, side in (("A", found.a), ("B", found.b))
        if side.sha256
    }
    write_html(
        "compare.html.j2",
        path,
        title=f"{found.b.title} against {found.a.title}",
        found=found,
        heads=HEADS,
        summary=[*side_lines(found), *total_lines(found)],
        clips=[_clip_content(clip, path.parent) for clip in found.clips],
        gain=GAIN,
        facts=[(name.replace("_", " "), value) for name, value in {**found.environment, **hashes}.items()],
    )


def _clip_content(clip: ClipQuality, folder: Path) -> dict[str, Any]:
    picture = np.asarray(cv2.imread(str(folder / clip.picture)), np.uint8)[..., ::-1]
    return {
        "clip": clip,
        "lines": list(clip_lines(clip)),
        "picture": png_url(picture),
        "video": quote(clip.video),
        "lips": svg(sync_figure({"A": clip.a, "B": clip.b})),
    }


def side_lines(found: Comparison) -> Iterator[Line]:
    """What the two are; nothing for finished videos."""
    a, b = found.a, found.b
    if a.size_bytes is not None and b.size_bytes is not None:
        yield "precision", f"{a.precision}", f"{b.precision}", ""
        yield "resolution", f"{a.resolution_px} px", f"{b.resolution_px} px", ""
        ratio = f"{b.size_bytes / a.size_bytes:.2f}×"
        yield "size", f"{a.size_bytes / 1e6:.1f} MB", f"{b.size_bytes / 1e6:.1f} MB", ratio


def clip_lines(clip: ClipQuality) -> Iterator[Line]:
    """Pictures, lips and flicker of a clip."""
    yield from _picture_lines(clip.areas)
    yield from _score_lines(clip.lips.a, clip.lips.b)
    yield from _lip_lines(clip.lips)
    flicker = clip.flicker
    shown = (_levels(value) for value in (flicker.source, flicker.a, flicker.b, flicker.difference))
    source, a, b, difference = shown
    yield f"flicker, levels (source {source})", a, b, f"{difference} in the difference"


def total_lines(found: Comparison) -> Iterator[Line]:
    """Pictures of several clips as one, and the means of how lips follow; nothing where there is one clip."""
    if len(found.clips) > 1:
        yield from _picture_lines(found.areas)
        yield from _score_lines(*found.mean_scores)


def _picture_lines(areas: Mapping[Area, Likeness]) -> Iterable[Line]:
    for area, found in areas.items():
        psnr = "equal" if math.isinf(found.psnr_db) else f"{found.psnr_db:.1f} dB"
        lpips = "" if found.lpips is None else f", LPIPS {found.lpips:.3f}"
        yield _AREAS[area], "", "", f"{psnr}, SSIM {found.ssim:.4f}{lpips}"


def _score_lines(a: SyncScore, b: SyncScore) -> Iterator[Line]:
    target = "the spoken mouth" if a.known else "loudness"
    yield f"opening follows {target}, r", f"{a.opening:.3f}", f"{b.opening:.3f}", f"{b.opening - a.opening:+.3f}"
    yield "frames late", f"{a.lag_frames:.3g}", f"{b.lag_frames:.3g}", f"{b.lag_frames - a.lag_frames:+.3g}"
    shares = (("m, b, p shown shut", a.closures, b.closures), ("shut in silence", a.silence, b.silence))
    for name, ours, theirs in shares:
        if not (math.isnan(ours) or math.isnan(theirs)):
            yield name, f"{ours:.0%}", f"{theirs:.0%}", f"{100 * (theirs - ours):+.0f} points"


def _lip_lines(found: Lips) -> Iterator[Line]:
    ratio = f"{found.moved_b / found.moved_a:.2f}×" if found.moved_a else "–"
    yield "lips move by", f"{found.moved_a:.4f}", f"{found.moved_b:.4f}", ratio
    yield "lips of B follow A's, r", "", "", f"{found.alike:.3f}, {found.apart:.4f} apart"
    if found.missing_a or found.missing_b:
        yield "frames without a face", f"{found.missing_a}", f"{found.missing_b}", ""


def _levels(value: float | None) -> str:
    return "–" if value is None else number(value)
