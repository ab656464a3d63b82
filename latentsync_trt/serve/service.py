"""Jobs of the service: their folders, states, limits and metrics. Knows nothing of HTTP."""

import logging
import re
import shutil
import sqlite3
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeVar
from urllib.parse import urlsplit

from latentsync_trt import stopping
from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.job_store import OPEN, JobStore, Row, State
from latentsync_trt.batch.remote_files import shown
from latentsync_trt.batch.tasks import CanceledEvent, Event, Failed, Finished, Moved, Started, WorkerHandle, WorkerState
from latentsync_trt.errors import Busy, InputError, LatentSyncError, OutputError
from latentsync_trt.files import whole_file
from latentsync_trt.serve.admission import INPUTS, RETRY_S, Form, Limits, NotNow, UnknownJob, fetch_missing
from latentsync_trt.serve.checks import Pool, check_form
from latentsync_trt.serve.events import WEBHOOK_VARIABLE, Webhooks, log_step
from latentsync_trt.serve.events import JobStatus as JobStatus
from latentsync_trt.types import Progress

_ID = re.compile(r"[0-9a-f]{32}")
_SWEEP_S = 60.0
_ATTEMPTS = 3
_IDLE = Progress("", 0, None)
_CHECKS = 4, 1.5e9, 120.0
"""Jobs whose files are checked at the same time; bytes and seconds that each may need for it."""

_MOST_ARRIVING = 64
"""Uploads at the same time; they take no place in the queue before they are complete."""
_RECOVER_S = 5.0
_RESERVE_BYTES = 4_000_000
"""Of a file that is deleted when the disk is full, so that the ledger can still be written."""

_PENDING = "webhook"
"""File in the folder of a job whose webhook was not yet called with success."""

