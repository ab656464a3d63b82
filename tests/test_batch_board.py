"""What a batch shows: numbers from its events, lines of text and of JSON, and progress bars."""

import json
import time

import pytest

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.tasks import Event, Failed, Finished, Moved, Started, Task, WorkerState
from latentsync_trt.cli.batch_board import BatchOutput, Board
from latentsync_trt.types import Progress


def make(*, as_json: bool = False) -> Board:
    """A board of three clips."""
    tasks = [Task(name, "v", "a", f"/out/{name}[1].mp4") for name in "abc"]
    rows = [BatchRow(f"row {number}", task) for number, task in enumerate(tasks, 2)]
    return Board(BatchOutput(as_json=as_json), rows, done_before=1, skipped=0)


HALF: tuple[Event, ...] = (
    WorkerState("gpu 0", "starting"),
    WorkerState("gpu 0", "ready"),
    Started("a", "gpu 0", 1),
    Moved("a", "gpu 0", Progress("lip-sync", 125, 250, frames_per_s=25.0)),
)
END: tuple[Event, ...] = (
    Finished("a", "gpu 0", {"frames": 250, "wall_s": 5.0}),
    Started("b", "gpu 0", 1),
)
NO_FACE = "no face" + ", and a reason that is longer than a line" * 3
PROBLEMS: tuple[Event, ...] = (
    WorkerState("gpu 0", "lost", "killed"),
    Failed("b", "gpu 0", "killed", usage=False, again=True),
    Started("b", "gpu 0", 2),
    Failed("b", "gpu 0", NO_FACE, usage=False, again=False),
    WorkerState("gpu 1", "lost", "no memory"),
    WorkerState("gpu 1", "closed", "no memory"),
)


def test_lines_for_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    board = make()
    with board.bars:
        for event in (*HALF, HALF[-1], *END, *PROBLEMS):
            board(event)
    board.show_summary()
    out, err = capsys.readouterr()
    lost, failed, given_up, summary = err.splitlines()[1:]
    assert lost.startswith("row 3: b[1].mp4: worker gpu 0 ")
    assert failed == f"row 3: b[1].mp4: failed: {NO_FACE}"
    assert given_up.startswith("worker gpu 1 ") and given_up.endswith(": no memory")
    assert summary == f"failed: row 3  b[1].mp4  {NO_FACE}"
    assert out.startswith("2 clips done (1 earlier), 1 failed: 250 ")


def test_a_log_says_every_half_minute_where_the_batch_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = make()
    now_s = time.monotonic()
    for event in HALF:
        board(event)
    for later_s in (29, 31, 32, 62):
        monkeypatch.setattr(time, "monotonic", lambda at_s=now_s + later_s: at_s)
        board.tick()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("]")[0] for line in lines] == ["[31 s", "[62 s"]
    assert all(
        part in lines[0]
        for part in ("1 of 4 clips", "gpu 0  lip-sync  a[1].mp4", "125 of 250 at 25.0")
    )


def test_json_lines_are_the_events(capsys: pytest.CaptureFixture[str]) -> None:
    board = make(as_json=True)
    for event in (
        *HALF,
        HALF[-1],
        *END,
        *PROBLEMS,
        Finished("c", "gpu 0", {"frames": 250, "wall_s": 5.0}),
    ):
        board(event)
    board.show_summary()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = (
        "WorkerState WorkerState Started Moved Finished "
        "Started WorkerState Failed Started Failed WorkerState "
    )
    kinds += "WorkerState Finished summary"  # progress of half a second ago is not told again
    assert [event["event"] for event in events] == kinds.split()
    progress = {
        "stage": "lip-sync",
        "done": 125,
        "total": 250,
        "frames_per_s": 25.0,
        "left_s": None,
    }
    progress |= {"picture": None, "written_s": 0.0}
    clip = {"event": "Moved", "row": "row 2", "output": "/out/a[1].mp4", "task_id": "a"}
    assert events[3] == {**clip, "worker": "gpu 0", "progress": progress}
    counts = {
        "event": "summary",
        "done": 2,
        "done_before": 1,
        "failed": 1,
        "skipped": 0,
        "frames": 500,
    }
    assert events[-1].items() > counts.items()
