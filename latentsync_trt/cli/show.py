"""What is printed while a clip is processed and when it is done."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from latentsync_trt.types import Progress as StageProgress
from latentsync_trt.types import ProgressCallback, SyncReport

STDERR = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Prints a line to stderr, above the progress bar if there is one. Thread-safe."""
    STDERR.print(text, markup=False)


class Notices:
    """Prints each notice once: the report repeats those that were shown during the run."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(self, text: str) -> None:
        """Prints a notice to stderr, unless it was printed before."""
        if text not in self._shown:
            self._shown.add(text)
            say(f"note: {text}")


class _RateColumn(ProgressColumn):
    """Frames per second so far."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f} frames/s" if task.speed else "", style="progress.data.speed")


@contextmanager
def progress_bar(*, hidden: bool) -> Iterator[ProgressCallback | None]:
    """A bar on stderr with stage, frames/s and time left; yields the callback that moves it, None if hidden."""
    if hidden:
        yield None
        return
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=STDERR, expand=True, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def move(progress: StageProgress) -> None:
            bar.update(task, description=progress.stage, completed=progress.done, total=progress.total)

        yield move


def show_report(report: SyncReport, notices: Notices) -> None:
    """Prints the remaining notices to stderr; to stdout what was written, and seconds per stage."""
    for text in report.notices:
        notices(text)
    rate = report.frames / report.wall_s if report.wall_s else 0.0
    click.echo(
        f"{report.output}: {report.frames} frames ({report.duration_s:.2f} s), face in {report.frames_with_face}, "
        f"{report.wall_s:.1f} s ({rate:.1f} frames/s) with {report.bundle} on {report.provider}"
    )
    click.echo("busy: " + ", ".join(f"{time.stage} {time.busy_s:.1f} s" for time in report.stages))


def show_json(report: SyncReport) -> None:
    """Prints the report as one JSON object."""
    click.echo(json.dumps(asdict(report)))