_FULL = "service: its disk is full; free some space on it, or try again later"

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Service:
    """Runs jobs on workers; thread-safe. Each job has a folder of its own below `folder`, named by its id."""

    def __init__(
        self, folder: Path, handles: Sequence[WorkerHandle], limits: Limits, secret: bytes | None = None
    ) -> None:
        """Starts the workers, and continues jobs of an earlier service that had not ended. On a full disk, too.

        Args:
            secret: signs calls of addresses; without it, jobs may not name one.

        Raises:
            InputError: another service uses the folder. OutputError, OSError: it cannot be written.
        """
        self._jobs = folder.absolute() / "jobs"
        self._jobs.mkdir(0o700, parents=True, exist_ok=True)
        self._reserve = folder.absolute() / "reserve"
        self._store = self._written(lambda: JobStore.open(folder / "ledger.sqlite"))
        self.limits, self._checks = limits, Pool("check of the files", *_CHECKS)
        self._webhooks = Webhooks(secret, private=limits.allow_private_urls) if secret else None
        self.totals = Counter[str]()
        """Since the start: frames, ends by state, failures by kind."""
        self._lock, self._recovering, self._stopped = threading.Lock(), threading.Lock(), threading.Event()
        self._late = deque[Event]()
        """What the ledger could not store, as the disk is full."""
        self._running: dict[str, tuple[Progress, float]] = {}
        """What each running job did last, and when, on `time.monotonic`'s scale."""
        self._arriving = threading.Semaphore(_MOST_ARRIVING)
        self._handles = handles
        self._workers = {handle.name: WorkerState(handle.name, "starting") for handle in handles}
        self._written(self._store.reclaim)
        for row in self._store.rows("waiting"):
            if row.attempts >= _ATTEMPTS:  # else a job that takes all memory would end the service at each start
                cure = "the service's log says more; send a shorter clip, or give the service more memory"
                message = f"job {row.task.id}: service or worker died {row.attempts} times while it ran; {cure}"
                failed = Failed(row.task.id, row.worker or "", message, usage=False, again=False)
                self._written(partial(self._store.record, failed))
        for path in filter(lambda path: _ID.fullmatch(path.name), self._jobs.iterdir()):
            known = self._store.row(path.name)
            if known is None or known.state not in OPEN:  # left by a service that was killed
                self._clear(path.name)
                self._call_webhook(path.name)
        self._dispatcher = Dispatcher(handles, self._on_event, attempts=_ATTEMPTS)
        for row in self._store.rows("waiting"):
            self._dispatcher.submit(row.task, attempts_before=row.attempts)
        threading.Thread(target=self._sweep_often, name="sweep", daemon=True).start()

    def close(self) -> None:
        """Stops the workers; the next service continues jobs that have not ended. May be called again."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
        with suppress(OutputError):  # then they count as killed
            self._store.reclaim(killed=False)
        self._dispatcher.close()
        self._checks.close()
        if self._webhooks is not None:
            self._webhooks.close()
        self._store.close()

    def problem(self) -> str:
        """Returns why no job can run; empty if one can."""
        states = self.workers()
        if self._stopped.is_set():
            return "the service stops"
        if not self.recover():
            return _FULL
        if any(each.state in ("ready", "running") for each in states):
            return ""
        return "; ".join(f"{each.worker}: {each.state} {each.detail}".rstrip() for each in states)

    def check(self) -> None:
        """Raises `LatentSyncError` if the service must be started again, as no worker is left."""
        if all(each.state == "closed" for each in self.workers()) and not self._stopped.is_set():
            raise LatentSyncError(f"service: cannot work any more: {self.problem()}; jobs wait for the next start")

    @contextmanager
    def receiving(self) -> Iterator[tuple[str, Path]]:
        """Gives the id and folder of a new job, while its files arrive; deleted if the block submits nothing.

        Raises:
            Busy: as many jobs wait or arrive as may, or the service stops. OutputError: nothing can be stored.
        """
        if not self.recover():
            raise OutputError(_FULL)
        with self._lock:
            if self._stopped.is_set():
                raise Busy("service: stops; try again later")
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
        """Checks the files of a received job, and queues it.

        Raises:
            Busy: the queue is full. Others as `fetch_missing`, `Pool.call` and `check_form`.
        """
        try:
            if url := form.texts.get("webhook", ""):
                if urlsplit(url).scheme.lower() not in ("http", "https") or not urlsplit(url).hostname:
                    raise InputError(f"webhook: {shown(url)[:200]}: is no address that begins with https or http")
                if self._webhooks is None:
                    raise InputError(f"webhook: none is called here; start the service with ${WEBHOOK_VARIABLE}")
            folder = self._jobs / job_id
            fetch_missing(form, folder / INPUTS, self.limits)
            task = self._checks.call(check_form, job_id, form, folder, self.limits)
        except LatentSyncError as error:
            error.args = (self._hide(str(error)),)
            raise
        with self._lock:
            self._check_queue()
            if task.webhook:
                (self._jobs / job_id / _PENDING).touch()
            self._store.add([task])
        log_step(job_id, "waiting", label=task.label, **task.names)
        self._dispatcher.submit(task)
        return self.job(job_id)

    def _check_queue(self) -> None:
        if self._store.counts().get("waiting", 0) >= self.limits.max_queue:
            raise Busy(f"queue: {self.limits.max_queue} jobs wait already; try again in {RETRY_S} seconds")

    def job(self, job_id: str) -> JobStatus:
        """Returns a job's state; raises `UnknownJob`."""
        return self._status(self._row(job_id), self._positions())

    def jobs(self, limit: int, offset: int = 0) -> list[JobStatus]:
        """Returns the newest jobs first, without reports."""
        positions = self._positions()
        return [replace(self._status(row, positions), report=None) for row in self._store.newest(limit, offset)]

    def cancel(self, job_id: str) -> JobStatus:
        """Cancels a job; a running one stops soon. Raises `UnknownJob`, or `NotNow` if it has ended otherwise."""
        self._row(job_id)
        if not self._dispatcher.cancel(job_id) and (state := self._row(job_id).state) != "canceled":
            raise NotNow(f"job {job_id}: has ended as {state}; delete it instead")
        return self.job(job_id)

    def delete(self, job_id: str) -> None:
        """Forgets a job, cancels it if it waits or runs, and deletes its files; raises `UnknownJob`."""
        self._row(job_id)
        self._written(lambda: self._store.remove([job_id]))  # which frees space
        log_step(job_id, "deleted")
        if not self._dispatcher.cancel(job_id):  # else its last event deletes them
            shutil.rmtree(self._jobs / job_id, ignore_errors=True)

    def folder(self, job_id: str) -> Path:
        """Returns the folder of a job; raises `UnknownJob`."""
        self._row(job_id)
        return self._jobs / job_id

    def result(self, job_id: str) -> Path:
        """Returns the video of a job; raises `UnknownJob`, or `NotNow` if there is none."""
        row = self._row(job_id)
        if row.state != "done":
            raise NotNow(f"job {job_id}: is {row.state}, without a result; " + self._hide(row.error or "wait for done"))
        return Path(row.task.output)

    def counts(self) -> dict[State, int]:
        return self._store.counts()

    def workers(self) -> list[WorkerState]:
        with self._lock:
            states = [(self._workers[handle.name], handle.hangs) for handle in self._handles]
        return [replace(state, state="hangs") if hangs else state for state, hangs in states]

    def providers(self) -> list[str]:
        """Returns the execution providers that the workers run on, as far as they are known."""
        return sorted({handle.provider for handle in self._handles if handle.provider})

    def sweep(self, now_s: float | None = None) -> None:
        """Deletes jobs that ended more than `Limits.keep_hours` ago."""
        oldest_s = (time.time() if now_s is None else now_s) - self.limits.keep_hours * 3600
        for row in self._store.rows():
            if row.state not in OPEN and (row.ended_s or 0.0) < oldest_s:
                self._written(partial(self._store.remove, [row.task.id]))
                shutil.rmtree(self._jobs / row.task.id, ignore_errors=True)

    def recover(self) -> bool:
        """Stores what could not be stored while the disk was full, and makes a reserve for the next time.

        Returns whether there is space now, for jobs and where uploads arrive.
        """
        try:
            with self._recovering:
                while self._late:
                    self._store.record(self._late[0])
                    self._follow(self._late.popleft())
                if not self._reserve.exists():
                    with whole_file(self._reserve) as part:
                        part.write_bytes(bytes(_RESERVE_BYTES))
            return min(shutil.disk_usage(each).free for each in (self._jobs, gettempdir())) >= _RESERVE_BYTES
        except (OSError, sqlite3.Error):
            return False

    def _sweep_often(self) -> None:
        while not self._stopped.is_set():
            try:
                self.recover()
                self.sweep()
            except (OSError, sqlite3.Error) as error:  # the next one may work
                _log.warning("%s", error)
            self._stopped.wait(_SWEEP_S if self._reserve.exists() else _RECOVER_S)

    def _written(self, write: Callable[[], T]) -> T:
        """Returns `write()`, which changes the ledger; on a full disk it gets the space of the reserve."""
        try:
            return write()
        except OutputError:
            if not self._reserve.exists():
                raise
            self._reserve.unlink()
            return write()

    def _row(self, job_id: str) -> Row:
        row = self._store.row(job_id) if _ID.fullmatch(job_id) else None
        if row is None:
            raise UnknownJob(f"job {job_id[:40]}: does not exist, or was deleted; list the jobs")
        return row

    def _positions(self) -> dict[str, int]:
        return {row.task.id: number for number, row in enumerate(self._store.rows("waiting"), 1)}

    def _status(self, row: Row, positions: Mapping[str, int]) -> JobStatus:
        progress, told_s = self._running.get(row.task.id, (_IDLE, 0.0))
        report, left_s = row.report or {}, progress.seconds_left
        return JobStatus(
            id=row.task.id,
            state=row.state,
            label=row.task.label,
            files=dict(row.task.names),
            created_s=row.created_s,
            started_s=row.started_s,
            ended_s=None if row.state in OPEN else row.ended_s,
            attempts=row.attempts,
            position=positions.get(row.task.id),
            worker=row.worker,
            stage=progress.stage or None,
            done=report.get("frames", progress.done),
            total=report.get("frames", progress.total),
            frames_per_s=report.get("frames_per_s", progress.frames_per_s or None),
            seconds_left=None if left_s is None else max(left_s + told_s - time.monotonic(), 0.0),
            error=self._hide(row.error),
            report=self._hide(row.report),
        )

    def _hide(self, value: Any) -> Any:
        """Returns text, lists and objects without the folders of jobs."""
        if isinstance(value, str):
            return re.sub(re.escape(str(self._jobs)) + rf"[\\/]{_ID.pattern}[\\/](?:{INPUTS}[\\/])?", "", value)
        if isinstance(value, Mapping):
            return {name: self._hide(each) for name, each in value.items()}
        return [self._hide(each) for each in value] if isinstance(value, list | tuple) else value

    def _on_event(self, event: Event) -> None:
        """Stores and counts what happens; called by the threads of workers."""
        stops = self._stopped.is_set() or (isinstance(event, Failed) and stopping.exit_code())
        if stops and not isinstance(event, Finished):
            return  # what a stop breaks off goes on later
        if isinstance(event, WorkerState):
            with self._lock:
                self._workers[event.worker] = event
            if event.state == "lost":
                _log.warning("%s: lost: %s", event.worker, event.detail)
            return
        try:
            self._written(lambda: self._store.record(event))
        except OutputError as error:
            if isinstance(event, Started):
                raise  # it fails the job
            _log.warning("%s", error)
            self._late.append(event)
            return
        self._follow(event)

    def _follow(self, event: Event) -> None:
        """Counts an event that is stored, and deletes what it makes superfluous."""
        with self._lock:
            self._count(event)
        if isinstance(event, Finished | CanceledEvent) or (isinstance(event, Failed) and not event.again):
            self._clear(event.task_id)
            self._call_webhook(event.task_id)

    def _call_webhook(self, job_id: str) -> None:
        """Tells the end of a job to the address that it names, unless that was done."""
        pending, row = self._jobs / job_id / _PENDING, self._store.row(job_id)
        if row is None or self._webhooks is None or not pending.exists():
            return
        job = replace(self._status(row, {}), report=None)
        self._webhooks.send(job, row.task.webhook, partial(pending.unlink, missing_ok=True))

    def _clear(self, job_id: str) -> None:
        """Deletes what a job that has ended needs no more: inputs and work folder; all of one that is forgotten."""
        folder, known = self._jobs / job_id, self._store.row(job_id) is not None
        for path in [each for each in folder.glob("*") if each.is_dir()] if known else [folder]:
            shutil.rmtree(path, ignore_errors=True)

    def _count(self, event: Event) -> None:
        if isinstance(event, Finished | CanceledEvent | Failed):
            self._running.pop(event.task_id, None)
        match event:
            case Started(task_id, worker, attempt):
                log_step(task_id, "running", worker=worker, attempt=attempt)
                self._running[task_id] = _IDLE, 0.0
            case Moved(task_id, _, progress):
                (before, _), self._running[task_id] = self._running[task_id], (progress, time.monotonic())
                if progress.stage != before.stage:
                    log_step(task_id, progress.stage, frames=progress.total)
                if progress.writes:
                    self.totals["frames"] += progress.done - (before.done if before.writes else 0)
            case Finished(task_id, _, done):
                log_step(task_id, "done", seconds=round(done.seconds, 1), frames=done.report["frames"])
                self.totals["done"] += 1
            case Failed(task_id, _, message, usage, again):
                log_step(task_id, "lost, runs again" if again else "failed", reason=self._hide(message))
                self.totals["worker" if again else "input" if usage else "run"] += 1
                self.totals["failed"] += not again
            case CanceledEvent(task_id):
                log_step(task_id, "canceled")
                self.totals["canceled"] += 1
