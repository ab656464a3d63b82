"""The bench's scenario of start-up: its parts add up, and it runs the real commands."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from latentsync_trt.bench.material import Clip
from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.rows import BundleFacts, Results
from latentsync_trt.bench.setting import settings_for
from latentsync_trt.bench.start import measure_commands, measure_start, row_of
from latentsync_trt.bench.table import show_rows
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from tests.clips import write_clip
from tests.small import small_bundle


def report(**fields: float) -> dict:
    engine = {"graph": "denoise_step", "open_s": 1.5, "first_ms": 800.0}
    times = {"total_s": 9.0, "wall_s": 8.0, "opened_s": 2.0, "startup_s": 2.5, "finish_s": 0.5, "frames_per_s": 20.0}
    return {**times, "frames": 100, "windows": 8, "engines": [engine], "notices": [], **fields}


def test_parts_add_up_to_a_run() -> None:
    row = row_of([9.25], [report()])
    assert row.parts_s == {"start-up": 3.5, "painting": 5.0, "end": 0.75}
    assert sum(row.parts_s.values()) == row.time.median_ms / 1000
    assert row.start_up_s == {
        "imports, bundle, provider": 1.0,
        "until networks are open": 2.0,
        "first windows": 0.5,
        "open denoise_step": 1.5,
        "first run denoise_step": 0.8,
    }
    assert row.notes == ("painting at 20.0 frames/s, 0.62 s a window",)


def test_the_parts_of_several_runs_are_those_of_the_median_run() -> None:
    row = row_of([9.0, 12.0, 10.0], [report(), report(total_s=12.0), report(total_s=10.0, startup_s=4.0)])
    assert sum(row.parts_s.values()) == row.time.median_ms / 1000 == 10
    assert (row.start_up_s["imports, bundle, provider"], row.start_up_s["first windows"]) == (2.0, 2.0)


def test_the_table_shows_start_up_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    row = replace(row_of([9.25], [report()]), case="clip.mp4", provider="cuda", preset="fast")
    show_rows(Results({}, BundleFacts("b", 512, 16, "fp16", "static", ""), (row,)))
    lines = [re.split(r" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["what", "scenario", "median", "p5–p95 ms", "runs", "rate", "longest parts"] in lines  # no empty columns
    assert ["start-up", "clip.mp4 · fast · cuda"] in lines
    assert ["first run denoise_step", "0.80 s"] in lines
    assert ["then", "painting at 20.0 frames/s, 0.62 s a window"] in lines


@pytest.mark.integration
def test_it_runs_the_commands(tmp_path: Path) -> None:
    video, audio = write_clip(tmp_path, 20)
    options = BenchOptions(provider=("cpu",), preset=("fast",), scenario=("start",), runs=1, warm_up=0)
    bundle, sync = Bundle.load(small_bundle()), SyncOptions(steps=2, full_steps=(0, 1))
    (setting,) = settings_for(bundle, RuntimeOptions(), sync, options, lambda _: None)
    help_row, wrong_row = measure_commands(setting)
    assert (help_row.case, wrong_row.case) == ("--help", "sync, wrong path")
    assert sys.platform == "win32" or help_row.parts_s["processor"] > 0
    (row,) = measure_start(setting, Clip(video, audio, "clip"), tmp_path)
    assert (row.scenario, row.case, row.provider, row.preset, row.frames) == ("start", "clip", "cpu", "fast", 20)
    assert all(part_s > 0 for part_s in row.parts_s.values())
    assert row.start_up_s["open denoise_step"] > 0
    with pytest.raises(LatentSyncError, match=r"exit code 2.*no-such\.mp4"):
        list(measure_start(setting, Clip(tmp_path / "no-such.mp4", audio, "clip"), tmp_path))
