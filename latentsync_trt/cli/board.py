"""What a batch shows while it runs: a live table, lines of text, or lines of JSON; and a summary."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PureWindowsPath
from statistics import fmean
from typing import Any

import rich_click as click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.tasks import Event, Failed, Finished, Moved, Started, WorkerState
from latentsync_trt.cli.show import STDERR, process_age_s, say
from latentsync_trt.remote_files import shown
from latentsync_trt.types import Progress

Show = Callable[[Event], None]

_JSON_EVERY_S = 2.0
_LINE_EVERY_S = 30.0
# The first frames of a clip say little about the time that the others take.
_LEAST_DONE_S = 1.0
_BAR_WIDTH = 24
_LOG_WIDTH = 10_000


@dataclass(slots=True)
class _Worker:
    """What a worker does: its state, and the clip that it runs, with its progress."""

    state: str = "starting"
    job: BatchRow | None = None
    progress: Progress | None = None

    @property
    def written(self) -> int:
        """Frames of the clip that are written."""
        return self.progress.done if self.progress is not None and self.progress.writes else 0

    @property
    def share(self) -> float:
        """How much of the stage is done, 0 to 1."""
        moved = self.progress
        return min(moved.done / moved.total, 1.0) if moved is not None and moved.total else 0.0


@dataclass(slots=True)
class Figures:
    """Where a batch stands, from its events.

    `before`: clips that were done earlier; `failed`: rows, also from earlier, with the reason. `clock` returns seconds.
    """

    jobs: dict[str, BatchRow]
    before: int = 0
    failed: list[tuple[BatchRow, str]] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    frames: int = 0
    workers: dict[str, _Worker] = field(default_factory=dict)
    startup_s: float | None = None
    """From the start of the process to the first worker that was ready."""
    _total: int = 0
    _began_s: float = 0.0
    _ready_s: float = 0.0
    _ended_length_s: float = 0.0
    _mean_length_s: float = 1.0

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._total = self.before + len(self.failed) + len(self.jobs)
        self._mean_length_s = fmean([job.length_s for job in self.jobs.values() if job.length_s] or [1.0])

    def add(self, event: Event) -> None:
        """Takes an event into account."""
        match event:
            case WorkerState(name, state):
                self.workers.setdefault(name, _Worker()).state = state
                if state == "ready" and self.startup_s is None:
                    self.startup_s, self._ready_s = process_age_s(), self.clock()
            case Started(task_id, name):
                self.workers[name] = _Worker("running", self.jobs[task_id])
            case Moved(_, name, progress):
                self.workers[name].progress = progress
            case Finished(task_id, name, done):
                self.done, self.frames = self.done + 1, self.frames + done.report["frames"]
                self._end(name, task_id)
            case Failed(task_id, name, message, _, again):
                self.workers[name] = _Worker("lost")
                if not again:
                    self.failed.append((self.jobs[task_id], message))
                    self._end(name, task_id)

    def _end(self, worker: str, task_id: str) -> None:
        self.workers[worker] = _Worker("ready")
        self._ended_length_s += self._length_s(self.jobs[task_id])

    def _length_s(self, job: BatchRow) -> float:
        """Of a clip; the mean of those that are known where it is not."""
        return job.length_s or self._mean_length_s

    @property
    def wall_s(self) -> float:
        """Seconds since this batch began."""
        return self.clock() - self._began_s

    @property
    def frames_per_s(self) -> float:
        """Of all workers together, since the first one was ready."""
        running = [worker.written for worker in list(self.workers.values())]
        spent_s = self.clock() - self._ready_s if self._ready_s else 0.0
        return (self.frames + sum(running)) / spent_s if spent_s else 0.0

    @property
    def left_s(self) -> float | None:
        """Expected seconds until the end; None before a second of video is done."""
        running = [(worker.share, worker.job) for worker in list(self.workers.values()) if worker.written]
        done_s = self._ended_length_s + sum(share * self._length_s(job) for share, job in running if job is not None)
        if not self._ready_s or done_s < _LEAST_DONE_S:
            return None
        rest_s = sum(map(self._length_s, self.jobs.values())) - done_s
        return max(rest_s, 0.0) * (self.clock() - self._ready_s) / done_s

    def __str__(self) -> str:
        left = f", about {timedelta(seconds=round(self.left_s))} left" if self.left_s else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        done = self.before + self.done
        return f"{done} of {self._total} clips done{failed}; {self.frames_per_s:.1f} frames/s{left}"

    def summary(self) -> dict[str, Any]:
        """The end of a batch, as JSON."""
        return {
            "done": self.done,
            "done_before": self.before,
            "failed": len(self.failed),
            "frames": self.frames,
            "wall_s": self.wall_s,
            "startup_s": self.startup_s,
            "frames_per_s": self.frames_per_s,
        }


@contextmanager
def display(figures: Figures, *, as_json: bool, quiet: bool) -> Iterator[Show]:
    """Yields what takes the events of a batch into `figures` and shows them, as fits the terminal."""
    if as_json:
        yield _JsonLines(figures)
    elif quiet or not STDERR.is_terminal:
        yield _Lines(figures, (lambda _: None) if quiet else say)
    else:
        with Live(console=STDERR, get_renderable=lambda: _table(figures), transient=True, refresh_per_second=4):
            yield _Lines(figures, say, only_problems=True)


def show_notice(text: str, *, quiet: bool, as_json: bool) -> None:
    """Prints what takes long: to stderr, or to stdout as JSON."""
    if as_json:
        _print("notice", message=text)
    elif not quiet:
        say(f"note: {text}")


def show_problems(problems: Sequence[object], *, as_json: bool) -> None:
    """Prints why rows cannot work, a line each: to stderr, or to stdout as JSON."""
    for problem in problems:
        if as_json:
            _print("problem", message=str(problem))
        else:
            say(str(problem))


def show_summary(figures: Figures, *, quiet: bool, as_json: bool) -> None:
    """Prints a table of the rows that failed to stderr, and figures of the whole batch to stdout."""
    if as_json:
        _print("summary", **figures.summary())
        return
    if figures.failed:
        table = Table("failed", "clip", Column("reason", overflow="fold"), box=None, pad_edge=False)
        for job, message in figures.failed:
            table.add_row(*map(Text, (job.where, _name(job.task.output), message)))
        # The lines of a log are not wrapped.
        (STDERR if STDERR.is_terminal else Console(stderr=True, width=_LOG_WIDTH)).print(table)
    if quiet:
        return
    before = f" ({figures.before} earlier)" if figures.before else ""
    ran = "nothing to run"
    if figures.startup_s is not None:
        ran = f"{figures.frames} frames in {figures.wall_s:.1f} s, {figures.frames_per_s:.1f} frames/s; "
        ran += f"start-up {figures.startup_s:.1f} s"
    click.echo(f"{figures.before + figures.done} clips done{before}, {len(figures.failed)} failed: {ran}")


class _Lines:
    """A line for each clip that ends and worker that is lost, and at intervals one for all."""

    def __init__(self, figures: Figures, say: Callable[[str], None], *, only_problems: bool = False) -> None:
        self._figures, self._say, self._only_problems = figures, say, only_problems
        self._said_s = 0.0

    def __call__(self, event: Event) -> None:
        self._figures.add(event)
        match event:
            case Failed(task_id, worker, message, _, again):
                job = self._figures.jobs[task_id]
                what = f"worker {worker} was lost and starts again; the clip is next" if again else "failed"
                self._line(f"{job.where}: {_name(job.task.output)}: {what}: {message}")
            case WorkerState(worker, "lost", detail) if self._figures.workers[worker].job is None:
                self._line(f"worker {worker} cannot start: {detail}")
            case WorkerState(worker, "closed", detail) if detail:
                self._line(f"worker {worker} is given up; the others go on")
            case Finished(task_id, worker, done) if not self._only_problems:
                name, frames = _name(self._figures.jobs[task_id].task.output), done.report["frames"]
                self._line(f"{name}: {frames} frames in {done.seconds:.1f} s on {worker}; {self._figures}")
            case Moved() if not self._only_problems and self._figures.wall_s - self._said_s >= _LINE_EVERY_S:
                self._line(str(self._figures))

    def _line(self, text: str) -> None:
        self._said_s = self._figures.wall_s
        self._say(text if self._only_problems else f"[{self._said_s:.0f} s] {text}")


class _JsonLines:
    """A line on stdout for each event; for the progress of a clip, every two seconds."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._moved_s: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        self._figures.add(event)
        match event:
            case WorkerState(worker, state, detail) if state != "running":
                _print("worker", worker=worker, state=state, detail=detail)
            case Started(task_id, worker, attempt):
                self._print("started", task_id, worker=worker, attempt=attempt)
            case Moved(task_id, worker, progress) if self._is_due(task_id):
                of = {"stage": progress.stage, "done": progress.done, "total": progress.total}
                self._print("progress", task_id, worker=worker, **of)
            case Finished(task_id, worker, done):
                self._print("finished", task_id, worker=worker, seconds=done.seconds, report=done.report)
            case Failed(task_id, worker, message, usage, again):
                self._print("failed", task_id, worker=worker, message=message, usage=usage, again=again)

    def _is_due(self, task_id: str) -> bool:
        now_s = self._figures.wall_s
        due = now_s - self._moved_s.get(task_id, -_JSON_EVERY_S) >= _JSON_EVERY_S
        if due:
            self._moved_s[task_id] = now_s
        return due

    def _print(self, kind: str, task_id: str, **fields: Any) -> None:
        job = self._figures.jobs[task_id]
        _print(kind, id=task_id, row=job.where, output=shown(job.task.output), **fields)


def _print(kind: str, **fields: Any) -> None:
    click.echo(json.dumps({"event": kind, **fields}))


def _table(figures: Figures) -> Table:
    """A line for the whole, first, as a terminal may not have room for all workers; and one for each of them."""
    table = Table(box=None, show_header=False, pad_edge=False, title=str(figures), title_justify="left")
    for name, worker in sorted(figures.workers.items(), key=lambda item: (len(item[0]), item[0])):
        stage = worker.progress.stage if worker.progress is not None else worker.state
        if worker.job is None:
            table.add_row(name, stage)
        else:
            bar = ProgressBar(total=1.0, completed=worker.share, width=_BAR_WIDTH)
            table.add_row(name, stage, bar, f"{worker.share:4.0%}", Text(_name(worker.job.task.output)))
    return table


def _name(file: str) -> str:
    """The last part of a path or URL."""
    return PureWindowsPath(shown(file)).name
