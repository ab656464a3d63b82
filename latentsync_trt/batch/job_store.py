"""The ledger of a batch: an SQLite file with the state of every task, which survives the end of any process.

A task is committed as running before a worker gets it, and as done when the worker has finished it.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from filelock import FileLock, Timeout

from latentsync_trt.batch.tasks import CanceledEvent, Event, Failed, Finished, Started, Task
from latentsync_trt.errors import InputError, OutputError

State = Literal["waiting", "running", "done", "failed", "canceled"]
OPEN: tuple[State, ...] = ("waiting", "running")
"""States of tasks that have not ended."""

_TABLE = """
create table if not exists tasks (
    position integer primary key autoincrement, id text unique not null, task text not null,
    state text not null default 'waiting', attempts integer not null default 0, worker text, seconds real,
    error text, report text, created_s real not null, started_s real, ended_s real
)
"""
_BUSY_S = 10.0  # how long to wait while another program writes


@dataclass(frozen=True, slots=True)
class Row:
    """A task and its state. Times are seconds since 1970; `report`: as in `Done`."""

    task: Task
    state: State
    attempts: int
    worker: str | None
    error: str | None
    report: dict[str, Any] | None
    created_s: float
    started_s: float | None
    ended_s: float | None


_COLUMNS = ", ".join(spec.name for spec in fields(Row))


class JobStore:
    """An open ledger. Thread-safe. Other processes can read the file meanwhile, but not open it as a `JobStore`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, opened: ExitStack) -> None:
        """`opened`: closes the connection and frees the lock of the file."""
        self._connection, self._path, self._opened = connection, path, opened
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens or makes the file.

        Raises:
            InputError: another process has it open, or it is no ledger. OutputError: it cannot be written.
        """
        try:
            with ExitStack() as opened:
                # SQLite's own lock would exclude readers.
                opened.enter_context(FileLock(f"{path}.lock", timeout=0, thread_local=False, fallback_to_soft=False))
                connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
                opened.enter_context(closing(connection))
                connection.row_factory = sqlite3.Row
                connection.execute("pragma journal_mode = wal")
                connection.execute(_TABLE)
                with suppress(sqlite3.OperationalError):
                    connection.execute(f"select {_COLUMNS}, seconds from tasks limit 0")  # noqa: S608 -- own words
                    return cls(connection, path, opened.pop_all())
                raise InputError(f"{path}: is not a ledger (its table is another); delete it to begin anew")
        except Timeout as error:
            raise InputError(f"{path}: another process runs these jobs; wait for it, or end it first") from error
        except (OSError, sqlite3.OperationalError) as error:
            raise OutputError(_unwritable(path, error)) from error
        except sqlite3.Error as error:
            raise InputError(f"{path}: is not a ledger ({error}); delete it to begin anew") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._opened.close()

    def add(self, tasks: Iterable[Task]) -> None:
        """Makes tasks wait: new ones, and existing ones of any state."""
        rows = [(task.id, json.dumps(task.to_json()), time.time()) for task in tasks]
        with self._writing() as connection:
            connection.executemany(
                "insert into tasks (id, task, created_s) values (?, ?, ?)"
                " on conflict (id) do update set state = 'waiting', error = null",
                rows,
            )

    def remove(self, task_ids: Iterable[str]) -> None:
        with self._writing() as connection:
            connection.executemany("delete from tasks where id = ?", [(task_id,) for task_id in task_ids])

    def rows(self, state: State | None = None) -> list[Row]:
        """Returns all rows, or those in one state, in the order in which they were added."""
        return self._rows("where ? in (state, '') order by position", state or "")

    def newest(self, limit: int, offset: int = 0) -> list[Row]:
        """Returns the last rows that were added, the newest first."""
        return self._rows("order by position desc limit ? offset ?", limit, offset)

    def row(self, task_id: str) -> Row | None:
        return next(iter(self._rows("where id = ?", task_id)), None)

    def counts(self) -> dict[State, int]:
        return dict(self._read("select state, count(*) from tasks group by state"))

    def record(self, event: Event) -> None:
        """Stores the state that an event tells; to be called before anything else follows from it.

        Raises:
            OutputError: the ledger cannot be written.
        """
        match event:
            case Started(task_id, worker):
                change = "state = 'running', worker = ?, started_s = ?, attempts = attempts + 1"
                self._update(task_id, change, worker, time.time())
            case Finished(task_id, _, done):
                self._end(task_id, "done", seconds=done.seconds, report=json.dumps(done.report))
            case Failed(task_id, _, message, _, again):
                self._end(task_id, "waiting" if again else "failed", error=message)
            case CanceledEvent(task_id):
                self._end(task_id, "canceled")

    def reclaim(self, *, killed: bool = True) -> None:
        """Makes running tasks wait; unless a driver was `killed`, their attempt does not count."""
        if "running" not in self.counts():
            return  # on a full disk, too
        with self._writing() as connection:
            change = "update tasks set state = 'waiting', attempts = attempts - ? where state = 'running'"
            connection.execute(change, (not killed,))

    def _end(self, task_id: str, state: State, **values: Any) -> None:
        """Ends an attempt."""
        values = {"state": state, "ended_s": time.time(), "error": None, **values}
        self._update(task_id, ", ".join(f"{name} = ?" for name in values), *values.values())

    def _update(self, task_id: str, change: str, *values: Any) -> None:
        with self._writing() as connection:
            connection.execute(f"update tasks set {change} where id = ?", (*values, task_id))  # noqa: S608 -- own words

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Opens a transaction, which is on disk when the block ends."""
        try:
            with self._lock, self._connection:
                yield self._connection
        except sqlite3.Error as error:
            raise OutputError(_unwritable(self._path, error)) from error

    def _read(self, query: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def _rows(self, which: str, *values: Any) -> list[Row]:
        found = self._read(f"select {_COLUMNS} from tasks {which}", *values)  # noqa: S608 -- own words
        return [
            Row(**{**each, "task": self._task(each["task"]), "report": each["report"] and json.loads(each["report"])})
            for each in map(dict, found)
        ]

    def _task(self, text: str) -> Task:
        try:
            return Task.from_json(json.loads(text))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise InputError(f"{self._path}: is not a ledger ({error}); delete it to begin anew") from error


def _unwritable(path: Path, error: Exception) -> str:
    return f"{path}: the ledger cannot be written: {error}; check permissions and free space of its folder"
