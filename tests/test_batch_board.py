"""What a batch shows: figures from its events, lines of text and of JSON, and the live table."""

import io
import json

import pytest
from rich.console import Console

from latentsync_trt.batch.job_file import BatchRow
from latentsync_trt.batch.tasks import Done, Event, Failed, Finished, Moved, Started, Task, WorkerState
from latentsync_trt.cli import board
from latentsync_trt.cli.board import Figures, display, show_notice, show_summary
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
def figures(clock: Clock) -> Figures:
    """Two clips of 10 s, and one whose length is unknown."""
    lengths_s = {"a": 10.0, "b": 10.0, "c": None}
    jobs = {
        name: BatchRow(f"row {row}", Task(name, "v", "a", f"/out/{name}[1].mp4"), length_s)
        for row, (name, length_s) in enumerate(lengths_s.items(), 2)
    }
    return Figures(jobs, before=1, clock=clock)


HALF: tuple[Event, ...] = (
    WorkerState("gpu 0", "starting"),
    WorkerState("gpu 0", "ready"),
    Started("a", "gpu 0", 1),
    Moved("a", "gpu 0", Progress("lip-sync", 125, 250)),
)
END: tuple[Event, ...] = (Finished("a", "gpu 0", Done(5.0, {"frames": 250})), Started("b", "gpu 0", 1))


def test_rates_and_time_left(figures: Figures, clock: Clock) -> None:
    clock.now_s += 3  # start-up
    for event in HALF[:-1]:
        figures.add(event)
    figures.add(Moved("a", "gpu 0", Progress("lip-sync", 1, 250)))
    clock.now_s += 5
    assert str(figures) == "1 of 4 clips done; 0.2 frames/s"  # nothing is known yet of the time left
    figures.add(HALF[-1])
    assert figures.frames_per_s == 25
    assert figures.left_s == 25  # of 30 s of video, 5 s took 5 s
    for event in END:
        figures.add(event)
    clock.now_s += 5
    assert str(figures) == "2 of 4 clips done; 25.0 frames/s, about 0:00:20 left"
    figures.add(Failed("b", "gpu 0", "no face", usage=False, again=False))
    assert figures.left_s == 5
    figures.add(Finished("c", "gpu 0", Done(5.0, {"frames": 250})))
    assert str(figures) == "3 of 4 clips done, 1 failed; 50.0 frames/s"
    counts = {"done": 2, "done_before": 1, "failed": 1, "frames": 500}
    assert figures.summary() | {"startup_s": 0} == {**counts, "wall_s": 13.0, "startup_s": 0, "frames_per_s": 50.0}


def test_only_written_frames_count(figures: Figures, clock: Clock) -> None:
    for event in (*HALF[:-1], Moved("a", "gpu 0", Progress("finding faces", 250, 250))):
        figures.add(event)
    clock.now_s += 5
    assert (figures.frames_per_s, figures.left_s) == (0, None)


def test_a_lost_worker_takes_its_frames_back(figures: Figures, clock: Clock) -> None:
    for event in (*HALF, Failed("a", "gpu 0", "killed", usage=False, again=True)):
        figures.add(event)
    clock.now_s += 1
    assert figures.frames_per_s == 0
    assert not figures.failed


NO_FACE = "no face" + ", and a reason that is longer than a line" * 3
PROBLEMS: tuple[Event, ...] = (
    Failed("b", "gpu 0", "killed", usage=False, again=True),
    Started("b", "gpu 0", 2),
    Failed("b", "gpu 0", NO_FACE, usage=False, again=False),
    WorkerState("gpu 1", "lost", "no memory"),
    WorkerState("gpu 1", "closed", "no memory"),
)


def test_lines_for_a_log(figures: Figures, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with display(figures, as_json=False, quiet=False) as show:
        for event in HALF:
            show(event)
        clock.now_s += 40
        show(HALF[-1])
        show(HALF[-1])
        for event in END + PROBLEMS:
            show(event)
    show_summary(figures, quiet=False, as_json=False)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0].startswith("[40 s] 1 of 4 clips done; 3.1 frames/s, about")
    assert lines[1].startswith("[40 s] a[1].mp4: 250 frames in 5.0 s on gpu 0; 2 of 4 clips done")
    again = "worker gpu 0 was lost and starts again; the clip is next: killed"
    assert lines[2] == f"[40 s] row 3: b[1].mp4: {again}"
    assert lines[3] == f"[40 s] row 3: b[1].mp4: failed: {NO_FACE}"
    assert lines[4] == "[40 s] worker gpu 1 cannot start: no memory"
    assert lines[5] == "[40 s] worker gpu 1 is given up; the others go on"
    assert lines[7].split() == ["row", "3", "b[1].mp4", *NO_FACE.split()]
    assert out.startswith("2 clips done (1 earlier), 1 failed: 250 frames in 40.0 s, 6.2 frames/s; start-up")


def test_json_lines_tell_progress_every_two_seconds(
    figures: Figures, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with display(figures, as_json=True, quiet=False) as show:
        for event in (*HALF, HALF[-1]):
            show(event)
        clock.now_s += 2
        for event in (HALF[-1], *END, *PROBLEMS):
            show(event)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = "worker worker started progress progress finished started failed started failed worker worker"
    assert [event["event"] for event in events] == kinds.split()
    clip = {"event": "progress", "id": "a", "row": "row 2", "output": "/out/a[1].mp4"}
    assert events[3] == {**clip, "worker": "gpu 0", "stage": "lip-sync", "done": 125, "total": 250}


def test_a_notice_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, as_json in [(False, False), (True, False), (True, True)]:
        show_notice("workers wait", quiet=quiet, as_json=as_json)
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"event": "notice", "message": "workers wait"}, "note: workers wait\n")


def test_a_terminal_shows_the_whole_and_as_many_workers_as_it_has_room_for(
    figures: Figures, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, height=6)
    monkeypatch.setattr(board, "STDERR", terminal)
    with display(figures, as_json=False, quiet=False) as show:
        for number in range(12):
            show(WorkerState(f"gpu {number}", "starting"))
        for event in HALF:
            show(event)
        clock.now_s += 5
        show(Moved("a", "gpu 0", Progress("lip-sync", 150, 250)))
    assert isinstance(terminal.file, io.StringIO)
    lines = terminal.file.getvalue().splitlines()
    whole = next(number for number, line in enumerate(lines) if "1 of 4 clips done; 30.0 frames/s" in line)
    assert lines[whole + 1].split()[:3] == ["gpu", "0", "lip-sync"]
    assert " 60%  a[1].mp4" in lines[whole + 1]
    assert lines[whole + 2].split() == ["gpu", "1", "starting"]
