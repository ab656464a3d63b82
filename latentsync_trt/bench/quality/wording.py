"""A comparison in lines of text, the same in the terminal and in the report. Pure."""

import math
from collections.abc import Iterator

from latentsync_trt.bench.clip_sync import SyncScore
from latentsync_trt.bench.quality.results import (
    AreaLikeness,
    ClipQuality,
    Comparison,
    LayerNoise,
    Lips,
    MeanScore,
    Side,
    StepNoise,
)
from latentsync_trt.bench.words import number

HEADS = ("", "A", "B", "B against A")
EQUAL = "equal"

_AREAS = {"face": "whole face", "generated": "generated part", "mouth": "mouth"}
_NONE = "–"

Line = tuple[str, str, str, str]


def decibels(value: float | None) -> str:
    """None: there is no difference; NaN: not measured."""
    if value is None:
        return EQUAL
    return _NONE if math.isnan(value) else f"{value:.1f} dB"


def sides(found: Comparison) -> Iterator[Line]:
    """What the two are; nothing for finished videos."""
    a, b = found.a, found.b
    if a.precision is None or b.precision is None or a.size_bytes is None or b.size_bytes is None:
        return
    yield "precision", a.precision, b.precision, ""
    yield "size", _megabytes(a.size_bytes), _megabytes(b.size_bytes), f"{b.size_bytes / a.size_bytes:.2f}×"


def clip(found: ClipQuality) -> Iterator[Line]:
    """Pictures, lips and flicker of a clip."""
    yield from _pictures(found.areas)
    yield from _scores(found.lips.a, found.lips.b, "the spoken mouth" if found.lips.a.known else "loudness")
    yield from _lips(found.lips)
    flicker = found.flicker
    source = f"flicker, levels (source {_levels(flicker.source)})"
    yield source, _levels(flicker.a), _levels(flicker.b), f"{_levels(flicker.difference)} in the difference"


def together(found: Comparison) -> Iterator[Line]:
    """Pictures of several clips as one, and the means of how lips follow; nothing where there is one clip."""
    if len(found.clips) > 1:
        yield from _pictures(found.areas)
        yield from _scores(*found.mean_scores, "the speech")


def network(found: Comparison) -> Iterator[Line]:
    """Steps and layers, as far as they were measured."""
    if found.steps:
        worst = worst_step(found.steps)
        if worst is not None:
            yield "worst step by itself", "", "", f"{decibels(worst.alone_db)} (step {worst.step})"
        yield "latents after the last step", "", "", decibels(found.steps[-1].so_far_db)
    if found.layers:
        yield "worst layer", "", "", decibels(by_noise(found.layers)[0].worst_db)


def worst_step(steps: tuple[StepNoise, ...]) -> StepNoise | None:
    """The one that adds most by itself; None where none was measured."""
    known = [step for step in steps if step.alone_db is None or not math.isnan(step.alone_db)]
    return min(known, key=lambda step: _order(step.alone_db), default=None)


def worst_layer(layers: tuple[LayerNoise, ...]) -> str | None:
    """The name of the noisiest; None where all are equal, or none was measured."""
    worst = next(iter(by_noise(layers)), None)
    return None if worst is None or worst.worst_db is None else worst.layer


def by_noise(layers: tuple[LayerNoise, ...]) -> list[LayerNoise]:
    """The noisiest first."""
    return sorted(layers, key=lambda layer: _order(layer.worst_db))


def title(side: Side) -> str:
    """A side's name and precision."""
    return side.name if side.precision is None else f"{side.name} ({side.precision})"


def _pictures(areas: tuple[AreaLikeness, ...]) -> Iterator[Line]:
    for area in areas:
        yield _AREAS[area.area], "", "", f"{decibels(area.psnr_db)}, SSIM {area.ssim:.4f}"


def _scores(a: SyncScore | MeanScore, b: SyncScore | MeanScore, what: str) -> Iterator[Line]:
    yield f"opening follows {what}, r", f"{a.opening:.3f}", f"{b.opening:.3f}", f"{b.opening - a.opening:+.3f}"
    yield "frames late", f"{a.lag_frames:.3g}", f"{b.lag_frames:.3g}", f"{b.lag_frames - a.lag_frames:+.3g}"
    if not math.isnan(a.closures):
        yield "m, b, p shown shut", *_shares(a.closures, b.closures)
    if not (math.isnan(a.silence) or math.isnan(b.silence)):
        yield "shut in silence", *_shares(a.silence, b.silence)


def _lips(found: Lips) -> Iterator[Line]:
    yield "lips move by", f"{found.moved_a:.4f}", f"{found.moved_b:.4f}", f"{_ratio(found):.2f}×"
    yield "lips of B follow A's, r", "", "", f"{found.alike:.3f}, {found.apart:.4f} apart"
    if found.unseen_a or found.unseen_b:
        yield "frames without a face", f"{found.unseen_a}", f"{found.unseen_b}", ""


def _ratio(lips: Lips) -> float:
    return lips.moved_b / lips.moved_a if lips.moved_a else math.nan


def _shares(a: float, b: float) -> tuple[str, str, str]:
    return f"{a:.0%}", f"{b:.0%}", f"{100 * (b - a):+.0f} points"


def _levels(value: float | None) -> str:
    return _NONE if value is None else number(value)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _order(value: float | None) -> float:
    return math.inf if value is None else value
