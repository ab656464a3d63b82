"""What several commands show: notices, progress, tables, and the summary of a clip."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import rich_click as click
from rich import progress as bars
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from latentsync_trt import stopping
from latentsync_trt.cli import echo
from latentsync_trt.errors import Notices
from latentsync_trt.paths import printable
from latentsync_trt.types import NoticeCallback, Progress, ProgressCallback, SyncReport

STDERR = Console(stderr=True, highlight=False, soft_wrap=True)

LINE_EVERY_S = 30.0
"""Interval of lines about progress in a log file."""


def print_line(text: str) -> None:
    """Prints a line to stderr, above the progress bar if there is one. Thread-safe."""
    STDERR.print(printable(text), markup=False)


def notices_to(*, silent: bool) -> NoticeCallback:
    """Returns `print_line`, or what ignores its argument."""
    if silent:
        return lambda _: None
    return print_line


def new_notices() -> Notices:
    """Prints each notice once, although the report repeats those shown during the run."""
    return Notices(lambda text: print_line(f"note: {text}"))


class TimeLeft(bars.TimeRemainingColumn):
    """Pace and time left as the run tells them; without, as the bar moves."""

    def render(self, task: bars.Task) -> Text:
        pace = task.fields.get("pace")
        if pace is None:
            return super().render(task)
        return Text(pace, style="progress.remaining")


def show_progress(bar: bars.Progress, task: bars.TaskID, text: str, at: Progress) -> None:
    """Moves a bar that may have the column `TimeLeft`."""
    pace = _pace(at) if at.writes else None
    bar.update(task, description=printable(text), completed=at.done, total=at.total, pace=pace)


def _pace(progress: Progress) -> str:
    """Returns for example "12.3 frames/s, 0:01:05 left", never that nothing is left; an empty text
    where that is unknown.
    """
    if progress.seconds_left is None:
        return ""
    left_s = round(progress.seconds_left)
    left = f"{timedelta(seconds=left_s)} left" if left_s > 0 else "finishing"
    return f"{progress.frames_per_s:.1f} frames/s, {left}"


def progress_lines(
    on_line: NoticeCallback, clock: Callable[[], float] = time.monotonic
) -> ProgressCallback:
    """Returns a callback for a log file or a pipe, which gets a line when a stage begins, and every
    30 s, with the seconds so far.
    """
    began_s = clock()
    printed_s = began_s
    stage = ""

    def report(progress: Progress) -> None:
        nonlocal printed_s, stage
        now_s = clock()
        line = f"[{now_s - began_s:.0f} s] {progress.stage}"
        if progress.stage == stage:
            if now_s - printed_s < LINE_EVERY_S:
                return
            line += f": {progress.done}"
            if progress.total is not None:
                line += f" of {progress.total}"
        pace = _pace(progress)
        if pace:
            line += f" at {pace}"
        stage = progress.stage
        printed_s = now_s
        on_line(line)

    return report


@contextmanager
def progress_bar(*, hidden: bool) -> Iterator[ProgressCallback]:
    """Shows a bar on stderr, or lines of text where that is no terminal; yields the callback that
    moves it.
    """
    if not hidden and not STDERR.is_terminal:
        yield progress_lines(print_line)
        return
    bar = bars.Progress(
        bars.TextColumn("{task.description:<21}"),
        bars.BarColumn(bar_width=None),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        TimeLeft(),
        console=STDERR,
        expand=True,
        transient=True,
        disable=hidden,
    )
    stopping.progress_bars.append(bar)
    with bar:
        task = bar.add_task("starting", total=None)

        def move(progress: Progress) -> None:
            if progress.done < bar.tasks[0].completed:  # a new stage has its own rate
                bar.reset(task)
            show_progress(bar, task, progress.stage, progress)

        yield move


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> None:
    """Prints a table to stdout; columns from `left` on are aligned right. No markup: names may come
    from files.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, head in enumerate(heads):
        table.add_column(head, overflow="fold", justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*map(_cell, row))
    width = None if sys.stdout.isatty() else 200
    Console(markup=False, highlight=False, emoji=False, width=width).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(str(value))


def print_json(content: Any, *, indent: int | None = None) -> None:
    """Prints JSON to stdout; dataclasses anywhere in it become objects, paths become texts."""

    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return str(value)

    click.echo(json.dumps(content, indent=indent, default=plain))


def show_report(
    report: SyncReport, notices: Notices, page: Path | None = None, *, verbose: bool = False
) -> None:
    """Prints the remaining notices to stderr; to stdout what was written, how long it took, and
    whether lips follow.
    """
    for text in report.notices:
        notices.add(text)
    again = ""
    if report.redone:
        again = " done again"
    echo(
        f"{report.output}: {report.frames} frames{again} ({report.duration_s:.2f} s), face in "
        f"{report.frames_with_face}, with {report.bundle} on {report.provider}"
    )
    echo(
        f"time: {report.wall_s:.1f} s = {report.startup_s:.1f} s start-up + "
        f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s + "
        f"{report.finish_s:.1f} s end"
    )
    if verbose:
        echo("busy: " + ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages))
    if page is not None:
        echo(f"{page}: report")
    quality = report.quality
    if quality is None:
        return
    if verbose:
        for name, value in quality.rows:
            echo(f"{name}: {value}")
    verdict = str(quality)
    alarm = quality.alarm
    if alarm and alarm in report.notices:  # whose notice has the figures and the reason
        verdict = verdict.replace(alarm, alarm.partition(" (")[0])
    echo(verdict or "no face was painted")
