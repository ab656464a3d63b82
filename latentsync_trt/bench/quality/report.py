"""A comparison as one HTML file; only the videos lie beside it."""

import math
from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from urllib.parse import quote

from latentsync_trt.bench.page import facts, figure_of, page, table, write_page
from latentsync_trt.bench.quality import wording
from latentsync_trt.bench.quality.plots import STYLE, Frame, Series, curves
from latentsync_trt.bench.quality.results import ClipQuality, Comparison
from latentsync_trt.bench.quality.side_by_side import GAIN
from latentsync_trt.config import MODEL_FPS

_WORST_LAYERS = 20

_HOW = (
    "Both sides dub the same clips from the same noise. PSNR and SSIM are of the faces as the networks give them out, "
    "before they are put into the video: the whole face, the part that reaches the video, and the mouth. The lips are "
    "measured in the finished frames by FaceMesh. Flicker is the second difference over time on the mouth, as the "
    "standard deviation of noise, in levels of 255, that would cause it; movement counts a little, too, so that only "
    "what the two differ by means something."
)


def write_report(found: Comparison, path: Path) -> None:
    """Writes the page beside its pictures; raises `OutputError` if that cannot be done."""
    write_page(report(found, path.parent), path)


def report(found: Comparison, folder: Path) -> str:
    """The page; pictures are read from `folder`, as `Comparison` names them."""
    a, b = wording.title(found.a), wording.title(found.b)
    parts = [
        f"<h1>{escape(b)} against {escape(a)}</h1>",
        f'<p class="soft">{escape(found.settings)} · '
        f"{escape(found.environment.get('measured_at', '')[:16].replace('T', ' '))} UTC</p>",
        *_summary(found),
        *(part for clip in found.clips for part in _clip(clip, folder)),
        *_steps(found),
        *_layers(found),
        *_how(found),
    ]
    return page(f"compare: {b} against {a}", parts, STYLE)


def _summary(found: Comparison) -> Iterator[str]:
    lines = [*wording.sides(found), *wording.together(found), *wording.network(found)]
    if lines:
        yield table(wording.HEADS, lines)


def _clip(clip: ClipQuality, folder: Path) -> Iterator[str]:
    yield f"<h2>{escape(clip.name)}</h2>"
    yield f'<p class="soft">{clip.frames} frames, a face in {clip.frames_with_face}</p>'
    yield table(wording.HEADS, wording.clip(clip))
    yield figure_of(
        f'<img alt="moments of {escape(clip.name)}" src="data:image/png;base64,{_encoded(folder / clip.picture)}"/>',
        f"Moments of the clip. The difference is enlarged {GAIN} times.",
    )
    yield figure_of(
        f'<video controls preload="none" src="{escape(quote(clip.video))}"></video>',
        f"{clip.video}, beside this report: the same with sound.",
    )
    yield figure_of(_lip_plot(clip), _lip_caption(clip))


def _encoded(path: Path) -> str:
    return b64encode(path.read_bytes()).decode("ascii")


def _lip_plot(clip: ClipQuality) -> str:
    found = clip.curves
    series = [Series("A", _known(found.a)), Series("B", _known(found.b))]
    if found.wanted is not None:
        series.append(Series("asked for", _known(_fitted(found.wanted, found.a))))
    frame = Frame("s", "gap", 1 / MODEL_FPS, "The gap between the lips of both over time")
    return curves(series, frame, found.silent, from_zero=True)


def _lip_caption(clip: ClipQuality) -> str:
    asked = "" if clip.curves.wanted is None else " “Asked for” is the spoken mouth, as wide as A's at its widest."
    return (
        "The gap between the lips over time, in distances between the outer corners of the eyes; shaded where nothing "
        f"is said.{asked}"
    )


def _fitted(wanted: Iterable[float], gaps: Iterable[float]) -> list[float]:
    opening = list(wanted)
    widest = max((gap for gap in gaps if not math.isnan(gap)), default=0.0)
    return [value * widest / (max(opening) or 1.0) for value in opening]


def _known(values: Iterable[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None or not math.isfinite(value) else value for value in values)


def _steps(found: Comparison) -> Iterator[str]:
    if not found.steps:
        return
    yield "<h2>Noise by step</h2>"
    series = [
        Series("latents so far", _known(step.so_far_db for step in found.steps)),
        Series("this step by itself", _known(step.alone_db for step in found.steps), joined=False),
    ]
    frame = Frame("step", "dB", 1.0, "Ratio of signal to difference after each denoising step")
    caption = (
        "The first window. The line: A's latents over what B's differ from them, each in its own loop. Dots: the "
        "update of a full step over what B's differs from it, both from A's latents; cached steps have none. What is "
        "equal is not drawn."
    )
    yield figure_of(curves(series, frame), caption)


def _layers(found: Comparison) -> Iterator[str]:
    if not found.layers:
        return
    yield "<h2>Noise by layer</h2>"
    tips = tuple(f"{layer.layer}: {wording.decibels(layer.worst_db)}" for layer in found.layers)
    kinds = dict.fromkeys(layer.kind for layer in found.layers)
    series = [
        Series(kind, _known(layer.worst_db if layer.kind == kind else None for layer in found.layers), False, tips)
        for kind in kinds
    ]
    frame = Frame("layer, as they run", "dB", 1.0, "Ratio of signal to difference of each layer's output")
    caption = (
        "Outputs of convolutions and linear layers in A over what B's differ from them, in single full steps from the "
        "same inputs; the worst of the steps. Noise of earlier layers comes with it. What is equal is not drawn."
    )
    yield figure_of(curves(series, frame), caption)
    worst = wording.by_noise(found.layers)[:_WORST_LAYERS]
    heads = ("the noisiest layers", "kind", "worst step", "middle step")
    yield table(heads, ((x.layer, x.kind, wording.decibels(x.worst_db), wording.decibels(x.median_db)) for x in worst))


def _how(found: Comparison) -> Iterator[str]:
    hashes = {
        f"{letter}: {side.name}": f"SHA-256 {side.sha256[:16]}…"
        for letter, side in (("A", found.a), ("B", found.b))
        if side.sha256
    }
    yield f"<h2>How and on what</h2><p>{_HOW}</p>"
    yield facts((name.replace("_", " "), value) for name, value in {**found.environment, **hashes}.items())
    if found.notes:
        lines = (f"<tr><td>{escape(note)}</td></tr>" for note in found.notes)
        yield f'<details open=""><summary>Notes</summary><table class="notes">{"".join(lines)}</table></details>'
