"""How jobs arrive at the service: an upload, a check of its files, a place in the queue."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from latentsync_trt.batch.dispatch import Dispatcher
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.errors import Busy, LatentSyncError, OutputError
from latentsync_trt.serve.admission import RETRY_S, Form, Limits
from latentsync_trt.serve.checks import Pool, check_form
from latentsync_trt.serve.events import log_step
from latentsync_trt.serve.folders import FULL, JobFolders

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
        try:
            task = self._checks.call(check_form, job_id, form, folder, self._limits)
        except LatentSyncError as error:
            names = {form.files[field].name: name for field, name in form.names.items()}
            error.args = (self._folders.in_client_words(str(error), names),)
            raise
        with self._queuing:
            self._check_queue()
            self._store.add([task])
        log_step(job_id, "waiting", label=task.label, **task.names)
        self._dispatcher.submit(task)

    def _check_queue(self) -> None:
        if self._stopped.is_set():
            raise Busy("service: stops; try again later")
        most = self._limits.max_queue
        if self._store.counts().get("waiting", 0) >= most:
            raise Busy(f"queue: {most} jobs wait already; try again in {RETRY_S} seconds")
