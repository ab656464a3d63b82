"""`latentsync-trt batch`: many clips, on all GPUs of this machine or on a Ray cluster."""

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.batch.remote_files import is_url
from latentsync_trt.batch.tasks import WorkerSettings
from latentsync_trt.cli import interruption
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.batch_board import BatchOutput, Board, check_batch
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.option_fields import FILES, HARDWARE
from latentsync_trt.paths import make_folder

if TYPE_CHECKING:
    from latentsync_trt.batch.local import WorkerHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    jobs: Path = flags.argument()
    output: str | None = flags.command_field(
        None,
        "Folder, or URL of one, for outputs that a row does not name.  "
        "[default: that of the video]",
        group=FILES,
        type=flags.OutputFolder(),
        metavar="FOLDER",
    )
    skip_bad: bool = flags.command_field(
        False, "Run the rows that can work although others cannot.", group=FILES
    )
    bundle: str | None = flags.bundle_option()
    sync: SyncOptions = flags.options_of(leave_out=("resume", "redo", "keep_source"))
    provider: str = flags.provider_option()
    workers: int | None = flags.workers_option()
    ray: str | None = flags.ray_option()
    scratch: Path | None = flags.command_field(
        None, "Folder of each worker for files from URLs.", group=HARDWARE, folder=True
    )
    runtime: RuntimeOptions = flags.options_of()
    quiet: bool = flags.quiet_option()
    as_json: bool = flags.command_field(
        False,
        "Print each event to stdout as a line of JSON; a summary last.",
        names=("--json",),
    )


@click.command("batch")
@flags.takes(BatchRequest)
def batch(request: BatchRequest) -> None:
    """JOBS is a .csv file whose first row names its columns (video, audio, output, and any option
    of `sync`), a .jsonl file with such objects, or a folder, whose videos and recordings of one
    name are pairs. Options given here apply to all rows that don't say otherwise. What is done is
    kept in a ledger beside JOBS, or in the folder: the same command runs what is not. Exit code 1:
    some clips failed, or were skipped; 2: rows cannot work, and none was started.
    """
    from latentsync_trt.batch.job_file import ledger_of, read_rows
    from latentsync_trt.batch.job_store import JobStore
    from latentsync_trt.batch.rows_to_do import run_rows, unfinished_rows

    rows = read_rows(request.jobs, request.sync, request.output)
    path = ledger_of(request.jobs)
    output = BatchOutput(as_json=request.as_json, quiet=request.quiet)
    with ExitStack() as stack:
        ledger = None
        unfinished = rows
        if path.exists():
            ledger = stack.enter_context(closing(JobStore(path)))
            unfinished = unfinished_rows(ledger, rows)
        if request.output is not None and not is_url(request.output):
            make_folder(Path(request.output))
        ready = check_batch(unfinished, output, skip=request.skip_bad)
        done_before = len(rows) - len(unfinished)
        board = Board(output, ready, done_before, skipped=len(unfinished) - len(ready))
        if ready:
            workers = _workers_of(request, len(ready), output)
            if ledger is None:
                ledger = stack.enter_context(closing(JobStore(path)))
            with board, interruption("interrupted; the same command goes on"):
                run_rows(ready, workers, ledger, board, board.tick)
        elif done_before:
            output.add_notice(
                f"{path}: all of its rows are done; to run them again, delete it and add "
                "--overwrite"
            )
    board.show_summary()
    if board.failed or board.skipped:
        raise SystemExit(1)


def _workers_of(request: BatchRequest, most: int, output: BatchOutput) -> "list[WorkerHandle]":
    from latentsync_trt.batch.workers import make_workers
    from latentsync_trt.bundle.find import describe_choice, find_bundle

    bundle = request.bundle
    if bundle is None:
        folder, why = find_bundle(None)
        bundle = str(folder)
        output.add_notice(describe_choice(folder, why))
    scratch = None
    if request.scratch is not None:
        scratch = str(request.scratch.absolute())
    settings = WorkerSettings(bundle, request.provider, request.runtime, scratch)
    return make_workers(
        settings, request.workers, most=most, ray=request.ray, on_notice=output.add_notice
    )
