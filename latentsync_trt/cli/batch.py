"""`latentsync-trt batch`: many clips, on all GPUs of this machine or on a Ray cluster."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.cli.options import (
    LocalPath,
    build,
    bundle_option,
    options_from,
    provider_option,
    worker_options,
)
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.option_fields import FILES, HARDWARE
from latentsync_trt.paths import check_folder_to_write
from latentsync_trt.stopping import interruption

if TYPE_CHECKING:
    from latentsync_trt.batch.job_file import BatchRow, Problem
    from latentsync_trt.batch.ledger import Ledger, Row
    from latentsync_trt.batch.tasks import Event, Task, WorkerHandle
    from latentsync_trt.cli.board import Show

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
@worker_options
@click.option(
    "--scratch", type=LocalPath(folder=True), panel=HARDWARE, help="Folder of each worker for files from URLs."
)
@options_from(RuntimeOptions)
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
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

    JOBS is a .csv file whose first row names its columns (video, audio, output, and any option of `sync`), a .jsonl
    file with such objects, or a folder of videos with recordings of the same name. Options given here apply to all rows
    that don't say otherwise. What is done is kept in a ledger beside JOBS. Exit code 1: some clips failed; 2: rows
    cannot work, and none was started.
    """
    from latentsync_trt.batch.job_file import read_rows
    from latentsync_trt.batch.ledger import Ledger
    from latentsync_trt.cli.board import Figures, display, show_summary
    from latentsync_trt.remote_files import is_url

    options = build(SyncOptions, fields)
    found, problems = read_rows(jobs, options, out)
    path = jobs / f"batch{_LEDGER}" if jobs.is_dir() else jobs.with_name(jobs.name + _LEDGER)
    silent, resume = quiet or as_json, resume or retry_failed
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(path)) if path.exists() else None
        settled = {} if ledger is None else _settled(ledger, path, found, resume=resume, retry_failed=retry_failed)
        if out is not None and not is_url(out):
            stack.enter_context(_folder(Path(out)))
        ready = _check([job for job in found if job.task.id not in settled], problems, silent=silent, as_json=as_json)
        failed = [
            (job, row.error or "")
            for job in found
            if (row := settled.get(job.task.id)) is not None and row.state == "failed"
        ]
        figures = Figures({job.task.id: job for job in ready}, len(settled) - len(failed), failed)
        if ready:
            handles = _workers(bundle, len(ready), fields, quiet=quiet, as_json=as_json)
            ledger = ledger or stack.enter_context(Ledger.open(path))
            if not resume:
                ledger.remove(row.task.id for row in ledger.rows())
            with display(figures, as_json=as_json, quiet=quiet) as show:
                _run([job.task for job in ready], handles, ledger, show)
    show_summary(figures, quiet=quiet, as_json=as_json)
    if figures.failed:
        raise SystemExit(1)


def _settled(
    ledger: "Ledger", path: Path, jobs: "Sequence[BatchRow]", *, resume: bool, retry_failed: bool
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
    wanted, rows = {job.task.id for job in jobs}, ledger.rows()
    # Else rows that were edited or removed would count as unfinished for good.
    ledger.remove(row.task.id for row in rows if row.task.id not in wanted and row.state != "done")
    ended = ("done",) if retry_failed else ("done", "failed")
    return {row.task.id: row for row in rows if row.task.id in wanted and row.state in ended}


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Makes a folder for outputs; removes it if none came."""
    check_folder_to_write(path, "--out")
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            path.rmdir()


def _check(
    jobs: "Sequence[BatchRow]", problems: "Sequence[Problem]", *, silent: bool, as_json: bool
) -> "list[BatchRow]":
    """The rows in the order in which they run: longest first, so that workers end together.

    Raises:
        InputError: some cannot work; says why for each.
    """
    from latentsync_trt.batch.job_file import check_rows
    from latentsync_trt.cli.board import show_problems
    from latentsync_trt.cli.show import progress_bar
    from latentsync_trt.types import Progress

    with progress_bar(hidden=silent) as show:
        good, more = check_rows(jobs, lambda count: show(Progress("checking rows", count, len(jobs))))
    if problems := sorted([*problems, *more], key=lambda problem: (len(problem.where), problem.where)):
        show_problems(problems, as_json=as_json)
        bad = {problem.where for problem in problems}
        rows = len(bad.union(job.where for job in jobs))
        raise InputError(f"{len(bad)} of {rows} rows cannot work, and none was started; correct or remove them")
    return sorted(good, key=lambda job: -job.cost)


def _workers(
    bundle: str | None, most: int, fields: dict[str, Any], *, quiet: bool, as_json: bool
) -> "list[WorkerHandle]":
    from latentsync_trt.batch.tasks import WorkerSettings
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import describe_choice, find_bundle
    from latentsync_trt.cli.board import show_notice
    from latentsync_trt.cli.show import say

    if bundle is None:
        folder, why = find_bundle(bundle)
        bundle = str(folder)
        if not (quiet or as_json):
            say(describe_choice(folder, why))
    scratch = fields["scratch"] and str(fields["scratch"].absolute())
    settings = WorkerSettings(bundle, fields["provider"], build(RuntimeOptions, fields), scratch)
    return make_workers(
        settings,
        fields["workers"],
        most=most,
        ray=fields["ray"],
        gpus_per_worker=fields["gpus_per_worker"],
        on_notice=lambda text: show_notice(text, quiet=quiet, as_json=as_json),
    )


def _run(tasks: "Sequence[Task]", handles: "Sequence[WorkerHandle]", ledger: "Ledger", show: "Show") -> None:
    """Runs all tasks; raises if no worker can work."""
    from latentsync_trt.batch.dispatch import Dispatcher

    ledger.add(tasks)
    showing = threading.Lock()

    def on_event(event: "Event") -> None:
        ledger.record(event)
        with showing:
            show(event)

    with interruption("interrupted; the same command with --resume goes on"):
        dispatcher = Dispatcher(handles, on_event)
        try:
            for task in tasks:
                dispatcher.submit(task)
            dispatcher.wait()
        finally:
            dispatcher.close()
            ledger.reclaim()
