"""What `sync` prints when it is done: times that add up to what the user waited."""

import subprocess
import sys
import time

import pytest

from latentsync_trt.cli.show import Notices, show_report
from latentsync_trt.types import StageTime, SyncReport

REPORT = SyncReport(
    output="out.mp4",
    bundle="1.6-512-fp16",
    provider="cuda",
    frames=500,
    frames_with_face=480,
    windows=30,
    duration_s=20.0,
    wall_s=32.0,
    startup_s=7.0,
    frames_per_s=20.0,
    stages=(StageTime("paint", 24.0, 480),),
    engines=(),
    notices=(),
)


@pytest.mark.parametrize(
    ("total_s", "line"),
    [
        (35.5, "time: 25.0 s + 10.5 s start-up = 35.5 s; 20.0 frames/s once running"),
        (None, "time: 25.0 s + 7.0 s start-up = 32.0 s; 20.0 frames/s once running"),
    ],
)
def test_the_summary_counts_everything(capsys: pytest.CaptureFixture[str], total_s: float | None, line: str) -> None:
    show_report(REPORT, Notices(), total_s)
    assert capsys.readouterr().out.splitlines() == [
        "out.mp4: 500 frames (20.00 s), face in 480, with 1.6-512-fp16 on cuda",
        line,
        "busy: paint 24.0 s",
    ]


def test_the_total_counts_from_the_start_of_the_process() -> None:
    code = "import time; time.sleep(0.7); from latentsync_trt.cli.show import process_age_s; print(process_age_s())"
    start_s = time.monotonic()
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.7 < float(answer.stdout) < time.monotonic() - start_s
