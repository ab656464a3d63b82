"""Jobs of the service: their folders, states, limits and metrics. Knows nothing of HTTP."""

import json
import logging
import re
import shutil
import sqlite3
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any, cast

from latentsync_trt import stopping
from latentsync_trt.batch.dispatch import ATTEMPTS, Dispatcher, slot_names
from latentsync_trt.batch.job_store import OPEN, JobStore, Row, State
from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.tasks import (
    CanceledEvent,
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    WorkerState,
)
from latentsync_trt.errors import Busy, LatentSyncError, OutputError
from latentsync_trt.files import whole_file
from latentsync_trt.serve.admission import INPUTS, RETRY_S, Form, Limits, NotNow, UnknownJob
from latentsync_trt.serve.checks import Pool, check_form
from latentsync_trt.types import Progress

_ID = re.compile(r"[0-9a-f]{32}")
_SWEEP_S = 60.0
_IDLE = Progress("", 0, None)
_CHECKS = 4, 1.5e9, 120.0
"""Jobs whose files are checked at the same time; bytes and seconds that each may need for it."""

_MOST_ARRIVING = 64
"""Uploads at the same time; they take no place in the queue before they are complete."""
_AGAIN_S = 2.0
"""After which a thread tries again to store what has happened."""
_RESERVE_BYTES = 4_000_000
"""Of a file that is deleted when the disk is full, so that the ledger can still be written."""

FULL = "service: its disk is full; free some space on it, or try again later"
_log = logging.getLogger(__name__)


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
    report: dict[str, Any] | None


