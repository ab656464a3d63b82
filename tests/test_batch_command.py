"""`latentsync-trt batch` with worker processes: failing clips, and a driver that is killed."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

from latentsync_trt.batch.job_file import read_rows
from latentsync_trt.batch.job_store import JobStore
from latentsync_trt.batch.tasks import Started, Task
from latentsync_trt.cli import main
from latentsync_trt.config import SyncOptions
from tests.clips import decoded, write_face, write_sound
from tests.small import small_bundle

pytestmark = pytest.mark.integration

OPTIONS = ("--bundle", str(small_bundle()), "--provider", "cpu", "--steps", "1")
PATIENCE_S = 240.0
FRAMES = {"a": 4, "b": 3, "c": 2}
BAD_ROWS = "a.mp4,none.wav,x.mp4\na.mp4,a.wav,a-out.mp4\n,a.wav,y.mp4\n"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job file with three short clips, the longest last, and their files."""
    for name, frames in FRAMES.items():
        write_face(tmp_path / f"{name}.mp4", frames)
        write_sound(tmp_path / f"{name}.wav", frames / 25)
    rows = [f"{name}.mp4,{name}.wav,{name}-out.mp4" for name in sorted(FRAMES, reverse=True)]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["video,audio,output", *rows, ""]))
    return path


def batch(*words: object) -> Result:
    return CliRunner().invoke(main, ["batch", *map(str, words), *OPTIONS])


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def ledger_of(jobs: Path) -> Path:
    return jobs.with_name(f"{jobs.name}.ledger.sqlite")


def states(jobs: Path) -> dict[str, tuple[str, int]]:
    """State and attempts of each clip."""
    with closing(JobStore(ledger_of(jobs))) as store:
        return {Path(row.task.output).name[0]: (row.state, row.attempts) for row in store.rows()}


def check_outputs(folder: Path, names: str = "abc") -> None:
    """All outputs are whole, and nothing else is left."""
    assert {name: len(decoded(folder / f"{name}-out.mp4")) for name in names} == {
        name: FRAMES[name] for name in names
    }
    assert not list(folder.glob(".latentsync-*"))


def test_one_failed_clip_stops_no_other_and_runs_again_when_asked(jobs: Path) -> None:
    """As does one whose driver was killed; outputs are replaced where that is asked, or where such
    a run left them.
    """
    face = (jobs.parent / "b.mp4").read_bytes()
    write_face(jobs.parent / "b.mp4", FRAMES["b"], blank=range(FRAMES["b"]))
    for name in "ac":
        (jobs.parent / f"{name}-out.mp4").write_bytes(b"older")
    result = batch(jobs)
    assert (result.exit_code, result.stderr.count("exists already")) == (2, 2)
    result = batch(jobs, "--overwrite", "--json")
    assert result.exit_code == 1
    events = events_of(result.stdout)
    assert [
        (event["event"], event["row"])
        for event in events
        if event["event"] in ("Started", "Failed")
    ] == [
        ("Started", "row 4"),  # the longest first
        ("Started", "row 3"),
        ("Failed", "row 3"),
        ("Started", "row 2"),
    ]
    (failed,) = (event for event in events if event["event"] == "Failed")
    assert "no face" in failed["message"]
    assert {event["event"] for event in events} == {
        "WorkerState",
        "Started",
        "Moved",
        "Finished",
        "Failed",
        "summary",
    }
    assert (events[-1]["done"], events[-1]["failed"], events[-1]["frames"]) == (2, 1, 6)
    assert states(jobs) == {"a": ("done", 1), "b": ("failed", 1), "c": ("done", 1)}
    check_outputs(jobs.parent, "ac")

    ids = {
        Path(row.task.output).name[0]: row.task.id for row in read_rows(jobs, SyncOptions(steps=1))
    }
    with closing(JobStore(ledger_of(jobs))) as store:
        store.add([Task("edited", "v.mp4", None, "old.mp4")])  # a row that was edited since
        # as of a driver that was killed when the output was complete
        store.record(Started(ids["c"], "cpu", 1))
    (jobs.parent / "b.mp4").write_bytes(face)
    (jobs.parent / "a.mp4").unlink()  # rows that are done need nothing any more
    rows = jobs.read_text()
    jobs.write_text(rows + BAD_ROWS)
    result = batch(jobs, "--skip-bad", "--workers", 2)
    assert result.exit_code == 1
    assert all(f"row {number}: " in result.stderr for number in (5, 6, 7))
    assert "3 clips done (1 earlier), 0 failed, 3 skipped: 5 " in result.stdout
    assert states(jobs) == {"a": ("done", 1), "b": ("done", 2), "c": ("done", 3)}
    check_outputs(jobs.parent)
    jobs.write_text(rows)
    result = batch(jobs)
    assert result.exit_code == 0
    assert "3 clips done (3 earlier)" in result.stdout
    assert "delete it and add --overwrite" in result.stderr


def test_rows_that_cannot_work_are_listed_and_nothing_starts(jobs: Path) -> None:
    jobs.write_text(jobs.read_text() + BAD_ROWS)
    before = sorted(jobs.parent.iterdir())
    result = batch(jobs, "--json")
    assert (result.exit_code, result.stderr) == (2, "")
    lines = [event.get("message") or event["error"] for event in events_of(result.stdout)]
    assert [line[:7] for line in lines[:3]] == ["row 5: ", "row 6: ", "row 7: "]
    assert "3 of 6 rows cannot work" in lines[3]
    assert sorted(jobs.parent.iterdir()) == before


def test_a_killed_driver_loses_no_row_and_none_is_done_twice(jobs: Path) -> None:
    words = [sys.executable, "-m", "latentsync_trt", "batch", jobs, "--json", *OPTIONS]
    with subprocess.Popen(
        [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        done = 0
        event = ""
        while not (done and event == "Started"):
            event = json.loads(driver.stdout.readline())["event"]
            done += event == "Finished"
        workers = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
    assert not psutil.wait_procs(workers, PATIENCE_S)[1]  # they end with their driver
    first = (jobs.parent / "a-out.mp4").stat()
    result = batch(jobs)
    assert result.exit_code == 0, result.output
    assert states(jobs)["a"] == ("done", 1)
    assert {state for state, _ in states(jobs).values()} == {"done"}
    assert (jobs.parent / "a-out.mp4").stat() == first
    check_outputs(jobs.parent)
