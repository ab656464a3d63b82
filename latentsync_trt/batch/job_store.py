"""The ledger of a batch: an SQLite file with the state of every task, which survives the end of any
process.

A task is committed as running before a worker gets it, and as done when the worker has finished it.
"""

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

from filelock import FileLock, Timeout

from latentsync_trt.batch.tasks import (
    CanceledEvent,
    Event,
    Failed,
    Finished,
    ReportValues,
    Started,
    Task,
)
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.option_fields import from_json, from_values

State = Literal["waiting", "running", "done", "failed", "canceled"]
OPEN: tuple[State, ...] = ("waiting", "running")
"""States of tasks that have not ended."""

_TABLE = """
create table if not exists tasks (
    position integer primary key autoincrement, id text unique not null, task text not null,
    state text not null default 'waiting', attempts integer not null default 0,
    worker text, seconds real, error text, report text,
    created_s real not null, started_s real, ended_s real
)
"""
_BUSY_S = 10.0
"""How long to wait while another program writes."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A task and its state. Times are seconds since 1970."""

    task: Task
    state: State
    attempts: int
    worker: str | None
    error: str | None
    report: ReportValues | None
    created_s: float
    started_s: float | None
    ended_s: float | None


class _Figures(TypedDict, total=False):
    """What others read of a report."""

    frames: int
    frames_per_s: float


_COLUMNS = ", ".join(spec.name for spec in fields(JobRow))
_ADD = (
    "insert into tasks (id, task, created_s) values (?, ?, ?)"
    " on conflict (id) do update set state = 'waiting', error = null, task = excluded.task"
)
_FAIL = (
    "update tasks set id = ?, task = ?, state = 'failed', attempts = 0, error = ?, created_s = ?,"
    " ended_s = ?, worker = null, seconds = null, report = null, started_s = null"
    " where position = ?"
)
"""Makes a row that of a failed task, of which nothing else is known."""


class JobStore:
    """An open ledger. Thread-safe. Other processes can read the file meanwhile, but not open it as
    a `JobStore`.
    """

    def __init__(self, path: Path) -> None:
        """Opens or makes the file, and fails the tasks of damaged rows, so that the others can run.
        Raises `InputError` if another process has it open, or `OutputError`.
        """
        self._path = path
        self._lock = threading.RLock()
        # SQLite's own lock would exclude readers.
        whole = FileLock(f"{path}.lock", timeout=0, thread_local=False, fallback_to_soft=False)
        with _translate_ledger_errors(path), ExitStack() as opened:
            opened.enter_context(whole)
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
            opened.enter_context(closing(self._connection))
            self._connection.row_factory = sqlite3.Row
            self._connection.text_factory = _text_of
            self._connection.execute("pragma journal_mode = wal")
            self._connection.execute(_TABLE)
            self._connection.execute(f"select {_COLUMNS}, seconds from tasks limit 0")  # noqa: S608 -- own words
            self._write(_FAIL, *_damaged(self._connection))
            self._opened = opened.pop_all()

    def close(self) -> None:
        with self._lock:
            self._opened.close()

    def add(self, tasks: Iterable[Task]) -> None:
        """Makes tasks wait: new ones, and existing ones of any state."""
        now_s = time.time()
        rows = [(task.id, json.dumps(task.to_json()), now_s) for task in tasks]
        self._write(_ADD, *rows)

    def remove(self, task_ids: Iterable[str]) -> None:
        rows = [(task_id,) for task_id in task_ids]
        self._write("delete from tasks where id = ?", *rows)

    def rows(self, state: State | None = None) -> list[JobRow]:
        """Returns all rows, or those in one state, in the order in which they were added."""
        return self._rows("where ? in (state, '') order by position", state or "")

    def newest(self, limit: int, offset: int = 0, label: str = "") -> list[JobRow]:
        """Returns the last rows that were added, all or those with a label, the newest first."""
        of_task = "case when json_valid(task) then json_extract(task, '$.label') end"
        which = f"where ? in ({of_task}, '') order by position desc limit ? offset ?"
        return self._rows(which, label, limit, offset)

    def row(self, task_id: str) -> JobRow | None:
        return next(iter(self._rows("where id = ?", task_id)), None)

    def counts(self) -> dict[State, int]:
        query = "select state, count(*) from tasks group by state"
        with self._lock:
            return dict(self._connection.execute(query).fetchall())

    def record(self, event: Event) -> None:
        """Stores the state that an event tells, before anything else follows from it; raises
        `OutputError`.
        """
        now_s = time.time()
        values: dict[str, Any] = {"error": None}
        match event:
            case Started():
                values |= {"state": "running", "started_s": now_s, "worker": event.worker}
            case Finished():
                report = json.dumps(event.report)
                values |= {"state": "done", "seconds": event.report["wall_s"], "report": report}
            case Failed():
                values |= {"state": "waiting" if event.again else "failed", "error": event.message}
            case CanceledEvent():
                values |= {"state": "canceled"}
            case _:
                return
        if not isinstance(event, Started):
            values["ended_s"] = now_s
        change = ", ".join(f"{name} = ?" for name in values)
        statement = f"update tasks set {change}, attempts = attempts + ? where id = ?"  # noqa: S608 -- own words
        is_attempt = isinstance(event, Started)
        self._write(statement, (*values.values(), is_attempt, event.task_id))

    def reclaim(self, *, killed: bool = True) -> None:
        """Makes running tasks wait; unless a driver was `killed`, their attempt does not count."""
        if "running" in self.counts():  # else nothing is written, also on a full disk
            change = "state = 'waiting', attempts = attempts - ?"
            self._write(f"update tasks set {change} where state = 'running'", (not killed,))  # noqa: S608 -- own words

    def _write(self, statement: str, *rows: Sequence[Any]) -> None:
        """Executes a statement for each row in one transaction, which is then on disk."""
        with _translate_ledger_errors(self._path), self._lock, self._connection:
            self._connection.executemany(statement, rows)

    def _rows(self, which: str, *values: Any) -> list[JobRow]:
        query = f"select id, {_COLUMNS} from tasks {which}"  # noqa: S608 -- own words
        with _translate_ledger_errors(self._path), self._lock:
            try:
                return [_row_of(stored) for stored in self._connection.execute(query, values)]
            except InputError:  # a row was damaged while the ledger is open
                self._write(_FAIL, *_damaged(self._connection))
                return [_row_of(stored) for stored in self._connection.execute(query, values)]


