"""`latentsync-trt batch`: many clips, on all GPUs of this machine or on a Ray cluster."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import (
    LocalPath,
    WorkerOptions,
    build,
    bundle_option,
    options_from,
    provider_option,
    quiet_option,
)
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import FILES, HARDWARE
from latentsync_trt.paths import check_folder_to_write
from latentsync_trt.stopping import interruption

if TYPE_CHECKING:
    from latentsync_trt.batch.job_file import BatchRow, Problem
    from latentsync_trt.batch.ledger import Ledger, Row
    from latentsync_trt.batch.tasks import Task, WorkerHandle
    from latentsync_trt.cli.board import Board

_LEDGER = ".ledger.sqlite"


@click.command("batch")
@click.argument("jobs", type=LocalPath())
@click.option(
    "--out",
    panel=FILES,
    metavar="FOLDER",
    help="Folder, or URL of one, for outputs that a row does not name.  [default: that of the video]",
)
@click.option("--resume", is_flag=True, panel=FILES, help="Go on with this batch: run what is not done.")
@click.option("--retry-failed", is_flag=True, panel=FILES, help="As --resume, and run failed rows once more.")
@bundle_option
@options_from(SyncOptions, leave_out=("resume",))
@provider_option
@options_from(WorkerOptions)
@click.option(
    "--scratch", type=LocalPath(folder=True), panel=HARDWARE, help="Folder of each worker for files from URLs."
)
@options_from(RuntimeOptions)
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print each event to stdout as a line of JSON; a summary last.")
def command(
    jobs: Path,
    bundle: str | None,
    quiet: bool,
    as_json: bool,
    out: str | None,
    resume: bool,
    retry_failed: bool,
    **fields: Any,
) -> None:
    """Lip-sync many clips; models are loaded once per GPU.

    JOBS is a .csv file whose first row names its columns (video, audio, output, and any option of
    `sync`), a .jsonl file with such objects, or a folder of videos with recordings of the same
    name. Options given here apply to all rows that don't say otherwise. What is done is kept in a
    ledger beside JOBS. Exit code 1: some clips failed; 2: rows cannot work, and none was started.
    """
    from latentsync_trt.batch.job_file import read_rows
    from latentsync_trt.batch.ledger import Ledger
    from latentsync_trt.cli.board import Board, tell
    from latentsync_trt.cli.show import say
    from latentsync_trt.remote_files import is_url

    def notice(text: str) -> None:
        if as_json:
            tell("notice", message=text)
        elif not quiet:
            say(f"note: {text}")

    options = build(SyncOptions, fields)
    rows, problems = read_rows(jobs, options, out)
    path = jobs / f"batch{_LEDGER}" if jobs.is_dir() else jobs.with_name(jobs.name + _LEDGER)
    resume = resume or retry_failed
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(path)) if path.exists() else None
        settled = {} if ledger is None else _settled(ledger, path, rows, resume=resume, retry_failed=retry_failed)
        if out is not None and not is_url(out):
            check_folder_to_write(Path(out), "--out")
            Path(out).mkdir(parents=True, exist_ok=True)
        ready = _check([row for row in rows if row.task.id not in settled], problems, quiet=quiet, as_json=as_json)
        ended = [(row, settled[row.task.id]) for row in rows if row.task.id in settled]
        failed = [(row, known.error or "") for row, known in ended if known.state == "failed"]
        to_run = {row.task.id: row for row in ready}
        board = Board(to_run, len(settled) - len(failed), failed, as_json=as_json, quiet=quiet)
        if ready:
            handles = _workers(bundle, len(ready), fields, notice)
            ledger = ledger or stack.enter_context(Ledger.open(path))
            if not resume:
                ledger.remove(row.task.id for row in ledger.rows())
            _run([row.task for row in ready], handles, ledger, board)
    board.show_summary()
    if board.failed:
        raise SystemExit(1)


def _settled(
    ledger: "Ledger", path: Path, rows: "Sequence[BatchRow]", *, resume: bool, retry_failed: bool
) -> "dict[str, Row]":
    """The rows that do not run, by task.

    Raises:
        InputError: there is an unfinished batch, and `resume` is not set.
    """
    if not resume:
        left = sum(count for state, count in ledger.counts().items() if state != "done")
        if left:
            cure = "--resume goes on, --retry-failed also runs failed rows again; to begin anew, delete it"
            raise InputError(f"{path}: rows of an earlier run are not done ({left}); {cure}")
        return {}
    ledger.reclaim()
    wanted, known = {row.task.id for row in rows}, ledger.rows()
    # Else rows that were edited or removed would count as unfinished for good.
    ledger.remove(row.task.id for row in known if row.task.id not in wanted and row.state != "done")
    ended = ("done",) if retry_failed else ("done", "failed")
    return {row.task.id: row for row in known if row.task.id in wanted and row.state in ended}


def _check(
    rows: "Sequence[BatchRow]", problems: "Sequence[Problem]", *, quiet: bool, as_json: bool
) -> "list[BatchRow]":
    """The rows in the order in which they run: longest first, so that workers end together.

    Raises:
        InputError: some cannot work; says why for each.
    """
    from latentsync_trt.batch.job_file import check_rows
    from latentsync_trt.cli.board import tell
    from latentsync_trt.cli.show import progress_bar, say
    from latentsync_trt.types import Progress

    with progress_bar(hidden=quiet or as_json) as show:
        good, more = check_rows(rows, lambda count: show(Progress("checking rows", count, len(rows))))
    problems = sorted([*problems, *more], key=lambda problem: (len(problem.where), problem.where))
    for problem in problems:
        if as_json:
            tell("problem", message=str(problem))
        else:
            say(str(problem))
    if problems:
        bad = {problem.where for problem in problems}
        count = len(bad.union(row.where for row in rows))
        raise InputError(f"{len(bad)} of {count} rows cannot work, and none was started; correct or remove them")
    return sorted(good, key=lambda row: -row.cost)


def _workers(
    bundle: str | None, most: int, fields: dict[str, Any], notice: Callable[[str], None]
) -> "list[WorkerHandle]":
    from latentsync_trt.batch.tasks import WorkerSettings
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import describe_choice, find_bundle

    if bundle is None:
        folder, why = find_bundle(bundle)
        bundle = str(folder)
        notice(describe_choice(folder, why))
    scratch = fields["scratch"] and str(fields["scratch"].absolute())
    settings = WorkerSettings(bundle, fields["provider"], build(RuntimeOptions, fields), scratch)
    on = build(WorkerOptions, fields)
    return make_workers(
        settings, on.workers, most=most, ray=on.ray, gpus_per_worker=on.gpus_per_worker, on_notice=notice
    )


def _run(tasks: "Sequence[Task]", handles: "Sequence[WorkerHandle]", ledger: "Ledger", board: "Board") -> None:
    """Runs all tasks; raises if no worker can work."""
    from latentsync_trt.batch.dispatch import Dispatcher
    from latentsync_trt.batch.tasks import Event

    ledger.add(tasks)

    def on_event(event: Event) -> None:
        ledger.record(event)
        board(event)

    with board, interruption("interrupted; the same command with --resume goes on"):
        dispatcher = Dispatcher(handles, on_event)
        try:
            for task in tasks:
                dispatcher.submit(task)
            dispatcher.wait()
        finally:
            dispatcher.close()
            ledger.reclaim()
