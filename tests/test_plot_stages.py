"""The picture of stages over time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.plot_stages import BEFORE, busy_share, merged, rows_of

SCRIPT = Path(__file__).parents[1] / "scripts" / "plot_stages.py"


def span(name: str, begin_s: float, dur_s: float) -> dict:
    return {"name": name, "cat": "stage", "ph": "X", "pid": 1, "tid": 1, "ts": 1e6 * begin_s, "dur": 1e6 * dur_s}


EVENTS = [
    span("denoise", 104.0, 1.0),
    span("decode", 101.0, 0.5),
    span("first run denoise_step", 102.5, 1.0),
    span("open denoise_step", 101.0, 1.5),
    {"name": "MatMul", "cat": "Node", "ph": "X", "pid": 2, "ts": 0, "dur": 5},
]


def test_rows_follow_the_clip_and_count_from_the_start_of_the_process() -> None:
    rows = rows_of(EVENTS, before_s=2.0)
    assert list(rows) == [BEFORE, "open denoise_step", "first run denoise_step", "decode", "denoise"]
    assert rows[BEFORE] == [(0.0, 2.0)]
    assert rows["denoise"] == [(5.0, 1.0)]


def test_spans_closer_than_a_pixel_are_one() -> None:
    assert merged([(2.0, 1.0), (0.0, 1.0), (1.05, 0.5)], gap_s=0.1) == [(0.0, 1.55), (2.0, 1.0)]


def test_networks_are_busy_while_one_of_them_works() -> None:
    rows = {"encode faces": [(0.0, 2.0), (3.0, 1.0)], "denoise": [(1.0, 1.5), (5.0, 1.0)], "encode": [(0.0, 9.0)]}
    assert busy_share(rows, from_s=2.0) == pytest.approx((0.5 + 1 + 1) / 4)
    assert busy_share(rows, from_s=6.0) == 0


def test_it_writes_the_picture(tmp_path: Path) -> None:
    report = {"total_s": 6.0, "wall_s": 4.0, "startup_s": 3.0, "duration_s": 0.64, "bundle": "b", "provider": "cuda"}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": EVENTS}))
    (tmp_path / "report.json").write_text(json.dumps(report))
    out = tmp_path / "stages.svg"
    words = [str(SCRIPT), str(tmp_path / "trace.json"), str(tmp_path / "report.json"), "--out", str(out)]
    subprocess.run([sys.executable, *words], check=True)
    drawn = out.read_text()
    assert "first run denoise_step" in drawn
    assert "the first faces after 5.0 s" in drawn
