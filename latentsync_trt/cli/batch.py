"""`latentsync-trt batch`: many clips, on all GPUs of this machine or on a Ray cluster."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars
from rich.progress import Task as BarTask

from latentsync_trt import stopping
from latentsync_trt.batch.remote_files import is_url, shown
from latentsync_trt.batch.tasks import Event, Failed, Finished, Moved, WorkerSettings, WorkerState
from latentsync_trt.cli import echo, interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import (
    LINE_EVERY_S,
    STDERR,
    TimeLeft,
    notices_to,
    print_json,
    progress_bar,
    say,
    show_progress,
)
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import FILES, HARDWARE
from latentsync_trt.paths import make_folder, path_exists
from latentsync_trt.types import Progress

if TYPE_CHECKING:
    from latentsync_trt.batch.job_file import BatchRow
    from latentsync_trt.batch.job_store import JobStore

_MOVED_EVERY_S = 2.0


@click.command("batch")
@click.argument("jobs", type=flags.LocalPath())
@click.option(
    "--output",
    type=flags.OutputFolder(),
    panel=FILES,
    metavar="FOLDER",
    help="Folder, or URL of one, for outputs that a row "
    "does not name.  [default: that of the video]",
)
@click.option(
    "--skip-bad",
    is_flag=True,
    panel=FILES,
    help="Run the rows that can work although others cannot.",
)
@flags.bundle_option
@flags.options_from(SyncOptions, leave_out=("resume",))
@flags.provider_option
@flags.worker_options
@flags.path_option(
    "--scratch", folder=True, panel=HARDWARE, help="Folder of each worker for files from URLs."
)
@flags.options_from(RuntimeOptions)
@flags.quiet_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each event to stdout as a line of JSON; a summary last.",
)
def batch(
    jobs: Path,
    *,
    bundle: str | None,
    quiet: bool,
    as_json: bool,
    output: str | None,
    skip_bad: bool,
    **fields: Any,
) -> None:
    """JOBS is a .csv file whose first row names its columns (video, audio, output, and any option
    of `sync`), a .jsonl file with such objects, or a folder, whose videos and recordings of one
    name are pairs. Options given here apply to all rows that don't say otherwise. What is done is
    kept in a ledger beside JOBS, or in the folder: the same command runs what is not. Exit code 1:
    some clips failed, or were skipped; 2: rows cannot work, and none was started.
    """
    from latentsync_trt.batch.dispatch import Dispatcher
    from latentsync_trt.batch.job_file import ledger_of, read_rows
    from latentsync_trt.batch.job_store import JobStore
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import describe_choice, find_bundle

    rows = read_rows(jobs, flags.build(SyncOptions, fields), output)
    path = ledger_of(jobs)
    board = Board(as_json=as_json, quiet=quiet)
    notice = partial(board.tell, "notice")
    with ExitStack() as stack:
        store = stack.enter_context(closing(JobStore(path))) if path.exists() else None
        left = rows if store is None else _left(store, rows)
        board.before = len(rows) - len(left)
        if output is not None and not is_url(output):
            make_folder(Path(output))
        ready = _check(left, board, skip=skip_bad)
        board.rows = {row.task.id: row for row in ready}
        board.skipped = len(left) - len(ready)
        if ready:
            if bundle is None:
                found, why = find_bundle(bundle)
                bundle = str(found)
                notice(describe_choice(found, why))
            scratch = fields["scratch"] and str(fields["scratch"].absolute())
            ray = fields["ray"]
            settings = WorkerSettings(
                bundle, fields["provider"], flags.build(RuntimeOptions, fields), scratch
            )
            workers = make_workers(
                settings, fields["workers"], most=len(ready), ray=ray, on_notice=notice
            )
            ledger = store or stack.enter_context(closing(JobStore(path)))
            ledger.add(row.task for row in ready)

            def on_event(event: Event) -> None:
                ledger.record(event)
                board(event)

            stopping.bars.append(board.bars)
            stack.enter_context(board.bars)
            stack.enter_context(interruption("interrupted; the same command goes on"))
            dispatcher = stack.enter_context(closing(Dispatcher(workers, on_event)))
            for row in ready:
                dispatcher.submit(row.task)
            dispatcher.wait(board.tick)
        elif board.before:
            notice(
                f"{path}: all of its rows are done; to run "
                "them again, delete it and add --overwrite"
            )
    board.show_summary()
    if board.failed or board.skipped:
        raise SystemExit(1)


def _left(store: "JobStore", rows: "Sequence[BatchRow]") -> "list[BatchRow]":
    """The rows that are not done, or whose output was deleted since; a killed worker may have left
    one begun.
    """
    store.reclaim()
    known = {row.task.id: row for row in store.rows()}
    ids = {row.task.id for row in rows}
    # Else rows that were edited or removed would count as unfinished for good.
    store.remove(id_ for id_, row in known.items() if id_ not in ids and row.state != "done")
    left: list[BatchRow] = []
    for row in rows:
        before = known.get(row.task.id)
        target = row.task.output
        is_done = (
            before is not None
            and before.state == "done"
            and (is_url(target) or path_exists(target))
        )
        if before is not None and before.state == "waiting" and before.attempts:
            left.append(
                replace(
                    row, task=replace(row.task, options=replace(row.task.options, overwrite=True))
                )
            )
        elif row.problem or not is_done:
            left.append(row)
    return left


def _check(rows: "Sequence[BatchRow]", board: "Board", *, skip: bool) -> "list[BatchRow]":
    """The rows, longest first so that workers end together; raises `InputError` if some cannot
    work, unless `skip`.
    """
    from latentsync_trt.batch.job_file import check_rows

    with progress_bar(hidden=board.hidden) as show:
        checked: list[BatchRow] = []
        for row in check_rows(rows):
            checked.append(row)
            show(Progress("checking rows", len(checked), len(rows)))
            if row.problem:
                board.tell("problem", f"{row.where}: {row.problem}")
    ready = [row for row in checked if not row.problem]
    if len(ready) < len(rows) and not skip:
        cure = "correct or remove them, or add --skip-bad"
        raise InputError(
            f"{len(rows) - len(ready)} of {len(rows)} rows "
            f"cannot work, and none was started; {cure}"
        )
    return sorted(ready, key=lambda row: -row.cost)


class Board:
    """What is shown of a batch while it runs and at its end, from its events; `before`: clips done
    earlier.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.rows: Mapping[str, BatchRow] = {}
        self.before = self.skipped = 0
        self.failed: list[tuple[BatchRow, str]] = []
        self.hidden = as_json or quiet
        self._as_json = as_json
        self._lock = threading.Lock()
        self._say = notices_to(silent=self.hidden)
        self._done = 0
        self._frames = 0
        self._began_s = time.monotonic()
        self._ready_s = 0.0
        self._told_s = 0.0
        self._line_s = self._began_s
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            TaskProgressColumn(),
            TimeLeft(),
        )
        disable = self.hidden or not STDERR.is_terminal
        self.bars = Bars(*columns, console=STDERR, transient=True, disable=disable)
        self._workers = {"": self.bars.add_task("")}  # bars by worker; first that of the whole

    def __call__(self, event: Event) -> None:
        """Takes an event into account, and shows it."""
        with self._lock:
            if self._as_json:
                self._tell(event)
            match event:
                case WorkerState(worker, state, detail):
                    if state == "ready":
                        self._ready_s = self._ready_s or time.monotonic()
                    if state == "closed" and detail:
                        self._say(f"worker {worker} is given up: {detail}")
                    self._move(worker, f"{worker}  {state}", Progress(state, 0, 1))
                case Moved(task_id, worker, progress):
                    self._move(
                        worker, f"{worker}  {progress.stage}  {_name(self.rows[task_id])}", progress
                    )
                case Finished(task_id, worker, report):
                    self._done = self._done + 1
                    self._frames = self._frames + report["frames"]
                    frames = f"{report['frames']} frames in {report['wall_s']:.1f} s on {worker}"
                    self._say(f"{_name(self.rows[task_id])}: {frames}; {self}")
                case Failed(task_id, worker, message, _, again):
                    row = self.rows[task_id]
                    if again:
                        what = f"worker {worker} was lost, the clip runs again"
                    else:
                        what = "failed"
                    self.failed += [] if again else [(row, message)]
                    self._say(f"{row.where}: {_name(row)}: {what}: {message}")
            self._move("", str(self), Progress("", self._done + len(self.failed), len(self.rows)))

    def _move(self, worker: str, text: str, at: Progress) -> None:
        if worker not in self._workers:
            self._workers[worker] = self.bars.add_task("")
        show_progress(self.bars, self._workers[worker], text, at)

    def tick(self) -> None:
        """Says in a log, which has no bars, every 30 s where the workers are."""
        now_s = time.monotonic()
        if STDERR.is_terminal or now_s - self._line_s < LINE_EVERY_S:
            return
        self._line_s = now_s
        with self._lock:
            workers = "; ".join(map(_where, self.bars.tasks[1:]))
            self._say(f"[{now_s - self._began_s:.0f} s] {self}; {workers}")

    def _tell(self, event: Event) -> None:
        """Prints an event as JSON; progress only from time to time."""
        where = {}
        if isinstance(event, Moved):
            if time.monotonic() - self._told_s < _MOVED_EVERY_S:
                return
            self._told_s = time.monotonic()
        if not isinstance(event, WorkerState):
            row = self.rows[event.task_id]
            where = {"row": row.where, "output": shown(row.task.output)}
        print_json({"event": type(event).__name__, **where, **asdict(event)})

    def tell(self, kind: Literal["notice", "problem"], message: str) -> None:
        """Prints a message; a problem also if quiet."""
        if self._as_json:
            print_json({"event": kind, "message": message})
        elif kind == "problem":
            say(message)
        else:
            self._say(f"note: {message}")

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.before + self._done} of {self.before + len(self.rows)} clips done{failed}"

    def show_summary(self) -> None:
        """Prints the rows that failed to stderr, and numbers of the whole batch to stdout."""
        done = self._done
        frames = self._frames
        failed = len(self.failed)
        now_s = time.monotonic()
        wall_s = now_s - self._began_s
        pace = frames / max(now_s - self._ready_s, 1e-6)
        if self._as_json:
            counts = {
                "done": done,
                "done_before": self.before,
                "failed": failed,
                "skipped": self.skipped,
            }
            print_json(
                {
                    "event": "summary",
                    **counts,
                    "frames": frames,
                    "wall_s": wall_s,
                    "frames_per_s": pace,
                }
            )
            return
        for row, message in self.failed:
            say(f"failed: {row.where}  {_name(row)}  {message}")
        before = f" ({self.before} earlier)" if self.before else ""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        ran = f"{frames} frames in {wall_s:.1f} s, {pace:.1f} frames/s after start-up"
        ran = ran if self._ready_s else "nothing to run"
        if not self.hidden:
            echo(f"{self.before + done} clips done{before}, {failed} failed{skipped}: {ran}")


def _where(worker: BarTask) -> str:
    """The text of a bar, as "gpu 0  lip-sync  a.mp4  12 of 50 at 5.0 frames/s, 0:00:08 left"."""
    if worker.total and worker.total > 1:
        steps = f"  {worker.completed:g} of {worker.total:g}"
    else:
        steps = ""
    pace = worker.fields.get("pace")
    return worker.description + steps + (f" at {pace}" if pace else "")


def _name(row: "BatchRow") -> str:
    return PureWindowsPath(shown(row.task.output)).name
