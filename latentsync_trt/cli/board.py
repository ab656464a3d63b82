"""What a batch shows while it runs: progress bars, lines of text, or lines of JSON; and a summary."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import PureWindowsPath
from statistics import fmean
from typing import Any, Self

import rich_click as click
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.tasks import Event, Failed, Finished, Moved, Started, WorkerState
from latentsync_trt.cli.show import STDERR, process_age_s, say
from latentsync_trt.remote_files import shown
from latentsync_trt.types import Progress

_JSON_EVERY_S = 2.0
_LINE_EVERY_S = 30.0
_SPEED_OVER_S = 3600.0


class Board:
    """Where a batch stands, from its events, and what is shown of it. A context manager; thread-safe.

    Args:
        rows: to run, by task. before: clips that were done earlier. failed: rows of earlier runs, with the reason.
        clock: returns seconds.
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
        self._live = STDERR.is_terminal and not (as_json or quiet)
        self._total = before + len(self.failed) + len(rows)
        self._done = self._frames = 0
        self._startup_s: float | None = None
        self._began_s, self._ready_s, self._said_s = clock(), 0.0, 0.0
        self._told_s: dict[str, float] = {}
        self._running: dict[str, tuple[str, Progress | None]] = {}
        mean_s = fmean([row.length_s for row in rows.values() if row.length_s] or [1.0])
        self._left_s = {task_id: row.length_s or mean_s for task_id, row in rows.items()}
        self._lock = threading.Lock()
        columns = TextColumn("{task.description}", markup=False), BarColumn(24), TaskProgressColumn()
        self._bars = Bars(
            *columns,
            console=STDERR,
            transient=True,
            disable=not self._live,
            get_time=clock,
            speed_estimate_period=_SPEED_OVER_S,
        )
        self._length_s = sum(self._left_s.values())
        self._all = self._bars.add_task("", total=self._length_s)
        self._workers: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and shows it."""
        with self._lock:
            self._take(event)
            left_s = sum(self._left_s.values())
            for task_id, at in self._running.values():
                if at is not None and at.writes and at.total:
                    left_s -= self._left_s[task_id] * min(at.done / at.total, 1.0)
            self._bars.update(self._all, completed=self._length_s - left_s)
            self._bars.update(self._all, description=str(self))

    def _take(self, event: Event) -> None:
        match event:
            case WorkerState(worker, state, detail):
                self._worker(worker, state, detail)
            case Started(task_id, worker, attempt):
                self._running[worker] = task_id, None
                self._tell("started", "", task_id, worker=worker, attempt=attempt)
            case Moved(task_id, worker, progress):
                self._moved(task_id, worker, progress)
            case Finished(task_id, worker, done):
                self._end(task_id, worker)
                self._done, self._frames = self._done + 1, self._frames + done.report["frames"]
                text = f"{done.report['frames']} frames in {done.seconds:.1f} s on {worker}; {self}"
                text = "" if self._live else f"{_name(self._rows[task_id])}: {text}"
                self._tell("finished", text, task_id, worker=worker, seconds=done.seconds, report=done.report)
            case Failed(task_id, worker, message, usage, again):
                what = f"worker {worker} was lost and starts again; the clip is next" if again else "failed"
                self._running.pop(worker, None)
                if not again:
                    self._end(task_id, worker)
                    self.failed.append((self._rows[task_id], message))
                text = f"{self._rows[task_id].where}: {_name(self._rows[task_id])}: {what}: {message}"
                self._tell("failed", text, task_id, worker=worker, message=message, usage=usage, again=again)

    def _worker(self, name: str, state: str, detail: str) -> None:
        if state == "ready" and self._startup_s is None:
            self._startup_s, self._ready_s = process_age_s(), self._clock()
        text = ""
        if state == "lost" and name not in self._running:
            text = f"worker {name} cannot start: {detail}"
        elif state == "closed" and detail:
            text = f"worker {name} is given up; the others go on"
        if state != "running":
            self._tell("worker", text, worker=name, state=state, detail=detail)
        if name not in self._workers:
            self._workers[name] = self._bars.add_task(name, total=1.0)
        self._bars.update(self._workers[name], description=f"{name}  {state}", completed=0.0)

    def _moved(self, task_id: str, worker: str, progress: Progress) -> None:
        self._running[worker] = task_id, progress
        text = f"{worker}  {progress.stage}  {_name(self._rows[task_id])}"
        self._bars.update(self._workers[worker], description=text, completed=progress.done, total=progress.total)
        last_s, every_s = self._said_s, _LINE_EVERY_S
        if self._as_json:
            last_s, every_s = self._told_s.get(task_id, -_JSON_EVERY_S), _JSON_EVERY_S
        if self._wall_s - last_s >= every_s:
            self._told_s[task_id] = self._wall_s
            of = {"stage": progress.stage, "done": progress.done, "total": progress.total}
            self._tell("progress", "" if self._live else str(self), task_id, worker=worker, **of)

    def _end(self, task_id: str, worker: str) -> None:
        self._running.pop(worker, None)
        self._left_s[task_id] = 0.0

    def _tell(self, kind: str, text: str, task_id: str | None = None, **fields: Any) -> None:
        """Prints an event as JSON, or its text, if it has one."""
        if self._as_json and task_id is not None:
            row = self._rows[task_id]
            tell(kind, id=task_id, row=row.where, output=shown(row.task.output), **fields)
        elif self._as_json:
            tell(kind, **fields)
        elif text and not self._quiet:
            self._said_s = self._wall_s
            say(text if self._live else f"[{self._said_s:.0f} s] {text}")

    @property
    def _wall_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def _frames_per_s(self) -> float:
        """Of all workers together, since the first one was ready."""
        written = sum(at.done for _, at in self._running.values() if at and at.writes)
        spent_s = self._clock() - self._ready_s
        return (self._frames + written) / spent_s if self._ready_s and spent_s else 0.0

    def __str__(self) -> str:
        left_s = self._bars.tasks[0].time_remaining
        left = f", about {timedelta(seconds=left_s)} left" if left_s else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        done = self._before + self._done
        return f"{done} of {self._total} clips done{failed}; {self._frames_per_s:.1f} frames/s{left}"

    def show_summary(self) -> None:
        """Prints the rows that failed to stderr, and numbers of the whole batch to stdout."""
        numbers = {"frames": self._frames, "wall_s": self._wall_s, "startup_s": self._startup_s}
        if self._as_json:
            counts = {"done": self._done, "done_before": self._before, "failed": len(self.failed)}
            tell("summary", **counts, **numbers, frames_per_s=self._frames_per_s)
            return
        for row, message in self.failed:
            say(f"failed: {row.where}  {_name(row)}  {message}")
        if not self._quiet:
            before = f" ({self._before} earlier)" if self._before else ""
            ran = "nothing to run"
            if self._startup_s is not None:
                ran = f"{self._frames} frames in {self._wall_s:.1f} s, {self._frames_per_s:.1f} frames/s; "
                ran += f"start-up {self._startup_s:.1f} s"
            click.echo(f"{self._before + self._done} clips done{before}, {len(self.failed)} failed: {ran}")


def tell(kind: str, **fields: Any) -> None:
    """Prints an event of `--json` to stdout."""
    click.echo(json.dumps({"event": kind, **fields}))


def _name(row: BatchRow) -> str:
    """The last part of the output's path or URL."""
    return PureWindowsPath(shown(row.task.output)).name
