"""What `batch` shows: messages, the progress of its workers, and numbers at the end."""

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars
from rich.progress import Task as BarTask

from latentsync_trt import stopping
from latentsync_trt.batch.remote_files import without_secrets
from latentsync_trt.batch.tasks import Event, Failed, Finished, Moved, WorkerState
from latentsync_trt.cli import echo
from latentsync_trt.cli.show import (
    LINE_EVERY_S,
    STDERR,
    TimeLeft,
    notices_to,
    print_json,
    print_line,
    progress_bar,
    show_progress,
)
from latentsync_trt.errors import InputError
from latentsync_trt.types import Progress

if TYPE_CHECKING:
    from latentsync_trt.batch.job_file import BatchRow

_PROGRESS_EVERY_S = 2.0
"""Interval of the events about progress that `--json` prints."""


class BatchOutput:
    """Prints messages to stderr, or to stdout as JSON."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.hidden = as_json or quiet
        self.print_line = notices_to(silent=self.hidden)
        self.began_s = time.monotonic()

    def add_notice(self, message: str) -> None:
        if self.as_json:
            print_json({"event": "notice", "message": message})
        else:
            self.print_line(f"note: {message}")


def check_batch(rows: "Sequence[BatchRow]", output: BatchOutput, *, skip: bool) -> "list[BatchRow]":
    """Returns the rows that can work, longest first so that workers end together; raises
    `InputError` if some cannot, unless `skip`.
    """
    from latentsync_trt.batch.job_file import check_rows

    ready = []
    with progress_bar(hidden=output.hidden) as on_progress:
        for number, row in enumerate(check_rows(rows), 1):
            on_progress(Progress("checking rows", number, len(rows)))
            if row.problem:
                message = f"{row.where}: {row.problem}"
                if output.as_json:
                    print_json({"event": "problem", "message": message})
                else:  # also if quiet
                    print_line(message)
            else:
                ready.append(row)
    bad = len(rows) - len(ready)
    if bad and not skip:
        raise InputError(
            f"{bad} of {len(rows)} rows cannot work, and none was started; correct or remove "
            "them, or add --skip-bad"
        )
    return sorted(ready, key=lambda row: -row.cost)


class Board:
    """What is shown of a batch while it runs and at its end, from its events."""

    def __init__(
        self, output: BatchOutput, rows: "Sequence[BatchRow]", done_before: int, skipped: int
    ) -> None:
        """`rows`: those that run; `done_before`: number of those that are done already."""
        self.skipped = skipped
        self.failed: list[tuple[BatchRow, str]] = []
        self._output = output
        self._rows = {row.task.id: row for row in rows}
        self._done_before = done_before
        self._lock = threading.Lock()
        self._done = 0
        self._frames = 0
        self._ready_s = 0.0
        self._printed_s = 0.0
        self._line_s = output.began_s
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TaskProgressColumn(),
            TimeLeft(),
            console=STDERR,
            transient=True,
            disable=output.hidden or not STDERR.is_terminal,
        )
        self._bars = {"": self.bars.add_task("")}  # by worker; first that of the whole

    def __enter__(self) -> Self:
        stopping.progress_bars.append(self.bars)
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and shows it."""
        with self._lock:
            if self._output.as_json:
                self._print_event(event)
            match event:
                case WorkerState(worker, state, detail):
                    if state == "ready" and not self._ready_s:
                        self._ready_s = time.monotonic()
                    if state == "closed" and detail:
                        self._output.print_line(f"worker {worker} is given up: {detail}")
                    self._move(worker, f"{worker}  {state}", Progress(state, 0, 1))
                case Moved(task_id, worker, progress):
                    text = f"{worker}  {progress.stage}  {_output_name(self._rows[task_id])}"
                    self._move(worker, text, progress)
                case Finished():
                    self._finish(event)
                case Failed():
                    self._fail(event)
            ended = self._done + len(self.failed)
            self._move("", str(self), Progress("", ended, len(self._rows)))

    def _finish(self, event: Finished) -> None:
        frames = event.report["frames"]
        self._done += 1
        self._frames += frames
        pace = f"{frames} frames in {event.report['wall_s']:.1f} s on {event.worker}"
        name = _output_name(self._rows[event.task_id])
        self._output.print_line(f"{name}: {pace}; {self}")

    def _fail(self, event: Failed) -> None:
        row = self._rows[event.task_id]
        if event.again:
            outcome = f"worker {event.worker} was lost, the clip runs again"
        else:
            outcome = "failed"
            self.failed.append((row, event.message))
        name = _output_name(row)
        self._output.print_line(f"{row.where}: {name}: {outcome}: {event.message}")

    def _move(self, worker: str, text: str, at: Progress) -> None:
        if worker not in self._bars:
            self._bars[worker] = self.bars.add_task("")
        show_progress(self.bars, self._bars[worker], text, at)

    def tick(self) -> None:
        """Says in a log, which has no bars, every 30 s where the workers are."""
        now_s = time.monotonic()
        if STDERR.is_terminal or now_s - self._line_s < LINE_EVERY_S:
            return
        self._line_s = now_s
        with self._lock:
            workers = "; ".join(map(_line_of, self.bars.tasks[1:]))
            passed_s = now_s - self._output.began_s
            self._output.print_line(f"[{passed_s:.0f} s] {self}; {workers}")

    def _print_event(self, event: Event) -> None:
        """Prints an event as JSON; progress only from time to time."""
        clip = {}
        if isinstance(event, Moved):
            now_s = time.monotonic()
            if now_s - self._printed_s < _PROGRESS_EVERY_S:
                return
            self._printed_s = now_s
        if not isinstance(event, WorkerState):
            row = self._rows[event.task_id]
            clip = {"row": row.where, "output": without_secrets(row.task.output)}
        print_json({"event": type(event).__name__, **clip, **asdict(event)})

    def __str__(self) -> str:
        done = self._done_before + self._done
        clips = self._done_before + len(self._rows)
        text = f"{done} of {clips} clips done"
        if self.failed:
            text += f", {len(self.failed)} failed"
        return text

    def show_summary(self) -> None:
        """Prints the rows that failed to stderr, and numbers of the whole batch to stdout."""
        now_s = time.monotonic()
        wall_s = now_s - self._output.began_s
        pace = self._frames / max(now_s - self._ready_s, 1e-6)
        if self._output.as_json:
            summary = {
                "event": "summary",
                "done": self._done,
                "done_before": self._done_before,
                "failed": len(self.failed),
                "skipped": self.skipped,
                "frames": self._frames,
                "wall_s": wall_s,
                "frames_per_s": pace,
            }
            print_json(summary)
            return
        for row, message in self.failed:
            print_line(f"failed: {row.where}  {_output_name(row)}  {message}")
        if self._output.hidden:
            return
        done = self._done_before + self._done
        counts = "1 clip done" if done == 1 else f"{done} clips done"
        if self._done_before:
            counts += f" ({self._done_before} earlier)"
        counts += f", {len(self.failed)} failed"
        if self.skipped:
            counts += f", {self.skipped} skipped"
        run = "nothing to run"
        if self._ready_s:
            run = f"{self._frames} frames in {wall_s:.1f} s, {pace:.1f} frames/s after start-up"
        echo(f"{counts}: {run}")


def _line_of(worker: BarTask) -> str:
    """Returns the text of a bar, as "gpu 0  lip-sync  a.mp4  12 of 50 at 5.0 frames/s"."""
    line = worker.description
    if worker.total and worker.total > 1:
        line += f"  {worker.completed:g} of {worker.total:g}"
    pace = worker.fields.get("pace")
    if pace:
        line += f" at {pace}"
    return line


def _output_name(row: "BatchRow") -> str:
    """Returns the name of a row's output, which may be a URL or a path of either system."""
    return PureWindowsPath(without_secrets(row.task.output)).name
