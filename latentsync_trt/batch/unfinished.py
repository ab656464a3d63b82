"""Which rows of a job file are still to be done, by the ledger of earlier calls."""

from collections.abc import Sequence
from dataclasses import replace

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.remote_files import is_url
from latentsync_trt.paths import path_exists


def unfinished_rows(store: JobStore, rows: Sequence[BatchRow]) -> list[BatchRow]:
    """The rows that are not done, or whose output was deleted since.

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
        is_done = entry is not None and entry.state == "done" and _is_there(row.task.output)
        if entry is not None and entry.state == "waiting" and entry.attempts:
            options = replace(row.task.options, overwrite=True)
            unfinished.append(replace(row, task=replace(row.task, options=options)))
        elif row.problem or not is_done:
            unfinished.append(row)
    return unfinished


def _is_there(output: str) -> bool:
    return is_url(output) or path_exists(output)
