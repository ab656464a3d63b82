"""The ledger: states of tasks, what a killed driver leaves, its lock and its readers."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from latentsync_trt.batch.ledger import Ledger
from latentsync_trt.batch.tasks import CanceledEvent, Done, Failed, Finished, Started, Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, OutputError

DONE = Done(1.5, {"frames": 7})


def tasks_in(folder: Path, count: int, **options: str) -> list[Task]:
    return [
        Task(str(number), "v.mp4", "a.wav", str(folder / f"{number}.mp4"), SyncOptions(**options))  # type: ignore[arg-type]
        for number in range(count)
    ]


def test_events_change_states_which_survive_a_restart(tmp_path: Path) -> None:
    path, tasks = tmp_path / "ledger.sqlite", tasks_in(tmp_path, 5)
    with Ledger.open(path) as ledger:
        ledger.add(tasks)
        for task in tasks[:4]:
            ledger.record(Started(task.id, "cpu", 1))
        ledger.record(Finished("0", "cpu", DONE))
        ledger.record(Failed("1", "cpu", "no face", usage=False, again=False))
        ledger.record(Failed("2", "cpu", "lost", usage=False, again=True))
        ledger.record(Started("2", "cpu", 2))
        ledger.record(CanceledEvent("3"))
    with Ledger.open(path) as ledger:
        assert [row.state for row in ledger.rows()] == ["done", "failed", "running", "canceled", "waiting"]
        assert [row.attempts for row in ledger.rows()] == [1, 1, 2, 1, 0]
        assert [row.task.id for row in ledger.newest(2, 1)] == ["3", "2"]
        assert ledger.counts() == {"done": 1, "failed": 1, "running": 1, "canceled": 1, "waiting": 1}
        done, failed = ledger.row("0"), ledger.row("1")
        assert done is not None
        assert (done.task, done.report) == (tasks[0], DONE.report)
        assert failed is not None
        assert failed.error == "no face"
        ledger.add(tasks[1:2])
        assert [(row.task.id, row.attempts, row.error) for row in ledger.rows("waiting")] == [
            ("1", 1, None),
            ("4", 0, None),
        ]
        ledger.remove(["0"])
        assert ledger.row("0") is None


def test_what_a_killed_driver_left_running_is_told_by_its_outputs(tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 4)
    new, replaced, untouched, missing = (Path(task.output) for task in tasks)
    replaced.write_text("old")
    untouched.write_text("old")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(tasks)
        for task in tasks:
            ledger.record(Started(task.id, "cpu", 1))
    new.write_text("new")
    fresh = tmp_path / "fresh"
    fresh.write_text("other")
    fresh.replace(replaced)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.reclaim()
        assert [row.state for row in ledger.rows()] == ["done", "done", "waiting", "waiting"]
        assert not missing.exists()


def test_a_second_driver_is_refused_until_the_first_one_ends_but_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    code = f"from latentsync_trt.batch.ledger import *; it = Ledger.open(Path({str(path)!r})); print(1, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(InputError, match="another process runs these jobs"):
            Ledger.open(path)
        with closing(sqlite3.connect(path)) as reader:
            assert reader.execute("select count(*) from tasks").fetchone() == (0,)
        other.kill()
        other.wait()
    with Ledger.open(path) as ledger, closing(sqlite3.connect(path)) as reader:
        ledger.add(tasks_in(tmp_path, 2))
        unread = reader.execute("select id from tasks")
        assert unread.fetchone() == ("0",)
        ledger.remove(["0", "1"])  # does not wait for the reader
        assert ledger.rows() == []


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("not a database, but long enough to be taken for one by its size" * 20)
    with pytest.raises(InputError, match="is not a ledger"):
        Ledger.open(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        Ledger.open(tmp_path / "folder")
    path.unlink()
    Ledger.open(path).close()  # no lock was left
