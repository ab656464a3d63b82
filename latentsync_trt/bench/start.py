"""Scenario "start": what passes before a clip is painted at its pace, and after, by the real commands.

Each run is a process of its own, as a user starts it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, median_low
from time import perf_counter
from typing import Any, NamedTuple

from latentsync_trt.bench.material import Clip
from latentsync_trt.bench.rows import Row, Spread
from latentsync_trt.bench.setting import Setting
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.option_fields import command_line
from latentsync_trt.privacy import without_paths

_COMMANDS = {
    "--help": (("--help",), 0),
    "sync, wrong path": (("sync", "--video", "no-such-video.mp4", "--audio", "no-such-speech.wav"), 2),
}
"""Words and exit code of commands that should answer at once."""


class _Run(NamedTuple):
    """A command that ended: its wall time, its processor time (0 on Windows, which does not keep it), its stdout."""

    time_s: float
    processor_s: float
    printed: str


def measure_commands(setting: Setting) -> Iterator[Row]:
    """The help, and `sync` of a file that does not exist; `parts_s` has the processor time where it is known."""
    for case, (words, code) in _COMMANDS.items():
        found, warm_up = _runs(setting, words, code)
        processor_s = median(run.processor_s for run in found)
        parts_s = {"processor": processor_s} if processor_s else {}
        times = Spread.of([1000 * run.time_s for run in found])
        yield Row("start", case, None, None, times, warm_up, parts_s=parts_s)


def measure_start(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """A row for each preset; `folder` receives the videos.

    Raises:
        LatentSyncError: the command failed, with its message.
    """
    for preset in setting.options.preset:
        setting.say(f"{setting.provider}: start-up of sync with preset {preset}, {clip.name}")
        options = command_line(setting.sync_options(preset), leave_out=("preset",))
        words = (
            *("sync", "--json", "--video", str(clip.video), "--audio", str(clip.audio)),
            *("--output", str(folder / f"start-{setting.provider}-{preset}.mp4")),
            *("--bundle", str(setting.bundle.folder), "--provider", setting.provider, "--preset", preset),
            *(*options, *command_line(setting.runtime)),
        )
        found, warm_up = _runs(setting, words, 0)
        row = row_of([run.time_s for run in found], [json.loads(run.printed) for run in found])
        yield replace(row, case=clip.name, provider=setting.provider, preset=preset, warm_up=warm_up)


def row_of(times_s: Sequence[float], reports: Sequence[Mapping[str, Any]]) -> Row:
    """The row of some runs of `sync --json`, by their wall times and what they printed; parts are of the median run.

    `parts_s` add up to it. `start_up_s` has its first part in detail: what is before the clip, until networks are
    open, until the first windows are painted, and by graph how long it opened and first ran, which overlap.
    """
    middle = times_s.index(median_low(times_s))
    report, time_s = reports[middle], times_s[middle]
    before_s = report["total_s"] - report["wall_s"]
    start_s = before_s + report["startup_s"]
    painting_s = report["wall_s"] - report["startup_s"] - report["finish_s"]
    rate = report["frames_per_s"]
    pace = f"painting at {rate:.1f} frames/s, {report['frames'] / report['windows'] / rate:.2f} s a window"
    engines = sorted(report["engines"], key=lambda engine: str(engine["graph"]))
    return Row(
        "start",
        "",
        None,
        None,
        Spread.of([1000 * time_s for time_s in times_s]),
        0,
        frames=report["frames"],
        parts_s={"start-up": start_s, "painting": painting_s, "end": time_s - start_s - painting_s},
        start_up_s={
            "imports, bundle, provider": before_s,
            "until networks are open": report["opened_s"],
            "first windows": report["startup_s"] - report["opened_s"],
            **{f"open {engine['graph']}": engine["open_s"] for engine in engines},
            **{f"first run {engine['graph']}": engine["first_ms"] / 1000 for engine in engines},
        },
        notes=(pace, *map(without_paths, report["notices"])),
    )


def _runs(setting: Setting, words: Sequence[str], code: int) -> tuple[list[_Run], int]:
    """The timed runs, and how many were before them."""
    runs, warm_up = setting.options.repetitions("start")
    return [_run(words, code) for _ in range(warm_up + runs)][warm_up:], warm_up


def _run(words: Sequence[str], code: int) -> _Run:
    """Runs the command line with these words; raises `LatentSyncError` if it ends with another code."""
    start_s, before = perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, "-m", "latentsync_trt", *words],
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # on Windows, messages are in the system's encoding
        check=False,
    )
    time_s, after = perf_counter() - start_s, os.times()
    if done.returncode != code:
        said = (done.stdout or done.stderr).strip()
        raise LatentSyncError(f"{words[0]} ended with exit code {done.returncode}: {said}")
    user_s, system_s = after.children_user - before.children_user, after.children_system - before.children_system
    return _Run(time_s, user_s + system_s, done.stdout)
