"""Output while a clip is processed and when it is done."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psutil
import rich_click as click
from rich import progress as bars
from rich.console import Console
from rich.text import Text

from latentsync_trt.types import Progress, ProgressCallback, SyncReport

STDERR = Console(stderr=True, highlight=False, soft_wrap=True)

_LINE_EVERY_S = 30.0
_LEAST_BETWEEN_LINES_S = 5.0
_LINES_PER_STAGE = 10


def say(text: str) -> None:
    """Prints a line to stderr, above the progress bar if there is one. Thread-safe."""
    STDERR.print(text, markup=False)


class Notices:
    """Prints each notice once, although the report repeats those shown during the run; those `known`, never."""

    def __init__(self, known: Iterable[str | None] = ()) -> None:
        self._shown = set(known)

    def __call__(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            say(f"note: {text}")


class _RateColumn(bars.ProgressColumn):
    """Steps (mostly frames) per second so far."""

    def render(self, task: bars.Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "", style="progress.data.speed")


class ProgressLines:
    """Progress for a log file or a pipe: a line when a stage begins, and after 30 s or a tenth of its steps.

    A line begins with the seconds since this object was made, and ends with the time left. `clock` returns seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._began_s = clock()
        self._stage: str | None = None
        self._entered = self._said = self._began_s, 0  # seconds, steps done

    def __call__(self, progress: Progress) -> None:
        """Reports `progress`, if it is time for a line."""
        now_s, steps = self._clock(), ""
        if progress.stage != self._stage:
            self._stage, self._entered = progress.stage, (now_s, progress.done)
        elif self._is_due(progress, now_s):
            steps = f": {progress.done}{self._rest(progress, now_s)}"
        else:
            return
        self._say(f"[{now_s - self._began_s:.0f} s] {progress.stage}{steps}")
        self._said = now_s, progress.done

    def _rest(self, progress: Progress, now_s: float) -> str:
        """The steps in all, and the time left at the rate of this stage so far."""
        if progress.total is None:
            return ""
        entered_s, done_before = self._entered
        of, steps = f" of {progress.total}", progress.done - done_before
        if steps <= 0:
            return of
        left_s = (progress.total - progress.done) * (now_s - entered_s) / steps
        return f"{of}, about {timedelta(seconds=round(left_s))} left"

    def _is_due(self, progress: Progress, now_s: float) -> bool:
        said_s, said_done = self._said
        tenth = progress.total is not None and (progress.done - said_done) * _LINES_PER_STAGE >= progress.total
        return now_s - said_s >= (_LEAST_BETWEEN_LINES_S if tenth else _LINE_EVERY_S)


@contextmanager
def progress_bar(*, hidden: bool) -> Iterator[ProgressCallback]:
    """A bar on stderr with stage, steps, rate, time spent and time left; yields the callback that moves it.

    Where stderr is not a terminal, lines of text take its place.
    """
    if not hidden and not STDERR.is_terminal:
        yield ProgressLines(say)
        return
    columns = bars.TextColumn("{task.description:<16}"), bars.BarColumn(bar_width=None), bars.MofNCompleteColumn()
    times = _RateColumn(), bars.TimeElapsedColumn(), bars.TimeRemainingColumn()
    with bars.Progress(*columns, *times, console=STDERR, expand=True, transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def move(progress: Progress) -> None:
            if progress.done < bar.tasks[0].completed:  # a new stage has its own rate
                bar.reset(task)
            bar.update(task, description=progress.stage, completed=progress.done, total=progress.total)

        yield move


def _devices(report: SyncReport) -> str:
    """ " (2 GPUs: 24 + 23 windows)", of those that painted; empty for one."""
    painted = [str(device.windows) for device in report.devices if device.windows]
    return f" ({len(painted)} GPUs: {' + '.join(painted)} windows)" if len(painted) > 1 else ""


def process_age_s() -> float:
    """Seconds since this process was started."""
    created_s: float = psutil.Process().create_time()
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux, where psutil adds it to the time of boot in whole seconds
        return time.clock_gettime(time.CLOCK_BOOTTIME) - (created_s - psutil.boot_time())
    return time.time() - created_s


def show_report(report: SyncReport, notices: Notices, total_s: float | None = None) -> None:
    """Prints the remaining notices to stderr; to stdout what was written, how good it is, and how long it took.

    `total_s`: since the command began; without it, times are those of `LipSync.sync` alone. Start-up ends with the
    first windows that are painted.
    """
    for text in report.notices:
        notices(text)
    total_s = report.wall_s if total_s is None else total_s
    click.echo(
        f"{report.output}: {report.frames} frames ({report.duration_s:.2f} s), face in {report.frames_with_face}, "
        f"with {report.bundle} on {report.provider}{_devices(report)}"
    )
    click.echo(
        f"time: {total_s:.1f} s = {total_s - report.painting_s - report.finish_s:.1f} s start-up + "
        f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s + {report.finish_s:.1f} s end"
    )
    if report.quality is not None and report.quality.rows:
        click.echo(str(report.quality))
    click.echo("busy: " + ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages))