class Service:
    """Runs jobs on workers; thread-safe. Each job has a folder of its own below `folder`, named by
    its id.
    """

    def __init__(
        self,
        folder: Path,
        handles: Sequence[WorkerHandle],
        limits: Limits,
        checks: Pool | None = None,
    ) -> None:
        """Starts the workers, and continues jobs of an earlier service that had not ended, on a
        full disk, too. `checks`: looks at files instead of a pool of its own; closed with the
        service. Raises `InputError` if another service uses the folder, and OSError if it cannot be
        written.
        """
        self._jobs = folder.absolute() / "jobs"
        self._jobs.mkdir(0o700, parents=True, exist_ok=True)
        self._reserve = folder.absolute() / "reserve"
        self._reserve.unlink(missing_ok=True)  # what follows may need its space
        self._store = JobStore(folder / "ledger.sqlite")
        self.limits = limits
        self._checks = checks or Pool("check of the files", *_CHECKS)
        self.totals = Counter[str]()
        """Since the start: frames, ends by state, failures by kind."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._running = dict[str, Progress]()
        self._arriving = threading.Semaphore(_MOST_ARRIVING)
        self._handles = handles
        self._slots = {slot: handle for handle in handles for slot in slot_names(handle)}
        self._workers = {slot: WorkerState(slot, "starting") for slot in self._slots}
        self._store.reclaim()
        for row in self._store.rows("waiting"):
            # else a job that takes all memory would end the service at each start
            if row.attempts >= ATTEMPTS:
                cure = (
                    "the service's log says more; send a "
                    "shorter clip, or give the service more memory"
                )
                message = (
                    f"job {row.task.id}: service or worker died "
                    f"{row.attempts} times while it ran; {cure}"
                )
                self._store.record(
                    Failed(row.task.id, row.worker or "", message, usage=False, again=False)
                )
        waiting = self._store.rows("waiting")
        folders = {path.name for path in self._jobs.iterdir() if _ID.fullmatch(path.name)}
        for left in folders - {row.task.id for row in waiting}:  # by a service that was killed
            self._clear(left)
        self._dispatcher = Dispatcher(handles, self._on_event)
        for row in waiting:
            self._dispatcher.submit(row.task, attempts_before=row.attempts)
        threading.Thread(target=self._sweep_often, name="sweep", daemon=True).start()

    def close(self) -> None:
        """Stops the workers; the next service continues jobs that have not ended. May be called
        again.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        with suppress(OutputError):  # then they count as killed
            self._store.reclaim(killed=False)
        self._dispatcher.close()
        self._checks.close()
        self._store.close()

    def problem(self) -> str:
        """Returns why no job can run; empty if one can."""
        if self._stopped.is_set():
            return "the service stops"
        if not self._has_space():
            return FULL
        states = self.workers()
        works = any(each.state in ("ready", "running") for each in states)
        if works:
            return ""
        return "; ".join(f"{each.worker}: {each.state} {each.detail}".rstrip() for each in states)

    def check(self) -> None:
        """Raises `LatentSyncError` if the service must be started again, as no worker is left."""
        if all(each.state == "closed" for each in self.workers()) and not self._stopped.is_set():
            raise LatentSyncError(
                f"service: cannot work any more: {self.problem()}; jobs wait for the next start"
            )

    @contextmanager
    def receiving(self) -> Iterator[tuple[str, Path]]:
        """Gives the id and folder of a new job, while its files arrive; deleted if the block
        submits nothing.

        Raises:
            Busy: as many jobs wait or arrive as may, or the service stops. OutputError: nothing can
                be stored.
        """
        if not self._has_space():
            raise OutputError(FULL)
        self._check_queue()
        if not self._arriving.acquire(blocking=False):
            raise Busy(f"uploads: {_MOST_ARRIVING} arrive already; try again in {RETRY_S} seconds")
        job_id = uuid.uuid4().hex
        folder = self._jobs / job_id
        try:
            (folder / INPUTS).mkdir(0o700, parents=True)
            yield job_id, folder / INPUTS
        finally:
            if not self._stopped.is_set() and self._store.row(job_id) is None:
                shutil.rmtree(folder, ignore_errors=True)
            self._arriving.release()

    def submit(self, job_id: str, form: Form) -> JobStatus:
        """Checks the files of a received job, and queues it; raises `Busy`, or as `Pool.call` and
        `check_form`.
        """
        try:
            task = self._checks.call(check_form, job_id, form, self._jobs / job_id, self.limits)
        except LatentSyncError as error:
            names = {form.files[field].name: name for field, name in form.names.items()}
            error.args = (self._as_sent(str(error), names),)
            raise
        with self._lock:
            self._check_queue()
            self._store.add([task])
        _log_step(job_id, "waiting", label=task.label, **task.names)
        self._dispatcher.submit(task)
        return self.job(job_id)

    def _check_queue(self) -> None:
        if self._stopped.is_set():
            raise Busy("service: stops; try again later")
        if self._store.counts().get("waiting", 0) >= self.limits.max_queue:
            raise Busy(
                f"queue: {self.limits.max_queue} jobs wait already; try again in {RETRY_S} seconds"
            )

    def job(self, job_id: str) -> JobStatus:
        """Returns a job's state; raises `UnknownJob`."""
        return self._statuses([self._row(job_id)])[0]

    def jobs(self, limit: int, offset: int = 0, label: str = "") -> list[JobStatus]:
        """Returns the newest jobs first, all or those with a label."""
        return self._statuses(self._store.newest(limit, offset, label))

    def cancel(self, job_id: str) -> JobStatus:
        """Cancels a job; a running one stops soon. Raises `UnknownJob`, or `NotNow` if it has ended
        otherwise.
        """
        self._row(job_id)
        if not self._dispatcher.cancel(job_id) and (state := self._row(job_id).state) != "canceled":
            raise NotNow(f"job {job_id}: has ended as {state}; delete it instead")
        return self.job(job_id)

    def delete(self, job_id: str) -> None:
        """Forgets a job, cancels it if it waits or runs, and deletes its files; raises
        `UnknownJob`.
        """
        self._row(job_id)
        self._reserve.unlink(missing_ok=True)  # on a full disk, the ledger needs its space
        self._store.remove([job_id])
        _log_step(job_id, "deleted")
        if not self._dispatcher.cancel(job_id):  # else its last event deletes them
            self._clear(job_id)

    def folder(self, job_id: str) -> Path:
        """Returns the folder of a job; raises `UnknownJob`."""
        self._row(job_id)
        return self._jobs / job_id

    def result(self, job_id: str) -> tuple[Path, str]:
        """Returns the video of a job, and a name for it; raises `UnknownJob`, or `NotNow` if there
        is none.
        """
        row = self._row(job_id)
        if row.state != "done":
            raise NotNow(
                f"job {job_id}: is {row.state}, without a "
                f"result; {self._of_client(row) or 'wait for done'}"
            )
        path = Path(row.task.output)
        what = "synced" if row.task.options.preview_s is None else "preview"
        return path, f"{Path(row.task.names['video']).stem}-{what}{path.suffix}"

    def counts(self) -> dict[State, int]:
        return self._store.counts()

    def workers(self) -> list[WorkerState]:
        with self._lock:
            states = [(self._workers[slot], handle.hangs) for slot, handle in self._slots.items()]
        return [replace(state, state="hangs") if hangs else state for state, hangs in states]

    def providers(self) -> list[str]:
        """Returns the execution providers that the workers run on, as far as they are known."""
        return sorted({handle.provider for handle in self._handles if handle.provider})

    def sweep(self, now_s: float | None = None) -> None:
        """Deletes jobs that ended more than `Limits.keep_hours` ago."""
        oldest_s = (time.time() if now_s is None else now_s) - self.limits.keep_hours * 3600
        for row in self._store.rows():
            if row.state not in OPEN and (row.ended_s or 0.0) < oldest_s:
                with suppress(UnknownJob):  # deleted meanwhile
                    self.delete(row.task.id)

    def _sweep_often(self) -> None:
        while not self._stopped.is_set():
            try:
                self._has_space()
                self.sweep()
            except (OSError, sqlite3.Error) as error:  # the next one may work
                _log.warning("%s", error)
            self._stopped.wait(_SWEEP_S)

    def _has_space(self) -> bool:
        """Returns whether there is space for jobs and where uploads arrive; makes the reserve, if
        it was used.
        """
        try:
            if not self._reserve.exists():
                with whole_file(self._reserve) as part:
                    part.write_bytes(bytes(_RESERVE_BYTES))
            return (
                min(shutil.disk_usage(each).free for each in (self._jobs, gettempdir()))
                >= _RESERVE_BYTES
            )
        except OSError:
            return False

    def _row(self, job_id: str) -> Row:
        row = self._store.row(job_id) if _ID.fullmatch(job_id) else None
        if row is None:
            raise UnknownJob(f"job {job_id[:40]}: does not exist, or was deleted; list the jobs")
        return row

    def _statuses(self, rows: Sequence[Row]) -> list[JobStatus]:
        if any(row.state == "waiting" for row in rows):
            waiting = self._store.rows("waiting")
        else:
            waiting = []
        positions = {row.task.id: number for number, row in enumerate(waiting, 1)}
        return [self._status(row, positions.get(row.task.id)) for row in rows]

    def _status(self, row: Row, position: int | None) -> JobStatus:
        progress = self._running.get(row.task.id) or _IDLE
        report = row.report or {}
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
            error=self._of_client(row),
            report=self._as_sent(row.report, row.task.client_names()),
        )

    def _of_client(self, row: Row) -> str | None:
        """Returns the error of a job in the client's words."""
        return cast(str | None, self._as_sent(row.error, row.task.client_names()))

    def _as_sent(self, value: Any, names: Mapping[str, str]) -> Any:
        """Returns text, or a report, without the folders of jobs, and with the client's names of
        files; `names`: these by the names under which they lie.
        """
        # on Windows, JSON doubles its backslashes
        jobs = re.escape(json.dumps(str(self._jobs))[1:-1])
        folder = rf"{jobs}[\\/]+{_ID.pattern}[\\/]+(?:{INPUTS}[\\/]+)?"
        stored = "|".join(map(re.escape, names)) or "(?!)"

        def named(found: re.Match[str]) -> str:
            # Without a folder before and a suffix, it is a word such as "video".
            is_file = found[2] and (found[1] or "." in found[2])
            if is_file:
                return json.dumps(names[found[2]])[1:-1]
            return found[2] or ""

        pattern = rf"({folder})?(?<![\w.-])({stored})(?![\w-]|\.\w)|{folder}"
        return json.loads(re.sub(pattern, named, json.dumps(value)))

    def _on_event(self, event: Event) -> None:
        """Stores and counts what happens; called by the threads of workers, which wait while the
        disk is full.
        """
        stops = self._stopped.is_set() or (isinstance(event, Failed) and stopping.exit_code())
        if stops and not isinstance(event, Finished):
            return  # what a stop breaks off goes on later
        if isinstance(event, WorkerState):
            with self._lock:
                self._workers[event.worker] = event
            if event.state == "lost":
                _log.warning("%s: lost: %s", event.worker, event.detail)
            return
        while True:
            try:
                self._store.record(event)
                break
            except OutputError as error:
                if self._reserve.exists():
                    self._reserve.unlink(missing_ok=True)
                    continue
                _log.warning("%s", error)
                if self._stopped.wait(_AGAIN_S):
                    return
        with self._lock:
            self._count(event)
        if isinstance(event, Finished | CanceledEvent) or (
            isinstance(event, Failed) and not event.again
        ):
            self._clear(event.task_id)

    def _clear(self, job_id: str) -> None:
        """Deletes what a job that has ended needs no more: inputs and work folder; all of one that
        is forgotten.
        """
        folder = self._jobs / job_id
        if self._store.row(job_id):
            superfluous = [each for each in folder.glob("*") if each.is_dir()]
        else:
            superfluous = [folder]
        for path in superfluous:
            shutil.rmtree(path, ignore_errors=True)

    def _count(self, event: Event) -> None:
        if isinstance(event, Finished | CanceledEvent | Failed):
            self._running.pop(event.task_id, None)
        match event:
            case Started(task_id, worker, attempt):
                _log_step(task_id, "running", worker=worker, attempt=attempt)
                self._running[task_id] = _IDLE
            case Moved(task_id, _, progress):
                before = self._running[task_id]
                self._running[task_id] = progress
                if progress.stage != before.stage:
                    _log_step(task_id, progress.stage, frames=progress.total)
                if progress.writes:
                    self.totals["frames"] += progress.done - (before.done if before.writes else 0)
            case Finished(task_id, _, report):
                _log_step(
                    task_id, "done", seconds=round(report["wall_s"], 1), frames=report["frames"]
                )
                self.totals["done"] += 1
            case Failed(task_id, _, message, usage, again):
                row = self._store.row(task_id)  # None where it was deleted
                reason = self._as_sent(message, {} if row is None else row.task.client_names())
                _log_step(task_id, "lost, runs again" if again else "failed", reason=reason)
                self.totals["worker" if again else "input" if usage else "run"] += 1
                self.totals["failed"] += not again
            case CanceledEvent(task_id):
                _log_step(task_id, "canceled")
                self.totals["canceled"] += 1


def _log_step(job_id: str, step: str, **facts: object) -> None:
    told = [
        f"{name} {' '.join(str(value).split())}"
        for name, value in facts.items()
        if value not in (None, "")
    ]
    _log.info("job %s: %s", job_id, ", ".join([step, *told]))
