"""Which plots the report has, and what of the rows goes into them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from latentsync_trt.bench import words
from latentsync_trt.bench.plots import Bar, Point, Rule, Strip, scatter, stacked_bars, strips
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.timed import DECODE, ENCODE
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
    """The plots for which there are rows; one drawing a provider, as their times differ by orders of magnitude."""
    loops = _by_provider(row for row in rows if row.scenario == "loop")
    clips = _by_provider(row for row in rows if row.scenario == "end-to-end")
    stages = [row for row in rows if row.scenario == "stage" and row.frames_per_s]
    if loops:
        yield _window(loops)
        if all(row.steps for rows in loops for row in rows):
            yield _steps(loops)
        yield _speed_and_quality(loops)
    if clips:
        yield _clips(clips)
    if stages:
        yield _stages(stages)


def _by_provider(rows: Iterable[Row]) -> list[list[Row]]:
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.provider, []).append(row)
    return list(groups.values())


def _window(loops: Sequence[Sequence[Row]]) -> Figure:
    drawings = [
        stacked_bars(
            [
                Bar(_name(row), segments, words.milliseconds(row.time.median_ms), row.time.median_ms)
                for row, segments in zip(rows, _window_segments(rows), strict=True)
            ],
            "ms",
            "Time of one window by part, for each preset",
            mark="median of the whole",
        )
        for rows in loops
    ]
    first = loops[0][0]
    video_s = words.number(first.frames / MODEL_FPS)
    caption = (
        f"{first.case.capitalize()}, {first.frames} frames, {video_s} s of video: the VAE encodes each face twice, all "
        "steps run, the VAE decodes. “Other” is what lies between, such as copies to and from the device."
    )
    return Figure("A window by part", "".join(drawings), caption)


def _window_segments(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, float], ...]]:
    """Milliseconds by part for each row, the same parts in the same order; the loop is split into kinds of steps."""
    kinds = dict.fromkeys(words.step_kind(kind) for row in rows for kind in row.steps)
    for row in rows:
        steps_ms = {words.step_kind(kind): kind.in_a_run * fmean(kind.times_ms) for kind in row.steps}
        parts_ms = [
            (ENCODE, 1000 * row.parts_s.get(ENCODE, 0.0)),
            *((f"{kind} steps", steps_ms.get(kind, 0.0)) for kind in kinds),
            (DECODE, 1000 * row.parts_s.get(DECODE, 0.0)),
        ]
        other_ms = row.time.median_ms - sum(value for _, value in parts_ms)
        yield (*parts_ms, ("other", max(other_ms, 0.0)))


def _steps(loops: Sequence[Sequence[Row]]) -> Figure:
    drawings = [
        strips(
            [
                Strip(f"{_name(row)}, {words.step_kind(kind)}", kind.times_ms, words.step_kind(kind))
                for row in rows
                for kind in row.steps
            ],
            "ms a step",
            "Times of single denoising steps",
        )
        for rows in loops
    ]
    caption = (
        "Every timed step of every run: a dot. The tick is the median, the band holds nine of ten; dots far to its "
        "right are what a median hides."
    )
    return Figure("Single steps", "".join(drawings), caption)


def _speed_and_quality(loops: Sequence[Sequence[Row]]) -> Figure:
    drawings = [
        scatter(
            [_point(row) for row in rows], "frames/s", "PSNR, dB", "Speed against quality of the presets", [_REAL_TIME]
        )
        for rows in loops
    ]
    caption = (
        "Up and to the right is better. PSNR of the generated part of the faces to the reference: how much a preset "
        "changes the picture, not whether the change is worse."
    )
    return Figure("Speed against quality", "".join(drawings), caption)


def _point(row: Row) -> Point:
    found = row.quality
    label = _name(row) if found is None else f"{_name(row)}, SSIM {found.ssim:.3f}"
    return Point(label, row.frames_per_s or 0.0, None if found is None else found.psnr_db)


def _clips(clips: Sequence[Sequence[Row]]) -> Figure:
    drawings = [
        stacked_bars(
            [
                Bar(
                    _name(row),
                    tuple(row.parts_s.items()),
                    f"{words.number(row.time.median_ms / 1000)} s, paint {row.facts['paint_busy_share']:.0%}",
                    row.time.median_ms / 1000,
                )
                for row in rows
            ],
            "s",
            "Busy time of each stage of whole clips",
            mark="wall time",
        )
        for rows in clips
    ]
    first = clips[0][0]
    start_up = "; ".join(
        f"{_name(row)} {words.number(sum(row.start_up_s.values()))} s" for rows in clips for row in rows
    )
    caption = (
        f"{first.case}, {first.frames} frames. Stages overlap, so that a bar may reach beyond its wall time; the "
        f"percentage is the share of it in which painting was busy. Start-up, not in the bars: {start_up}."
    )
    return Figure("A clip by stage", "".join(drawings), caption)


def _stages(stages: Sequence[Row]) -> Figure:
    # Hearing is a hundred times faster than the rest, and would press all other bars against the axis.
    drawn = [row for row in stages if row.case != "encode audio"] or list(stages)
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
