"""A part of a job's result is done again: its task, and the report of the whole."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from latentsync_trt import SyncOptions
from latentsync_trt.batch.tasks import Task
from latentsync_trt.errors import InputError
from latentsync_trt.measures import Interval, Measures
from latentsync_trt.option_fields import parse_speakers
from latentsync_trt.serve.redo import redo_task, whole_report
from latentsync_trt.types import SyncReport
from tests.test_show import REPORT


def as_stored(report: SyncReport) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(json.dumps(asdict(report)))
    return stored


def test_the_report_tells_of_the_whole_result() -> None:
    before = replace(
        REPORT,
        painted=(Interval(0, 10, "person 0"), Interval(4, 5, "person 1")),
        untouched=(Interval(3, 4.5, "no face"),),
        quality=Measures((), misfits=(Interval(4.2, 4.4, "jumps"), Interval(7, 8, "smeared"))),
        speech=(Interval(0, 9, "speech"),),
    )
    now = replace(
        REPORT,
        frames=50,
        duration_s=2.0,
        painted=(Interval(4, 6, "person 0"),),
        quality=Measures((), misfits=(Interval(5, 5.5, "blurred"),)),
        redone=((4.0, 6.0),),
        notices=("encoded anew",),
    )
    whole = whole_report(as_stored(before), as_stored(now))
    expected = replace(
        before,
        painted=(Interval(0, 10, "person 0"),),
        untouched=(Interval(3, 4, "no face"),),
        quality=Measures((), misfits=(Interval(5, 5.5, "blurred"), Interval(7, 8, "smeared"))),
        redone=now.redone,
        notices=now.notices,
    )
    assert as_stored(expected) == json.loads(json.dumps(whole))
    assert whole_report({"frames": 3}, as_stored(now)) == as_stored(now)


def test_all_files_are_those_of_the_copy(tmp_path: Path) -> None:
    options = SyncOptions(
        seed=5,
        steps=3,
        redo=[(1, 2)],  # type: ignore[arg-type]
        keep_source=True,
        report=str(tmp_path / "a" / "report.html"),
        speaker=parse_speakers(f"0={tmp_path}/a/inputs/a.wav"),
    )
    former = Task(
        "a",
        str(tmp_path / "a" / "inputs" / "in.mp4"),
        None,
        str(tmp_path / "a" / "output.mp4"),
        options,
        preview=str(tmp_path / "a" / "preview.jpg"),
    )
    folders = (tmp_path / "a", tmp_path / "b")
    task = redo_task(former, "b", folders, {"redo": ["0:0.5"], "seed": 6})
    assert (task.id, task.redo_of, task.preview) == ("b", "a", str(tmp_path / "b" / "preview.jpg"))
    assert all(Path(file).is_relative_to(tmp_path / "b") for file, _ in task.files())
    changed = replace(task.options, seed=5, redo=options.redo, keep_source=True)
    assert replace(changed, report=options.report, speaker=options.speaker) == options
    assert str(task.options.redo[0]) == "0.0:0.5"
    for changes in ({"seed": 6}, {"redo": []}, {"redo": ["2:1"]}, {"redo": ["1:2"], "mix": "a"}):
        with pytest.raises(InputError):
            redo_task(former, "b", folders, changes)
