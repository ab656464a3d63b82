"""The jobs of the service: their states and results, canceling and deleting them. Knows nothing of
HTTP.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.job_store import OPEN, JobRow, JobStore, State
from latentsync_trt.batch.tasks import ReportValues
from latentsync_trt.serve.admission import NotNow, UnknownJob
from latentsync_trt.serve.events import JobEvents, log_step
from latentsync_trt.serve.folders import JOB_ID, JobFolders


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The body of answers about a job.

    `label`, `files`: the client's names for the job, and for its files by field. `position`: in the
    queue, 1 = next. `done` of `total` frames (None = unknown) have passed `stage`. Times are
    seconds since 1970.
    """

    id: str
    state: State
    label: str
    files: dict[str, str]
    created_s: float
    started_s: float | None
    ended_s: float | None
    attempts: int
    position: int | None
    worker: str | None
    stage: str | None
    done: int
    total: int | None
    frames_per_s: float | None
    seconds_left: float | None
    error: str | None
    report: ReportValues | None
    redo_of: str | None
    """The job of whose result this one does a part again."""


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """All jobs that are kept. Methods that take an id raise `UnknownJob` if no job has it."""

    _store: JobStore
    _folders: JobFolders
    _events: JobEvents
    _dispatcher: Dispatcher

    def status(self, job_id: str) -> JobStatus:
        return self._statuses([self._row(job_id)])[0]

    def newest(self, limit: int, offset: int = 0, label: str = "") -> list[JobStatus]:
        """Returns the newest jobs first, all or those with a label."""
        return self._statuses(self._store.newest(limit, offset, label))

    def counts(self) -> dict[State, int]:
        return self._store.counts()

    def folder(self, job_id: str) -> Path:
        """Returns the folder of a job."""
        self._row(job_id)
        return self._folders.jobs / job_id

    def result(self, job_id: str) -> tuple[Path, str]:
        """Returns the video of a job, and a name for it; raises `NotNow` if there is none."""
        row = self._row(job_id)
        if row.state != "done":
            why = self.status(job_id).error or "wait for done"
            raise NotNow(f"job {job_id}: is {row.state}, without a result; {why}")
        path = Path(row.task.output)
        kind = "synced" if row.task.options.preview_s is None else "preview"
        video = Path(row.task.names["video"])
        return path, f"{video.stem}-{kind}{path.suffix}"

    def cancel(self, job_id: str) -> JobStatus:
        """Cancels a job; a running one stops soon. Raises `NotNow` if it has ended otherwise."""
        self._row(job_id)
        if not self._dispatcher.cancel(job_id):
            state = self._row(job_id).state
            if state != "canceled":
                raise NotNow(f"job {job_id}: has ended as {state}; delete it instead")
        return self.status(job_id)

    def delete(self, job_id: str) -> None:
        """Forgets a job, cancels it if it waits or runs, and deletes its files."""
        self._row(job_id)
        self._folders.give_reserve()  # on a full disk, the ledger needs its space
        self._store.remove([job_id])
        log_step(job_id, "deleted")
        if not self._dispatcher.cancel(job_id):  # else its last event deletes them
            self._folders.remove(job_id)

    def delete_old(self, keep_hours: float, now_s: float | None = None) -> None:
        """Deletes jobs that ended more than `keep_hours` ago."""
        if now_s is None:
            now_s = time.time()
        oldest_s = now_s - keep_hours * 3600
        for row in self._store.rows():
            if row.state not in OPEN and (row.ended_s or 0.0) < oldest_s:
                with suppress(UnknownJob):  # deleted meanwhile
                    self.delete(row.task.id)

    def _row(self, job_id: str) -> JobRow:
        row = self._store.row(job_id) if JOB_ID.fullmatch(job_id) else None
        if row is None:
            raise UnknownJob(f"job {job_id[:40]}: does not exist, or was deleted; list the jobs")
        return row

    def _statuses(self, rows: Sequence[JobRow]) -> list[JobStatus]:
        positions = dict[str, int]()
        if any(row.state == "waiting" for row in rows):
            for number, row in enumerate(self._store.rows("waiting"), 1):
                positions[row.task.id] = number
        return [self._status(row, positions.get(row.task.id)) for row in rows]

    def _status(self, row: JobRow, position: int | None) -> JobStatus:
        progress = self._events.progress_of(row.task.id)
        report = row.report or {}
        names = row.task.client_names()
        return JobStatus(
            id=row.task.id,
            state=row.state,
            label=row.task.label,
            files=dict(row.task.names),
            created_s=row.created_s,
            started_s=row.started_s,
            ended_s=None if row.state in OPEN else row.ended_s,
            attempts=row.attempts,
            position=position,
            worker=row.worker,
            stage=progress.stage or None,
            done=report.get("frames", progress.done),
            total=report.get("frames", progress.total),
            frames_per_s=report.get("frames_per_s", progress.frames_per_s or None),
            seconds_left=progress.seconds_left,
            error=self._folders.in_client_words(row.error, names),
            report=self._folders.in_client_words(row.report, names),
            redo_of=row.task.redo_of or None,
        )
