"""What commands print besides their results: progress where there is no terminal, and the summary
of a run.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from rich import progress as bars

from latentsync_trt.cli.show import (
    TimeLeft,
    new_notices,
    progress_lines,
    show_progress,
    show_report,
)
from latentsync_trt.measures import Interval, LipMeasure, Measures
from latentsync_trt.types import Progress, StageTime, SyncReport

TIMES = {
    "duration_s": 20.0,
    "wall_s": 32.0,
    "startup_s": 7.0,
    "frames_per_s": 20.0,
    "finish_s": 1.0,
}
REPORT = SyncReport(
    "out.mp4", "1.6-512-fp16", "cuda", frames=500, frames_with_face=480, windows=30, **TIMES,
    stages=(StageTime("paint", 24.0, 480),), engines=(), notices=(),
)  # fmt: skip
LIPS = LipMeasure(
    0, 480, "follows", agreement=0.612, distinct=3.84, late_ms=None, shut_in_silence=0.97
)


def printed(
    capsys: pytest.CaptureFixture[str], measures: Measures, *, verbose: bool = False
) -> list[str]:
    show_report(
        replace(REPORT, quality=measures), new_notices(), Path("page.html"), verbose=verbose
    )
    return capsys.readouterr().out.splitlines()


def test_the_summary_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    measures = Measures((LIPS,), color=0.3, sharpness=0.87)
    lines = [
        "out.mp4: 500 frames (20.00 s), face in 480, with 1.6-512-fp16 on cuda",
        "time: 32.0 s = 7.0 s start-up + 24.0 s at 20.0 frames/s + 1.0 s end",
    ]
    assert printed(capsys, measures) == [*lines, "page.html: report", "lips follow the speech"]
    verbose = printed(capsys, measures, verbose=True)
    assert [*verbose[:4], verbose[-1]] == [
        *lines,
        "busy: paint 24.0 s",
        "page.html: report",
        "lips follow the speech",
    ]
    for line, figures in (
        (verbose[4], ("0.61", "3.8 deviations", "97%")),
        (verbose[5], ("color 0.3", "sharpness 87%")),
    ):
        assert all(each in line for each in figures)


def test_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    for measures, verdict in (
        (Measures((LIPS,), alarm="a smear"), "alarm: a smear"),
        (
            Measures((LIPS,), misfits=(Interval(3.24, 4.1, "smeared"),)),
            "alarm: 3.2–4.1 s: smeared; lips follow the speech",
        ),
        (Measures((replace(LIPS, late_ms=-200),)), "lips follow the speech, 200 ms early"),
        (
            Measures((LIPS, LipMeasure(1, 20, "cannot tell"))),
            "person 0: lips follow the speech; person 1: cannot "
            "tell whether lips follow the speech: too short",
        ),
        (Measures(()), "no face was painted"),
    ):
        assert printed(capsys, measures)[-1] == verdict


def lines(*moves: tuple[float, Progress]) -> list[str]:
    """What is printed in a pipe or a log file for progress at so many seconds."""
    said = list[str]()
    times = iter([0.0, *(time_s for time_s, _ in moves)])
    report = progress_lines(said.append, lambda: next(times))
    for _, progress in moves:
        report(progress)
    return said


def test_a_line_for_each_stage_and_each_half_minute() -> None:
    stages = (
        (0.0, "loading", 0, 100),
        (4.2, "exporting denoise_step (4 of 7)", 30, 100),
        (45.0, "done", 100, 100),
    )
    slow = [(float(frame), "lip-sync", frame, 1000) for frame in range(1, 70)]
    for moves, expected in (
        (stages, ["[0 s] loading", "[4 s] exporting denoise_step (4 of 7)", "[45 s] done"]),
        (slow, ["[1 s] lip-sync", "[31 s] lip-sync: 31 of 1000", "[61 s] lip-sync: 61 of 1000"]),
    ):
        assert lines(*((time_s, Progress(*what)) for time_s, *what in moves)) == expected
    paced = [
        (at_s, Progress("lip-sync", done, 1000, frames_per_s=10.0))
        for at_s, done in ((12.0, 1), (43.0, 301))
    ]
    assert lines(*paced) == [
        "[12 s] lip-sync at 10.0 frames/s, 0:01:40 left",
        "[43 s] lip-sync: 301 of 1000 at 10.0 frames/s, 0:01:10 left",
    ]


def test_time_left_beside_a_bar() -> None:
    for progress, shown in (
        (Progress("lip-sync", 16, 176, frames_per_s=2.0), "2.0 frames/s, 0:01:20 left"),
        (Progress("lip-sync", 176, 176, frames_per_s=2.0), "2.0 frames/s, finishing"),
        (Progress("lip-sync", 176, None), ""),
    ):
        bar = bars.Progress()
        show_progress(bar, bar.add_task(""), "", progress)
        assert str(TimeLeft().render(bar.tasks[0])) == shown
