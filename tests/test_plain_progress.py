"""Progress in a pipe or a log file: lines instead of a bar."""

from io import StringIO

import pytest
from rich.console import Console

from latentsync_trt.cli import show
from latentsync_trt.cli.plain_progress import ProgressLines
from latentsync_trt.cli.show import progress_bar
from latentsync_trt.types import Progress


def lines(*moves: tuple[float, str, int, int | None]) -> list[str]:
    """What is printed for (seconds, stage, done, total)."""
    said: list[str] = []
    times = iter([0.0, *(time_s for time_s, *_ in moves)])
    report = ProgressLines(said.append, lambda: next(times))
    for _, stage, done, total in moves:
        report(Progress(stage, done, total))
    return said


def test_a_line_for_each_stage() -> None:
    moves = (0.0, "loading", 0, 100), (4.2, "exporting denoise_step (4 of 7)", 30, 100), (45.0, "done", 100, 100)
    assert lines(*moves) == ["[0 s] loading", "[4 s] exporting denoise_step (4 of 7)", "[45 s] done"]


def test_a_line_for_each_tenth_of_a_long_stage() -> None:
    found = lines(*((float(frame), "lip-sync", frame, 100) for frame in range(1, 101)))
    assert found == ["[1 s] lip-sync", *(f"[{at} s] lip-sync: {at} of 100" for at in range(11, 100, 10))]


def test_a_line_after_half_a_minute_of_a_slow_or_endless_stage() -> None:
    slow = lines(*((float(frame), "lip-sync", frame, 10**6) for frame in range(1, 70)))
    assert slow == ["[1 s] lip-sync", "[31 s] lip-sync: 31 of 1000000", "[61 s] lip-sync: 61 of 1000000"]
    assert lines((1.0, "write", 0, None), (32.0, "write", 7, None)) == ["[1 s] write", "[32 s] write: 7"]


def test_quick_steps_are_not_printed_one_by_one() -> None:
    assert lines(*((0.01 * frame, "lip-sync", frame, 20) for frame in range(1, 21))) == ["[0 s] lip-sync"]


@pytest.mark.parametrize(("hidden", "printed"), [(False, "[0 s] lip-sync\n"), (True, "")])
def test_a_pipe_gets_lines(hidden: bool, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = StringIO()
    monkeypatch.setattr(show, "STDERR", Console(file=pipe, width=40, soft_wrap=True))
    with progress_bar(hidden=hidden) as move:
        move(Progress("lip-sync", 1, 5))
    assert pipe.getvalue() == printed
