"""What happens to jobs and workers: stored, counted and logged."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from latentsync_trt import stopping
from latentsync_trt.batch.job_store import JobStore
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
from latentsync_trt.errors import OutputError
from latentsync_trt.serve.folders import JobFolders
from latentsync_trt.serve.redo import whole_report
from latentsync_trt.types import Progress

_STORE_AGAIN_S = 2.0
"""Time after which a thread tries again to store what has happened."""
_IDLE = Progress("", 0, None)

_log = logging.getLogger(__name__)


class JobEvents:
    """Takes the events of a dispatcher, from several threads."""

    def __init__(
        self,
        store: JobStore,
        folders: JobFolders,
        slots: Mapping[str, WorkerHandle],
        stopped: threading.Event,
    ) -> None:
        """
        Args:
            slots: the workers, by the names under which events tell of them.
            stopped: set when the service stops.
        """
        self.totals = Counter[str]()
        """Since the start: frames, ends by state, failures by kind."""
        self._store = store
        self._folders = folders
        self._slots = slots
        self._stopped = stopped
        self._lock = threading.Lock()
        self._running = dict[str, Progress]()
        self._workers = {slot: WorkerState(slot, "starting") for slot in slots}

    def workers(self) -> list[WorkerState]:
        with self._lock:
            states = list(self._workers.values())
        return [
            replace(state, state="hangs") if self._slots[state.worker].hangs else state
            for state in states
        ]

    def progress_of(self, job_id: str) -> Progress:
        """Returns the progress of a job; that of one which does not run has no stage."""
        return self._running.get(job_id, _IDLE)

    def take(self, event: Event) -> None:
        """Stores and counts an event; waits while the disk is full."""
        stops = self._stopped.is_set() or (isinstance(event, Failed) and stopping.exit_code())
        if stops and not isinstance(event, Finished):
            return  # what a stop breaks off goes on later
        if isinstance(event, WorkerState):
            with self._lock:
                self._workers[event.worker] = event
            if event.state == "lost":
                _log.warning("%s: lost: %s", event.worker, event.detail)
            return
        if isinstance(event, Finished):
            event = self._with_rest(event)
        if not self._stored(event):
            return
        with self._lock:
            self._count(event)
        if isinstance(event, Started | Moved) or (isinstance(event, Failed) and event.again):
            return
        if self._store.row(event.task_id) is None:  # it was deleted while it ran
            self._folders.remove(event.task_id)
        else:
            is_done = isinstance(event, Finished)
            self._folders.remove_unneeded(event.task_id, is_done=is_done)

    def _with_rest(self, event: Finished) -> Finished:
        """Returns the event with a report of the whole result, where a part was done again of one
        whose report is kept.
        """
        row = self._store.row(event.task_id)
        if row is None or not row.task.redo_of:
            return event
        former = self._store.row(row.task.redo_of)
        if former is None or former.report is None:
            return event
        return replace(event, report=whole_report(former.report, event.report))

    def _stored(self, event: Event) -> bool:
        """Stores an event, as soon as that is possible; returns False if the service stops
        before.
        """
        while True:
            try:
                self._store.record(event)
            except OutputError as error:
                if self._folders.give_reserve():
                    continue
                _log.warning("%s", error)
                if self._stopped.wait(_STORE_AGAIN_S):
                    return False
            else:
                return True

    def _count(self, event: Event) -> None:
        if isinstance(event, Finished | CanceledEvent | Failed):
            self._running.pop(event.task_id, None)
        match event:
            case Started(task_id, worker, attempt):
                log_step(task_id, "running", worker=worker, attempt=attempt)
                self._running[task_id] = _IDLE
            case Moved(task_id, _, progress):
                before = self._running[task_id]
                self._running[task_id] = progress
                if progress.stage != before.stage:
                    log_step(task_id, progress.stage, frames=progress.total)
                if progress.writes:
                    written = progress.done
                    if before.writes:
                        written -= before.done
                    self.totals["frames"] += written
            case Finished(task_id, _, report):
                seconds = round(report["wall_s"], 1)
                log_step(task_id, "done", seconds=seconds, frames=report["frames"])
                self.totals["done"] += 1
            case Failed():
                self._count_failure(event)
            case CanceledEvent(task_id):
                log_step(task_id, "canceled")
                self.totals["canceled"] += 1

    def _count_failure(self, event: Failed) -> None:
        row = self._store.row(event.task_id)
        names = {} if row is None else row.task.client_names()
        reason = self._folders.in_client_words(event.message, names)
        if event.again:
            log_step(event.task_id, "lost, runs again", reason=reason)
            self.totals["worker"] += 1
            return
        log_step(event.task_id, "failed", reason=reason)
        self.totals["failed"] += 1
        self.totals["input" if event.usage else "run"] += 1


def log_step(job_id: str, step: str, **facts: object) -> None:
    """Logs what a job has reached, with those of the facts that are not empty."""
    parts = [step]
    for name, value in facts.items():
        if value not in (None, ""):
            parts.append(f"{name} {' '.join(str(value).split())}")
    _log.info("job %s: %s", job_id, ", ".join(parts))
