"""Which plots the report has, and what of the rows goes into them. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from latentsync_trt.bench import words
from latentsync_trt.bench.plots import Bar, Point, Rule, Strip, scatter, stacked_bars, strips
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.timed import DECODE, ENCODE, LOOP
from latentsync_trt.config import MODEL_FPS

_GOAL = Rule(60, "60/s")
"""What the stages off the GPU are to keep up with."""

_REAL_TIME = Rule(MODEL_FPS, f"real time, {MODEL_FPS}/s")


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot with its heading and what it shows."""

    title: str
    svg: str
    caption: str


def all_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    """The plots for which there are rows."""
    loops = [row for row in rows if row.scenario == "loop"]
    clips = [row for row in rows if row.scenario == "end-to-end"]
    stages = [row for row in rows if row.scenario == "stage" and row.frames_per_s]
    if loops:
        yield _window(loops)
        if any(row.steps for row in loops):
            yield _steps(loops)
    if len(loops) > 1:
        yield _speed_and_quality(loops)
    if clips:
        yield _clips(clips)
    if stages:
        yield _stages(stages)


def _window(loops: Sequence[Row]) -> Figure:
    bars = [
        Bar(_name(row), _window_segments(row), f"{words.milliseconds(row.time.median_ms)}", row.time.median_ms)
        for row in loops
    ]
    svg = stacked_bars(bars, "ms", "Time of one window by part, for each preset", mark="median of the whole")
    caption = (
        f"One window of {loops[0].frames} frames, {words.number(loops[0].frames / MODEL_FPS)} s of video: the VAE "
        "encodes each face twice, all steps run, the VAE decodes. Parts are medians of their own."
    )
    return Figure("A window by part", svg, caption)


def _window_segments(row: Row) -> tuple[tuple[str, float], ...]:
    """Milliseconds by part; the loop is split into its steps."""
    parts_ms = {name: 1000 * value for name, value in row.parts_s.items()}
    steps_ms = {f"{words.step_kind(kind)} steps": kind.in_a_run * median(kind.times_ms) for kind in row.steps}
    between_ms = max(parts_ms.get(LOOP, 0.0) - sum(steps_ms.values()), 0.0)
    return (
        (ENCODE, parts_ms.get(ENCODE, 0.0)),
        *steps_ms.items(),
        (DECODE, parts_ms.get(DECODE, 0.0)),
        ("other", parts_ms.get("rest", 0.0) + between_ms),
    )


def _steps(loops: Sequence[Row]) -> Figure:
    found = [
        Strip(f"{_name(row)}, {words.step_kind(kind)}", kind.times_ms, words.step_kind(kind))
        for row in loops
        for kind in row.steps
    ]
    svg = strips(found, "ms a step", "Times of single denoising steps")
    caption = (
        "Every timed step of every run: a dot. The tick is the median, the band holds nine of ten; dots far to its "
        "right are what a median hides."
    )
    return Figure("Single steps", svg, caption)


def _speed_and_quality(loops: Sequence[Row]) -> Figure:
    points = [
        Point(
            _name(row) + ("" if row.quality is None else f", SSIM {row.quality.ssim:.3f}"),
            row.frames_per_s or 0.0,
            None if row.quality is None else row.quality.psnr_db,
            row.provider or "",
        )
        for row in loops
    ]
    svg = scatter(points, "frames/s", "PSNR, dB", "Speed against quality of the presets", [_REAL_TIME])
    caption = (
        "Up and to the right is better. PSNR of the generated part of the faces to the reference: how much a preset "
        "changes the picture, not whether the change is worse."
    )
    return Figure("Speed against quality", svg, caption)


def _clips(clips: Sequence[Row]) -> Figure:
    bars = [
        Bar(
            _name(row),
            tuple(row.parts_s.items()),
            f"{words.number(row.time.median_ms / 1000)} s, paint {row.facts['paint_busy_share']:.0%}",
            row.time.median_ms / 1000,
        )
        for row in clips
    ]
    svg = stacked_bars(bars, "s", "Busy time of each stage of whole clips", mark="wall time")
    start_up = "; ".join(f"{_name(row)} {words.number(sum(row.start_up_s.values()))} s" for row in clips)
    caption = (
        f"{clips[0].case}, {clips[0].frames} frames. Stages overlap, so that a bar may reach beyond its wall time; the "
        f"percentage is the share of it in which painting was busy. Start-up, not in the bars: {start_up}."
    )
    return Figure("A clip by stage", svg, caption)


def _stages(stages: Sequence[Row]) -> Figure:
    # Hearing is a hundred times faster than the rest, and would press all other bars against the axis.
    drawn = [row for row in stages if row.case != "hear"] or list(stages)
    bars = [
        Bar(words.title(row), (("frames/s", row.frames_per_s or 0.0),), f"{words.number(row.frames_per_s or 0.0)}/s")
        for row in drawn
    ]
    svg = stacked_bars(bars, "frames/s", "Frames per second of each stage by itself", [_REAL_TIME, _GOAL])
    notes = dict.fromkeys(note for row in stages for note in row.notes)
    left_out = [f"{words.title(row)} {words.number(row.frames_per_s or 0.0)}/s" for row in stages if row not in drawn]
    caption = f"Each stage with the machine to itself: {'; '.join((*notes, *left_out))}."
    return Figure("Stages by themselves", svg, caption)


def _name(row: Row) -> str:
    return f"{row.preset} · {row.provider}"
