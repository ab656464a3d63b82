"""How jobs arrive at the service: an upload, a check of its files, a place in the queue."""

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.tasks import Task
from latentsync_trt.errors import Busy, LatentSyncError, OutputError
from latentsync_trt.serve.admission import RETRY_S, Form, Limits, NotNow, UnknownJob
from latentsync_trt.serve.checks import Pool, check_form, check_redo
from latentsync_trt.serve.events import log_step
from latentsync_trt.serve.folders import FULL, JOB_ID, JobFolders
from latentsync_trt.serve.redo import redo_task

_MOST_ARRIVING = 64
"""Uploads at the same time; they take no place in the queue before they are complete."""


class Intake:
    """Accepts jobs within limits, until the service stops."""

    def __init__(
        self,
        store: JobStore,
        folders: JobFolders,
        dispatcher: Dispatcher,
        limits: Limits,
        checks: Pool,
    ) -> None:
        self._store = store
        self._folders = folders
        self._dispatcher = dispatcher
        self._limits = limits
        self._checks = checks
        self._queuing = threading.Lock()
        self._arriving = threading.Semaphore(_MOST_ARRIVING)
        self._stopped = threading.Event()

    def close(self) -> None:
        """Refuses jobs from now on, and ends the checks of those that arrive."""
        self._stopped.set()
        self._checks.close()

    @contextmanager
    def receiving(self) -> Iterator[tuple[str, Path]]:
        """Gives the id of a new job and the folder for its files, while these arrive; deleted if
        the block submits nothing.

        Raises:
            Busy: as many jobs wait or arrive as may, or the service stops.
            OutputError: nothing can be stored.
        """
        if not self._folders.secure_space():
            raise OutputError(FULL)
        self._check_queue()
        if not self._arriving.acquire(blocking=False):
            raise Busy(f"uploads: {_MOST_ARRIVING} arrive already; try again in {RETRY_S} seconds")
        job_id = uuid.uuid4().hex
        try:
            yield job_id, self._folders.make(job_id)
        finally:
            if not self._stopped.is_set() and self._store.row(job_id) is None:
                self._folders.remove(job_id)
            self._arriving.release()

    def submit(self, job_id: str, form: Form) -> None:
        """Checks the files of a received job, and queues it; raises `Busy`, or as `Pool.call` and
        `check_form`.
        """
        folder = self._folders.jobs / job_id
        names = {form.files[field].name: name for field, name in form.names.items()}
        with self._in_client_words(names):
            task = self._checks.call(check_form, job_id, form, folder, self._limits)
        self._queue(task)

    def redo(self, former_id: str, changes: Mapping[str, Any]) -> str:
        """Queues a job that does a part of a job's result again, in a copy; returns its id.

        Args:
            changes: options by name, "redo" for the spans; see `redo_task`.

        Raises:
            UnknownJob: no job has this id.
            NotNow: it has no result.
            LatentSyncError: as `receiving`, `submit` and `redo_task`.
        """
        row = self._store.row(former_id) if JOB_ID.fullmatch(former_id) else None
        if row is None:
            raise UnknownJob(f"job {former_id[:40]}: does not exist, or was deleted; list the jobs")
        if row.state != "done":
            raise NotNow(f"job {former_id}: is {row.state}, without a result; wait for done")
        with self.receiving() as (job_id, _):
            self._folders.copy(former_id, job_id)
            folders = (self._folders.jobs / former_id, self._folders.jobs / job_id)
            task = redo_task(row.task, job_id, folders, changes)
            with self._in_client_words(row.task.client_names()):
                self._checks.call(check_redo, task)
            self._queue(task)
            return job_id

    @contextmanager
    def _in_client_words(self, names: Mapping[str, str]) -> Iterator[None]:
        """Makes errors name files as the client does; `names`: by those of the stored files."""
        try:
            yield
        except LatentSyncError as error:
            error.args = (self._folders.in_client_words(str(error), names),)
            raise

    def _queue(self, task: Task) -> None:
        """Stores a task, and lets it wait for a worker; raises `Busy`."""
        with self._queuing:
            self._check_queue()
            self._store.add([task])
        log_step(task.id, "waiting", label=task.label, **task.names)
        self._dispatcher.submit(task)

    def _check_queue(self) -> None:
        if self._stopped.is_set():
            raise Busy("service: stops; try again later")
        most = self._limits.max_queue
        if self._store.counts().get("waiting", 0) >= most:
            raise Busy(f"queue: {most} jobs wait already; try again in {RETRY_S} seconds")
