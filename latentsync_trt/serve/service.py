"""The service: jobs of an earlier one go on, new ones arrive, and old ones are deleted."""

import logging
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from latentsync_trt.batch.dispatch import ATTEMPTS, Dispatcher, slot_names
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.local import WorkerHandle
from latentsync_trt.batch.tasks import Failed
from latentsync_trt.errors import LatentSyncError, OutputError
from latentsync_trt.serve.admission import Limits
from latentsync_trt.serve.checks import Pool
from latentsync_trt.serve.events import JobEvents
from latentsync_trt.serve.folders import FULL, JobFolders
from latentsync_trt.serve.intake import Intake
from latentsync_trt.serve.jobs import Jobs

_SWEEP_S = 60.0
"""How often old jobs are deleted."""
_CHECKS = 4
"""Jobs whose files are checked at the same time."""

_log = logging.getLogger(__name__)


class Service:
    """Runs jobs on workers; thread-safe."""

    def __init__(
        self,
        folder: Path,
        handles: Sequence[WorkerHandle],
        limits: Limits,
        checks: Pool | None = None,
    ) -> None:
        """Starts the workers, and continues jobs of an earlier service that had not ended, on a
        full disk, too.

        Args:
            folder: holds the ledger and the files of jobs.
            checks: looks at files in place of a pool of its own; closed with the service.

        Raises:
            InputError: another service uses the folder.
            OSError: it cannot be written.
        """
        self.limits = limits
        self._handles = handles
        self._stopped = threading.Event()
        self._folders = JobFolders(folder)
        self._store = JobStore(folder / "ledger.sqlite")
        self._store.reclaim()
        self._fail_deadly()
        waiting = self._store.rows("waiting")
        self._remove_leftovers({row.task.id for row in waiting})

        slots = {slot: handle for handle in handles for slot in slot_names(handle)}
        self.events = JobEvents(self._store, self._folders, slots, self._stopped)
        self._dispatcher = Dispatcher(handles, self.events.take)
        self.jobs = Jobs(self._store, self._folders, self.events, self._dispatcher)
        checks = checks or Pool("check of the files", _CHECKS)
        self.intake = Intake(self._store, self._folders, self._dispatcher, limits, checks)
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
        self.intake.close()
        with suppress(OutputError):  # then they count as killed
            self._store.reclaim(killed=False)
        self._dispatcher.close()
        self._store.close()

    def problem(self) -> str:
        """Returns why no job can run; empty if one can."""
        if self._stopped.is_set():
            return "the service stops"
        if not self._folders.secure_space():
            return FULL
        states = self.events.workers()
        if any(each.state in ("ready", "running") for each in states):
            return ""
        texts = [f"{each.worker}: {each.state} {each.detail}" for each in states]
        return "; ".join(map(str.rstrip, texts))

    def check(self) -> None:
        """Raises `LatentSyncError` if the service must be started again, as no worker is left."""
        is_left = any(each.state != "closed" for each in self.events.workers())
        if not is_left and not self._stopped.is_set():
            raise LatentSyncError(
                f"service: cannot work any more: {self.problem()}; jobs wait for the next start"
            )

    def providers(self) -> list[str]:
        """Returns the execution providers that the workers run on, as far as they are known."""
        return sorted({handle.provider for handle in self._handles if handle.provider})

    def _fail_deadly(self) -> None:
        """Fails jobs with which services or workers have died too often: one that takes all memory
        would end the service at each start.
        """
        for row in self._store.rows("waiting"):
            if row.attempts >= ATTEMPTS:
                job_id = row.task.id
                died = f"service or worker died {row.attempts} times while it ran"
                cure = "send a shorter clip, or give the service more memory"
                text = f"job {job_id}: {died}; the service's log says more; {cure}"
                failed = Failed(job_id, row.worker or "", text, usage=False, again=False)
                self._store.record(failed)

    def _remove_leftovers(self, waiting: set[str]) -> None:
        """Removes what a service that was killed has left of jobs that don't wait."""
        for job_id in self._folders.ids() - waiting:
            row = self._store.row(job_id)
            if row is None:
                self._folders.remove(job_id)
            else:
                self._folders.remove_unneeded(job_id, is_done=row.state == "done")

    def _sweep_often(self) -> None:
        while not self._stopped.is_set():
            try:
                self._folders.secure_space()
                self.jobs.delete_old(self.limits.keep_hours)
            except (OSError, sqlite3.Error) as error:  # the next one may work
                _log.warning("%s", error)
            self._stopped.wait(_SWEEP_S)
