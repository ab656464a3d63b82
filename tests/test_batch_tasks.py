"""Tasks and options as JSON and as rows give them; the ledger: states, what a killed driver leaves,
its lock.
"""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentsync_trt import SyncOptions
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.tasks import CanceledEvent, Failed, Finished, Started, Task
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.option_fields import file_fields, from_texts


def test_a_task_survives_json() -> None:
    options = SyncOptions(
        preset="fast",
        face="index:3",
        cache_interval=(0, 3),
        start=Fraction(7, 3),
        mark=False,
        mix="ü.wav",
        crf=20,
    )
    spoken = SyncOptions(speaker=("0=a.wav", "3=b=c.wav"), end=Fraction(62))  # type: ignore[arg-type]
    for each in (options, spoken):
        task = Task("a1", "s3://clips/a.mp4", None, "ü.mp4", each, names={"video": "a"}, most_s=1.5)
        assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.sampled_from([spec.name for spec in fields(SyncOptions)]), JSON_VALUES)
def test_whatever_a_row_says_is_an_option_or_an_input_error(name: str, value: Any) -> None:
    try:
        assert isinstance(from_texts(SyncOptions, {name: value}), SyncOptions)
    except InputError as error:
        assert error.option == name


def test_text_of_a_cell_becomes_values() -> None:
    cells = {
        "crf": " 20 ",
        "--mark": "No",
        "start": "1:02",
        "speaker": "0=a.wav; 1=b.wav",
        "fps": 25,
        "mix": "",
    }
    wanted = SyncOptions(
        crf=20, mark=False, start=Fraction(62), speaker=("0=a.wav", "1=b.wav"), fps="25"
    )  # type: ignore[arg-type]
    assert from_texts(SyncOptions, {**cells, "cache_interval": None}) == wanted


def test_every_file_of_a_task_can_be_replaced() -> None:
    given = {name: f"{name}.x" for name in file_fields(SyncOptions) if name != "turns"}
    task = Task("1", "v", "a", "o", SyncOptions(speaker=("0=s.wav",), **given))  # type: ignore[arg-type]
    written = {file for file, written in task.files() if written}
    read = {file for file, written in task.files() if not written}
    assert written == {"o", "report.x"}
    assert read == {"v", "a", "s.wav", "mix.x", "faces.x", "keep_mask.x", "c2pa.x"}
    moved = task.with_files(lambda file, written: f"{'out' if written else 'in'}/{file}")
    assert {file for file, _ in moved.files()} == {f"out/{file}" for file in written} | {
        f"in/{file}" for file in read
    }
    named = Task("1", "v", "a", "o", SyncOptions(speaker=("0=ann",), turns="t.rttm"))  # type: ignore[arg-type]
    assert dict(named.files()) == {"v": False, "a": False, "o": True, "t.rttm": False}


# The ledger


DONE = {"frames": 7, "wall_s": 1.5}


def tasks_in(folder: Path, count: int, **options: str) -> list[Task]:
    return [
        Task(str(number), "v.mp4", "a.wav", str(folder / f"{number}.mp4"), SyncOptions(**options))  # type: ignore[arg-type]
        for number in range(count)
    ]


def test_events_change_states_which_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    tasks = tasks_in(tmp_path, 5)
    with closing(JobStore(path)) as store:
        store.add(tasks)
        for task in tasks[:4]:
            store.record(Started(task.id, "cpu", 1))
        store.record(Finished("0", "cpu", DONE))
        store.record(Failed("1", "cpu", "no face", usage=False, again=False))
        store.record(Failed("2", "cpu", "lost", usage=False, again=True))
        store.record(Started("2", "cpu", 2))
        store.record(CanceledEvent("3"))
    with closing(JobStore(path)) as store:
        assert [row.state for row in store.rows()] == [
            "done",
            "failed",
            "running",
            "canceled",
            "waiting",
        ]
        assert [row.attempts for row in store.rows()] == [1, 1, 2, 1, 0]
        assert [row.task.id for row in store.newest(2, 1)] == ["3", "2"]
        done, failed, *_ = store.rows()
        assert (done.task, done.report, failed.error) == (tasks[0], DONE, "no face")
        store.add(tasks[1:2])
        assert [(row.task.id, row.error) for row in store.rows("waiting")] == [
            ("1", None),
            ("4", None),
        ]
        store.record(Started("4", "cpu", 1))
        store.reclaim()
        store.record(Started("1", "cpu", 2))
        store.reclaim(killed=False)
        assert [(row.task.id, row.attempts) for row in store.rows("waiting")] == [
            ("1", 1),
            ("2", 2),
            ("4", 1),
        ]


def test_a_second_driver_is_refused_until_the_first_one_ends_but_readers_are_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.sqlite"
    code = (
        "from latentsync_trt.batch.job_store import *; s = "
        f"JobStore(Path({str(path)!r})); print(1, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        with pytest.raises(InputError, match="another process runs these jobs"):
            JobStore(path)
        with closing(sqlite3.connect(path)) as reader:
            assert reader.execute("select count(*) from tasks").fetchone() == (0,)
        other.kill()
        other.wait()
    with closing(JobStore(path)) as store:
        assert store.rows() == []


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path, folder, foreign = (
        tmp_path / name for name in ("ledger.sqlite", "folder", "foreign.sqlite")
    )
    path.write_text("not a database, but long enough to be taken for one by its size" * 20)
    folder.mkdir()
    with closing(sqlite3.connect(foreign)) as made:
        made.execute("create table tasks (id text)")
    for each in (path, folder, foreign):
        with pytest.raises(OutputError, match="ledger cannot be used"):
            JobStore(each)
    path.unlink()
    with closing(JobStore(path)) as store:  # no lock was left
        assert store.rows() == []


def row_of_task(**changes: Any) -> str:
    return json.dumps(Task("bad", "v.mp4", "a.wav", "o.mp4").to_json() | changes)


DAMAGED: dict[str, tuple[str, Any]] = {
    "half of it": ("task", "{"),
    "null": ("task", "null"),
    "a blob": ("task", b"\x00\xff"),
    "nested": ("task", "[" * 100_000),
    "another task's": ("task", row_of_task(id="other")),
    "a number as video": ("task", row_of_task(video=5)),
    "a list of names": ("task", row_of_task(names=[1])),
    "options of another version": ("task", row_of_task(options={"no_such": 1})),
    "a state": ("state", "asleep"),
    "attempts": ("attempts", "x"),
    "a time": ("created_s", "x"),
    "a report": ("report", '{"frames": "x"}'),
    "an id": ("id", b"\x01"),
}


@pytest.mark.parametrize("stays_open", [False, True])
def test_tasks_of_damaged_rows_fail_and_all_others_are_there(
    tmp_path: Path, stays_open: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    good = tasks_in(tmp_path, 1)
    store = JobStore(path)
    store.add([*good, *(Task(f"bad {name}", "v", "a", "o") for name in DAMAGED)])
    if not stays_open:
        store.close()
    with closing(sqlite3.connect(path)) as other:
        for name, (column, value) in DAMAGED.items():
            other.execute(f"update tasks set {column} = ? where id = ?", (value, f"bad {name}"))
        other.commit()
    with closing(store if stays_open else JobStore(path)) as store:
        assert store.newest(50, label="another") == []
        assert [row.task for row in store.rows("waiting")] == good
        failed = store.rows("failed")
        assert {row.task.id for row in failed} >= {
            f"bad {name}" for name in DAMAGED if name != "an id"
        }
        assert len(failed) == len(DAMAGED)
        assert all("ledger is damaged" in str(row.error) for row in failed)
