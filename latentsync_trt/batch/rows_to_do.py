"""Runs the rows of a job file that are still to be done, by the ledger of earlier calls."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.remote_files import is_url
from latentsync_trt.batch.tasks import Event
from latentsync_trt.paths import path_exists


def unfinished_rows(store: JobStore, rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Returns the rows that are not done, or whose output was deleted since.

    Forgets what the job file no longer has. Where a worker was killed, its output may be there
    already, and is replaced.
    """
    store.reclaim()
    entries = {entry.task.id: entry for entry in store.rows()}
    ids = {row.task.id for row in rows}
    # Else rows that were edited or removed would count as unfinished for good.
    store.remove(id_ for id_, entry in entries.items() if id_ not in ids and entry.state != "done")
    unfinished = []
    for row in rows:
        entry = entries.get(row.task.id)
        output = row.task.output
        is_done = entry is not None and entry.state == "done"
        if is_done and not is_url(output):
            is_done = path_exists(output)
        if entry is not None and entry.state == "waiting" and entry.attempts:
            options = replace(row.task.options, overwrite=True)
            unfinished.append(replace(row, task=replace(row.task, options=options)))
        elif row.problem or not is_done:
            unfinished.append(row)
    return unfinished


def run_rows(
    rows: Sequence[BatchRow],
    workers: Sequence[WorkerHandle],
    ledger: JobStore,
    on_event: Callable[[Event], None],
    on_tick: Callable[[], None],
) -> None:
    """Runs all rows on the workers; the ledger gets their events before `on_event`, and `on_tick`
    is called in between.
    """

    def record(event: Event) -> None:
        ledger.record(event)
        on_event(event)

    ledger.add(row.task for row in rows)
    with closing(Dispatcher(workers, record)) as dispatcher:
        for row in rows:
            dispatcher.submit(row.task)
        dispatcher.wait(on_tick)
