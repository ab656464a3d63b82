"""What a batch shows while it runs: progress bars, lines of text, or lines of JSON; and a summary."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Any, Self

import rich_click as click
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.tasks import Event, Failed, Finished, Moved, Started, WorkerState
from latentsync_trt.cli.show import STDERR, process_age_s, say
from latentsync_trt.remote_files import shown
from latentsync_trt.types import Progress

_MOVED_EVERY_S = 2.0


class Board:
    """Where a batch stands, from its events, and what is shown of it. A context manager; thread-safe.

    Args:
        rows: to run, by task. before: clips that were done earlier. failed: rows of earlier runs,
        with the reason. clock: returns seconds.
    """

    def __init__(
        self,
        rows: Mapping[str, BatchRow],
        before: int = 0,
        failed: Sequence[tuple[BatchRow, str]] = (),
        *,
        as_json: bool = False,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failed = list(failed)
        self._rows, self._before, self._as_json, self._quiet, self._clock = rows, before, as_json, quiet, clock
        self._total, self._done, self._frames = before + len(self.failed) + len(rows), 0, 0
        self._startup_s: float | None = None
        self._began_s = self._ready_s = clock()
        self._told_s: dict[str, float] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._live = STDERR.is_terminal and not (as_json or quiet)
        columns = TextColumn("{task.description}", markup=False), BarColumn(24), TaskProgressColumn()
        self._bars = Bars(*columns, TimeRemainingColumn(), console=STDERR, transient=True, disable=not self._live)
        self._all = self._bars.add_task(str(self), total=len(rows))
        self._workers: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and shows it."""
        with self._lock:
            match event:
                case WorkerState(worker, state, detail):
                    self._worker(worker, state, detail)
                case Started(task_id, worker, attempt):
                    self._busy.add(worker)
                    self._tell("started", "", task_id, worker=worker, attempt=attempt)
                case Moved(task_id, worker, progress):
                    self._moved(task_id, worker, progress)
                case Finished(task_id, worker, done):
                    self._busy.discard(worker)
                    frames = done.report["frames"]
                    self._done, self._frames = self._done + 1, self._frames + frames
                    text = f"{_name(self._rows[task_id])}: {frames} frames in {done.seconds:.1f} s on {worker}; {self}"
                    text = "" if self._live else text
                    self._tell("finished", text, task_id, worker=worker, seconds=done.seconds, report=done.report)
                case Failed(task_id, worker, message, usage, again):
                    self._busy.discard(worker)
                    row = self._rows[task_id]
                    what = f"worker {worker} was lost and starts again; the clip is next" if again else "failed"
                    if not again:
                        self.failed.append((row, message))
                    text = f"{row.where}: {_name(row)}: {what}: {message}"
                    self._tell("failed", text, task_id, worker=worker, message=message, usage=usage, again=again)
            ended = self._before + self._done + len(self.failed) - (self._total - len(self._rows))
            self._bars.update(self._all, completed=ended, description=str(self))

    def _worker(self, name: str, state: str, detail: str) -> None:
        if state == "ready" and self._startup_s is None:
            self._startup_s, self._ready_s = process_age_s(), self._clock()
        text = ""
        if state == "lost" and name not in self._busy:
            text = f"worker {name} cannot start: {detail}"
        elif state == "closed" and detail:
            text = f"worker {name} is given up; the others go on"
        if state != "running":
            self._tell("worker", text, worker=name, state=state, detail=detail)
        if name not in self._workers:
            self._workers[name] = self._bars.add_task(name, total=1.0)
        self._bars.update(self._workers[name], description=f"{name}  {state}", completed=0.0)

    def _moved(self, task_id: str, worker: str, progress: Progress) -> None:
        text = f"{worker}  {progress.stage}  {_name(self._rows[task_id])}"
        self._bars.update(self._workers[worker], description=text, completed=progress.done, total=progress.total)
        if self._as_json and self._clock() - self._told_s.get(task_id, 0.0) >= _MOVED_EVERY_S:
            self._told_s[task_id] = self._clock()
            of = {"stage": progress.stage, "done": progress.done, "total": progress.total}
            self._tell("progress", "", task_id, worker=worker, **of)

    def _tell(self, kind: str, text: str, task_id: str | None = None, **fields: Any) -> None:
        """Prints an event as JSON, or its text, if it has one."""
        if self._as_json and task_id is not None:
            row = self._rows[task_id]
            tell(kind, id=task_id, row=row.where, output=shown(row.task.output), **fields)
        elif self._as_json:
            tell(kind, **fields)
        elif text and not self._quiet:
            say(text if self._live else f"[{self._clock() - self._began_s:.0f} s] {text}")

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self._before + self._done} of {self._total} clips done{failed}"

    def show_summary(self) -> None:
        """Prints the rows that failed to stderr, and numbers of the whole batch to stdout."""
        now_s, frames = self._clock(), self._frames
        wall_s, frames_per_s = now_s - self._began_s, frames / max(now_s - self._ready_s, 1e-6)
        if self._as_json:
            counts = {"done": self._done, "done_before": self._before, "failed": len(self.failed), "frames": frames}
            tell("summary", **counts, wall_s=wall_s, startup_s=self._startup_s, frames_per_s=frames_per_s)
            return
        for row, message in self.failed:
            say(f"failed: {row.where}  {_name(row)}  {message}")
        if not self._quiet:
            before = f" ({self._before} earlier)" if self._before else ""
            ran = "nothing to run"
            if self._startup_s is not None:
                ran = f"{frames} frames in {wall_s:.1f} s, {frames_per_s:.1f} frames/s; "
                ran += f"start-up {self._startup_s:.1f} s"
            click.echo(f"{self._before + self._done} clips done{before}, {len(self.failed)} failed: {ran}")


def tell(kind: str, **fields: Any) -> None:
    """Prints an event of `--json` to stdout."""
    click.echo(json.dumps({"event": kind, **fields}))


def _name(row: BatchRow) -> str:
    """The last part of the output's path or URL."""
    return PureWindowsPath(shown(row.task.output)).name
