"""What a batch shows: numbers from its events, lines of text and of JSON, and progress bars."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.tasks import Done, Event, Failed, Finished, Moved, Started, Task, WorkerState
from latentsync_trt.cli import batch as batch_module
from latentsync_trt.cli.batch import Board
from latentsync_trt.types import Progress


class Clock:
    """Seconds that pass when the test says so."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[..., Board]:
    """A board of two clips of 10 s, and one whose length is unknown."""
    lengths_s = {"a": 10.0, "b": 10.0, "c": None}
    rows = {
        name: BatchRow(f"row {row}", Task(name, "v", "a", f"/out/{name}[1].mp4"), length_s)
        for row, (name, length_s) in enumerate(lengths_s.items(), 2)
    }
    return lambda **how: Board(rows, before=1, clock=clock, **how)


HALF: tuple[Event, ...] = (
    WorkerState("gpu 0", "starting"),
    WorkerState("gpu 0", "ready"),
    Started("a", "gpu 0", 1),
    Moved("a", "gpu 0", Progress("lip-sync", 125, 250, frames_per_s=25.0)),
)
END: tuple[Event, ...] = (Finished("a", "gpu 0", Done(5.0, {"frames": 250})), Started("b", "gpu 0", 1))
NO_FACE = "no face" + ", and a reason that is longer than a line" * 3
PROBLEMS: tuple[Event, ...] = (
    WorkerState("gpu 0", "lost", "killed"),
    Failed("b", "gpu 0", "killed", usage=False, again=True),
    Started("b", "gpu 0", 2),
    Failed("b", "gpu 0", NO_FACE, usage=False, again=False),
    WorkerState("gpu 1", "lost", "no memory"),
    WorkerState("gpu 1", "closed", "no memory"),
)


def test_lines_for_a_log(make: Callable[..., Board], clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with make() as board:
        for event in HALF:
            board(event)
        clock.now_s += 40
        for event in (HALF[-1], HALF[-1], *END, *PROBLEMS):
            board(event)
    board.show_summary()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0].startswith("[40 s] a[1].mp4: 250 frames in 5.0 s on gpu 0; 2 of 4 clips done")
    assert lines[1].startswith("[40 s] row 3: b[1].mp4: worker gpu 0 was lost")
    assert lines[2] == f"[40 s] row 3: b[1].mp4: failed: {NO_FACE}"
    assert lines[3].startswith("[40 s] worker gpu 1 cannot start")
    assert lines[4].startswith("[40 s] worker gpu 1 is given up")
    assert lines[5] == f"failed: row 3  b[1].mp4  {NO_FACE}"
    assert out.startswith("2 clips done (1 earlier), 1 failed: 250 frames in 40.0 s, 6.2 frames/s; start-up")


def test_json_lines_tell_progress_every_two_seconds(
    make: Callable[..., Board], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    board = make(as_json=True)
    for event in (*HALF, HALF[-1]):
        board(event)
    clock.now_s += 2
    for event in (HALF[-1], *END, *PROBLEMS):
        board(event)
    clock.now_s += 11
    board(Finished("c", "gpu 0", Done(5.0, {"frames": 250})))
    assert str(board) == "3 of 4 clips done, 1 failed"
    board.show_summary()
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = "worker worker started progress progress finished started worker failed started failed worker worker "
    kinds += "finished summary"
    assert [event["event"] for event in events] == kinds.split()
    pace = {"frames_per_s": 25.0, "seconds_left": 5.0}
    clip = {"event": "progress", "id": "a", "row": "row 2", "output": "/out/a[1].mp4"}
    assert events[3] == {**clip, "worker": "gpu 0", "stage": "lip-sync", "done": 125, "total": 250, **pace}
    counts = {"event": "summary", "done": 2, "done_before": 1, "failed": 1, "skipped": 0, "frames": 500}
    times = {"wall_s": 13.0, "startup_s": 0, "frames_per_s": pytest.approx(500 / 13)}
    assert events[-1] | {"startup_s": 0} == {**counts, **times}


def test_a_terminal_shows_the_whole_and_as_many_workers_as_it_has_room_for(
    make: Callable[..., Board], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, height=6)
    monkeypatch.setattr(batch_module, "STDERR", terminal)
    with make() as board:
        for number in range(12):
            board(WorkerState(f"gpu {number}", "starting"))
        for event in HALF:
            board(event)
        clock.now_s += 5
        board(Moved("a", "gpu 0", Progress("lip-sync", 150, 250)))
    assert isinstance(terminal.file, io.StringIO)
    lines = terminal.file.getvalue().splitlines()
    whole = max(number for number, line in enumerate(lines) if "1 of 4 clips done" in line)
    assert " 60%" in lines[whole + 1]
    assert "gpu 0  lip-sync  a[1].mp4" in lines[whole + 1]
    assert "gpu 1  starting" in lines[whole + 2]