def _damaged(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Returns the values with which `_FAIL` repairs rows that cannot be read."""
    now_s = time.time()
    repairs = list[tuple[Any, ...]]()
    for stored in connection.execute(f"select position, id, {_COLUMNS} from tasks"):  # noqa: S608 -- own words
        try:
            _row_of(stored)
        except InputError as error:
            task_id = stored["id"]
            if not isinstance(task_id, str):
                task_id = uuid.uuid4().hex
            why = f"job {task_id}: its row of the ledger is damaged ({error}); send it again"
            task = json.dumps(Task(task_id, "unknown", None, "unknown").to_json())
            repairs.append((task_id, task, why, now_s, now_s, stored["position"]))
    return repairs


@contextmanager
def _translate_ledger_errors(path: Path) -> Iterator[None]:
    """Turns errors of an unusable ledger into `OutputError`, of one in use into `InputError`."""
    try:
        yield
    except Timeout as error:
        cure = "wait for it, or end it first"
        raise InputError(f"{path}: another process runs these jobs; {cure}") from error
    except (OSError, sqlite3.Error, ValueError, TypeError, LookupError, RecursionError) as error:
        place = "check permissions and free space of its folder"
        cure = f"{place}, or delete it to begin anew if it is no ledger"
        raise OutputError(f"{path}: the ledger cannot be used ({error}); {cure}") from error


def _text_of(stored: bytes) -> str | bytes:
    """Decodes text; what is damaged stays bytes."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _row_of(stored: Mapping[str, Any]) -> JobRow:
    """Raises `InputError` for what `JobStore` has not written."""
    values: dict[str, Any] = {"report": None}
    for name in ("task", "report"):
        if stored[name] is not None:
            text = from_values(str, stored[name], name, InputError)
            values[name] = from_json(dict[str, Any], text, name, InputError)
    values["task"] = Task.from_json(values["task"])
    if values["task"].id != stored["id"]:
        raise InputError(f"task: is that of {values['task'].id}")
    from_values(_Figures, values["report"] or {}, "report", InputError)
    for name, hint in get_type_hints(JobRow).items():
        if name not in values:
            values[name] = from_values(hint, stored[name], name, InputError)
    return JobRow(**values)
