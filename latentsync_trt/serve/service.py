"""Jobs of the service: their folders, states, limits and figures. Knows nothing of HTTP."""

import logging
import re
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from latentsync_trt import stopping
from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.ledger import Ledger, Row, State
from latentsync_trt.batch.tasks import (
    CancelledEvent,
    Event,
    Failed,
    Finished,
    Moved,
    Started,
    WorkerHandle,
    WorkerState,
)
from latentsync_trt.errors import LatentSyncError, OutputError
from latentsync_trt.serve.admission import INPUTS, PAGE, admit
from latentsync_trt.serve.form import Form
from latentsync_trt.serve.limits import Limits, NotNow, QueueFull, UnknownJob
from latentsync_trt.types import Progress

_ID = re.compile(r"[0-9a-f]{32}")
_SWEEP_S = 60.0
_RETRY_S = 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as clients see it.

    `position`: in the queue, 1 = next. `done` of `total` frames (None = unknown) are written, in `stage`.
    `frames_per_s`: while it runs, or of the whole run. Times are seconds since 1970. `report`: that of the run.
    """

    id: str
    state: State
    created_s: float
    started_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0
    position: int | None = None
    worker: str | None = None
    stage: str | None = None
    done: int = 0
    total: int | None = None
    frames_per_s: float | None = None
    seconds_left: float | None = None
    error: str | None = None
    report: dict[str, Any] | None = None


@dataclass(slots=True)
class Figures:
    """What the service has done since it started. `painting_s`: seconds of all runs after their start-up."""

    frames: int = 0
    windows: int = 0
    painting_s: float = 0.0
    ended: Counter[str] = field(default_factory=Counter)
    """Jobs by state at their end."""
    failures: Counter[str] = field(default_factory=Counter)
    """By kind: "input" (the client's files or options), "run", "worker" (it was lost; the job runs again)."""


@dataclass(slots=True)
class _Running:
    """Progress of a running job, and when and where its first written frame was."""

    progress: Progress | None = None
    first: tuple[float, int] | None = None
    last_s: float = 0.0

    def frames_per_s(self) -> float | None:
        if self.first is None or self.progress is None or self.last_s <= self.first[0]:
            return None
        return (self.progress.done - self.first[1]) / (self.last_s - self.first[0])


class Service:
    """Runs jobs on workers; thread-safe. Each job has a folder of its own below `folder`, named by its id."""

    def __init__(self, folder: Path, handles: Sequence[WorkerHandle], limits: Limits) -> None:
        """Opens the ledger in `folder`, which is made if it does not exist; `start` begins to work.

        Raises:
            InputError: another service uses the folder. OutputError, OSError: it cannot be written.
        """
        self._jobs = folder.absolute() / "jobs"
        self._jobs.mkdir(0o700, parents=True, exist_ok=True)
        self._ledger = Ledger.open(folder / "ledger.sqlite")
        self.limits, self.figures = limits, Figures()
        self._handles = tuple(handles)
        self._dispatcher: Dispatcher | None = None
        self._lock, self._stopped = threading.RLock(), threading.Event()
        self._fault = ""
        self._running: dict[str, _Running] = {}
        self._receiving: set[str] = set()
        self._workers = {handle.name: WorkerState(handle.name, "starting") for handle in handles}

    def start(self) -> None:
        """Starts the workers, and goes on with jobs of an earlier service that had not ended."""
        self._ledger.reclaim()
        self.sweep()
        self._dispatcher = Dispatcher(self._handles, self._on_event)
        for row in self._ledger.rows("waiting"):
            self._dispatcher.submit(row.task, attempts_before=row.attempts)
        threading.Thread(target=self._sweep_often, name="sweep", daemon=True).start()

    def close(self) -> None:
        """Stops the workers; jobs that have not ended go on in the next service. Closing again does nothing."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
        if self._dispatcher is not None:
            self._dispatcher.close()
        self._ledger.close()

    def problem(self) -> str:
        """Why no job can run; empty if one can."""
        states = self.workers()
        if self._stopped.is_set() or self._fault:
            return self._fault or "the service stops"
        if any(each.state in ("ready", "running") for each in states):
            return ""
        return "; ".join(f"{each.worker}: {each.state} {each.detail}".rstrip() for each in states) or "no workers"

    def check(self) -> None:
        """Raises `LatentSyncError` if the service must be started again, as no worker is left."""
        given_up = self._workers and all(each.state == "closed" for each in self.workers())
        if (given_up or self._fault) and not self._stopped.is_set():
            raise LatentSyncError(f"service: cannot work any more: {self.problem()}; jobs wait for the next start")

    @contextmanager
    def receiving(self) -> Iterator[tuple[str, Path]]:
        """Id and folder of a new job, while its files arrive; deleted if the block raises, or submits nothing.

        Raises:
            QueueFull: as many jobs wait or arrive as may.
        """
        with self._lock:
            if self._ledger.counts().get("waiting", 0) + len(self._receiving) >= self.limits.max_queue:
                most = self.limits.max_queue
                raise QueueFull(f"queue: {most} jobs wait already; try again in {_RETRY_S} seconds", _RETRY_S)
            job_id = uuid.uuid4().hex
            self._receiving.add(job_id)
        try:
            (self._jobs / job_id / INPUTS).mkdir(0o700, parents=True)
            yield job_id, self._jobs / job_id / INPUTS
        finally:
            with self._lock:
                self._receiving.discard(job_id)
                known = self._ledger.row(job_id) is not None
            if not known:
                shutil.rmtree(self._jobs / job_id, ignore_errors=True)

    def submit(self, job_id: str, form: Form) -> Job:
        """Checks the files of a job that is being received, and queues it. Raises as `admit`."""
        try:
            task = admit(job_id, form, self._jobs / job_id, self.limits)
        except LatentSyncError as error:
            error.args = (self._hide(str(error)),)
            raise
        if self._dispatcher is None or self._stopped.is_set():
            raise NotNow("service: stops; send the job again later")
        self._ledger.add([task])
        self._dispatcher.submit(task)
        return self.job(job_id)

    def job(self, job_id: str) -> Job:
        """A job's state; raises `UnknownJob`."""
        return self._describe(self._row(job_id), self._positions())

    def jobs(self, limit: int, offset: int = 0) -> list[Job]:
        """The newest jobs first, without reports."""
        positions = self._positions()
        rows = self._ledger.rows()[::-1][offset : offset + limit]
        return [self._describe(row, positions, report=False) for row in rows]

    def cancel(self, job_id: str) -> Job:
        """Cancels a job; a running one stops soon. Raises `UnknownJob`, or `NotNow` if it has ended."""
        state = self._row(job_id).state
        if state not in ("waiting", "running") or self._dispatcher is None or not self._dispatcher.cancel(job_id):
            raise NotNow(f"job {job_id}: has ended as {self._row(job_id).state}; delete it instead")
        return self.job(job_id)

    def delete(self, job_id: str) -> None:
        """Forgets a job, cancels it if it waits or runs, and deletes its files; raises `UnknownJob`."""
        self._row(job_id)
        self._ledger.remove([job_id])
        # Not within our lock: events come from threads that hold the dispatcher's.
        still = self._dispatcher is not None and self._dispatcher.cancel(job_id)
        if not still:  # else when its worker has stopped
            shutil.rmtree(self._jobs / job_id, ignore_errors=True)

    def result(self, job_id: str) -> Path:
        """The video of a job; raises `UnknownJob`, or `NotNow` if there is none."""
        row = self._row(job_id)
        if row.state != "done":
            raise NotNow(f"job {job_id}: is {row.state}, without a result; " + self._hide(row.error or "wait for done"))
        return Path(row.task.output)

    def page(self, job_id: str) -> Path:
        """The page of a job's report; raises `UnknownJob`, or `NotNow` if there is none."""
        self.result(job_id)
        path = self._jobs / job_id / PAGE
        if not path.is_file():
            raise NotNow(f'job {job_id}: has no page; send "report": true in its options')
        return path

    def counts(self) -> Mapping[State, int]:
        """Number of jobs by state."""
        return self._ledger.counts()

    def frames_per_s(self) -> float:
        """Of all running jobs together."""
        with self._lock:
            return sum(each.frames_per_s() or 0.0 for each in self._running.values())

    def workers(self) -> list[WorkerState]:
        """What each worker does."""
        with self._lock:
            return list(self._workers.values())

    def sweep(self, now_s: float | None = None) -> None:
        """Deletes jobs whose time is over, inputs of jobs that have ended, and folders without a job."""
        oldest_s = (time.time() if now_s is None else now_s) - self.limits.keep_hours * 3600
        ended = [row for row in self._ledger.rows() if row.state not in ("waiting", "running")]
        self._ledger.remove([row.task.id for row in ended if (row.ended_s or 0.0) < oldest_s])
        with self._lock:
            keep = {row.task.id: row.state for row in self._ledger.rows()} | dict.fromkeys(self._receiving, "waiting")
            keep |= dict.fromkeys(self._running, "running")
            folders = [path for path in self._jobs.iterdir() if _ID.fullmatch(path.name)]
        for path in folders:
            state = keep.get(path.name)
            if state not in ("waiting", "running"):
                shutil.rmtree(path if state is None else path / INPUTS, ignore_errors=True)

    def _sweep_often(self) -> None:
        while not self._stopped.wait(_SWEEP_S):
            with suppress(OSError):
                self.sweep()

    def _row(self, job_id: str) -> Row:
        row = self._ledger.row(job_id) if _ID.fullmatch(job_id) else None
        if row is None:
            raise UnknownJob(f"job {job_id[:40]}: does not exist, or was deleted; list the jobs")
        return row

    def _positions(self) -> dict[str, int]:
        return {row.task.id: number for number, row in enumerate(self._ledger.rows("waiting"), 1)}

    def _describe(self, row: Row, positions: Mapping[str, int], *, report: bool = True) -> Job:
        with self._lock:
            running = self._running.get(row.task.id, _Running()) if row.state == "running" else _Running()
            progress, rate = running.progress or Progress("", 0, None), running.frames_per_s()
        found = row.report or {}
        left = progress.total - progress.done if progress.total is not None else None
        return Job(
            id=row.task.id,
            state=row.state,
            created_s=row.created_s,
            started_s=row.started_s,
            ended_s=row.ended_s if row.state not in ("waiting", "running") else None,
            attempts=row.attempts,
            position=positions.get(row.task.id),
            worker=row.worker,
            stage=progress.stage or None,
            done=found.get("frames", progress.done),
            total=found.get("frames", progress.total),
            frames_per_s=found.get("frames_per_s", rate),
            seconds_left=left / rate if left is not None and rate else None,
            error=None if row.error is None else self._hide(row.error),
            report=self._hide(found) if found and report else None,
        )

    def _hide(self, value: Any) -> Any:
        """Text, lists and objects without the folders of jobs."""
        if isinstance(value, str):
            return re.sub(re.escape(str(self._jobs)) + rf"[\\/]{_ID.pattern}[\\/](?:{INPUTS}[\\/])?", "", value)
        if isinstance(value, Mapping):
            return {name: self._hide(each) for name, each in value.items()}
        return [self._hide(each) for each in value] if isinstance(value, list | tuple) else value

    def _on_event(self, event: Event) -> None:
        """Stores and counts what happens; called by one thread at a time."""
        if self._stopped.is_set() or (isinstance(event, Failed) and stopping.requested()):
            return  # what a stop breaks off goes on later
        if isinstance(event, WorkerState):
            with self._lock:
                before = self._workers[event.worker]
                given_up = event.state == "closed" and not event.detail
                self._workers[event.worker] = replace(event, detail=before.detail) if given_up else event
            if event.state == "lost":
                _log.warning("%s: lost: %s", event.worker, event.detail)
            return
        try:
            self._ledger.record(event)
        except OutputError as error:
            if isinstance(event, Started):
                raise  # it fails the job
            self._fault = str(error)
            return
        with self._lock:
            self._count(event)
        if isinstance(event, Finished | CancelledEvent) or (isinstance(event, Failed) and not event.again):
            known = self._ledger.row(event.task_id) is not None
            folder = self._jobs / event.task_id
            shutil.rmtree(folder / INPUTS if known else folder, ignore_errors=True)

    def _count(self, event: Event) -> None:
        match event:
            case Started(task_id):
                self._running[task_id] = _Running()
            case Moved(task_id, _, progress):
                self._move(self._running.setdefault(task_id, _Running()), progress)
            case Finished(task_id, _, done):
                self._running.pop(task_id, None)
                self.figures.ended["done"] += 1
                self.figures.windows += done.report.get("windows", 0)
                self.figures.painting_s += done.report.get("wall_s", 0.0) - done.report.get("startup_s", 0.0)
            case Failed(task_id, _, _, usage, again):
                self._running.pop(task_id, None)
                self.figures.ended["failed"] += not again
                self.figures.failures["worker" if again else "input" if usage else "run"] += 1
            case CancelledEvent(task_id):
                self._running.pop(task_id, None)
                self.figures.ended["cancelled"] += 1

    def _move(self, running: _Running, progress: Progress) -> None:
        before = 0 if running.progress is None else running.progress.done
        running.progress, running.last_s = progress, time.monotonic()
        if progress.done and running.first is None:
            running.first = running.last_s, progress.done
        self.figures.frames += max(progress.done - before, 0)
