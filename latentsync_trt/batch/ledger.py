"""The ledger of a batch: an SQLite file with the state of every task, which survives the end of any process.

A task is committed as running, with fingerprints of the files it will replace, before a worker gets it, and as done as
soon as the worker says so. Outputs appear by one step, so what a killed driver left is told by their fingerprints.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from latentsync_trt.batch.tasks import CancelledEvent, Done, Event, Failed, Finished, Started, Task
from latentsync_trt.errors import InputError, OutputError

State = Literal["waiting", "running", "done", "failed", "cancelled"]

_TABLE = """
create table if not exists tasks (
    position integer primary key autoincrement, id text unique not null, task text not null,
    state text not null default 'waiting', attempts integer not null default 0, worker text, seconds real,
    error text, usage integer not null default 0, report text, before text,
    created_s real not null, started_s real, ended_s real
)
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A task and what became of it. Times are seconds since 1970; `report`, `seconds`: as in `Done`."""

    task: Task
    state: State
    attempts: int
    worker: str | None
    seconds: float | None
    error: str | None
    usage: bool
    report: dict[str, Any] | None
    created_s: float
    started_s: float | None
    ended_s: float | None


class Ledger:
    """An open ledger, which no other process can open meanwhile. Thread-safe."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens or makes the file.

        Raises:
            InputError: another process has it open, or it is no ledger. OutputError: it cannot be written.
        """
        try:
            connection = sqlite3.connect(path, timeout=0, check_same_thread=False)
            # SQLite's own lock, for as long as the connection lasts: the end of a process frees it.
            connection.execute("pragma locking_mode = exclusive")
            connection.execute("pragma journal_mode = wal")
            with connection:
                connection.execute(_TABLE)
                connection.execute("update tasks set position = position")  # takes the lock now
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                cure = "wait for it, or end it first"
                raise InputError(f"{path}: another process runs these jobs; {cure}") from error
            if isinstance(error, sqlite3.OperationalError):
                raise OutputError(f"{path}: the ledger cannot be written: {error}") from error
            raise InputError(f"{path}: is not a ledger ({error}); delete it to begin anew") from error
        return cls(connection, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()

    def add(self, tasks: Iterable[Task]) -> None:
        """Adds tasks as waiting; those that are there stay as they are."""
        rows = [(task.id, json.dumps(task.to_json()), time.time()) for task in tasks]
        with self._writing() as connection:
            connection.executemany("insert or ignore into tasks (id, task, created_s) values (?, ?, ?)", rows)

    def remove(self, task_ids: Iterable[str]) -> None:
        """Forgets tasks."""
        with self._writing() as connection:
            connection.executemany("delete from tasks where id = ?", [(task_id,) for task_id in task_ids])

    def rows(self, state: State | None = None) -> list[Row]:
        """All rows, or those in one state, in the order in which they were added."""
        return self._rows("where ? in (state, '')", state or "")

    def row(self, task_id: str) -> Row | None:
        """The row of a task."""
        return next(iter(self._rows("where id = ?", task_id)), None)

    def tasks(self, state: State | None = None) -> list[Task]:
        """The tasks of `rows`."""
        return [row.task for row in self.rows(state)]

    def counts(self) -> dict[State, int]:
        """Number of tasks by state."""
        with self._lock:
            found = self._connection.execute("select state, count(*) from tasks group by state").fetchall()
        return dict(found)

    def record(self, event: Event) -> None:
        """Stores what an event says about a task: to be called for each, before anything else follows from it.

        Raises:
            LatentSyncError: an output's fingerprint cannot be taken, or the ledger cannot be written.
        """
        match event:
            case Started(task_id, worker):
                self.starting(task_id, worker)
            case Finished(task_id, _, done):
                self.done(task_id, done)
            case Failed(task_id, _, message, usage, again):
                self._set(task_id, "waiting" if again else "failed", error=message, usage=usage)
            case CancelledEvent(task_id):
                self._set(task_id, "cancelled")

    def starting(self, task_id: str, worker: str) -> None:
        """Stores that a worker is about to get the task, and fingerprints of what it will replace."""
        row = self.row(task_id)
        before = json.dumps(_fingerprints(row.task)) if row is not None else None
        change = "state = 'running', worker = ?, before = ?, started_s = ?, attempts = attempts + 1"
        self._update(task_id, change, worker, before, time.time())

    def done(self, task_id: str, done: Done) -> None:
        """Stores that the outputs of the task are complete."""
        self._set(task_id, "done", seconds=done.seconds, report=json.dumps(done.report))

    def again(self, state: State) -> None:
        """Makes tasks in `state` wait, as if they had never run."""
        with self._writing() as connection:
            change = "update tasks set state = 'waiting', attempts = 0, error = null where state = ?"
            connection.execute(change, (state,))

    def reclaim(self) -> None:
        """Decides about tasks that a driver left running: done if all their outputs were replaced, else waiting.

        Raises:
            LatentSyncError: the fingerprint of an output cannot be taken.
        """
        with self._lock:
            running = self._connection.execute("select id, before from tasks where state = 'running'").fetchall()
        for task_id, before in running:
            row = self.row(task_id)
            old, new = json.loads(before), _fingerprints(row.task) if row is not None else {}
            complete = all(new[file] is not None and new[file] != old.get(file) for file in new)
            self._set(task_id, "done" if complete else "waiting")

    def _set(self, task_id: str, state: State, **values: Any) -> None:
        """Ends an attempt."""
        values = {"error": None, **values}
        change = ", ".join(f"{name} = ?" for name in values)
        self._update(task_id, f"state = ?, ended_s = ?, {change}", state, time.time(), *values.values())

    def _update(self, task_id: str, change: str, *values: Any) -> None:
        with self._writing() as connection:
            connection.execute(f"update tasks set {change} where id = ?", (*values, task_id))  # noqa: S608 -- own words

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which is on disk when the block ends."""
        try:
            with self._lock, self._connection:
                yield self._connection
        except sqlite3.Error as error:
            raise OutputError(f"{self._path}: the ledger cannot be written: {error}") from error

    def _rows(self, where: str, value: str) -> list[Row]:
        columns = "task, state, attempts, worker, seconds, error, usage, report, created_s, started_s, ended_s"
        query = f"select {columns} from tasks {where} order by position"  # noqa: S608 -- own words
        with self._lock:
            found = self._connection.execute(query, (value,)).fetchall()
        return [_row(*values) for values in found]


def _row(task: str, state: State, *values: Any) -> Row:
    attempts, worker, seconds, error, usage, report, *times = values
    read = None if report is None else json.loads(report)
    return Row(Task.from_json(json.loads(task)), state, attempts, worker, seconds, error, bool(usage), read, *times)


def _fingerprints(task: Task) -> dict[str, str | None]:
    """Of each file that the task writes; None for one that does not exist."""
    from latentsync_trt.batch.store import fingerprint

    return {file: fingerprint(file) for file, written in task.files() if written}
