"""Scenario "start": what passes before a clip is painted at its pace, and after, by the real commands.

Each run is a process of its own, as a user starts it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from latentsync_trt.bench.material import Clip
from latentsync_trt.bench.rows import Row, Spread
from latentsync_trt.bench.setting import Setting
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.option_fields import command_line
from latentsync_trt.privacy import without_paths

_WRONG_USAGE = 2

_HELP = "--help"
_WRONG_PATH = ("sync", "--video", "no-such-video.mp4", "--audio", "no-such-speech.wav")


def measure_commands(setting: Setting) -> Iterator[Row]:
    """Two commands that should answer at once: the help, and `sync` of a file that does not exist."""
    for case, words, code in (("--help", (_HELP,), 0), ("sync, wrong path", _WRONG_PATH, _WRONG_USAGE)):
        runs, warm_up = setting.options.repetitions("start")
        times_s = [_run(words, code)[0] for _ in range(warm_up + runs)][warm_up:]
        yield Row("start", case, None, None, Spread.of([1000 * time_s for time_s in times_s]), warm_up)


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
        runs, warm_up = setting.options.repetitions("start")
        found = [_run(words, 0) for _ in range(warm_up + runs)][warm_up:]
        row = row_of([time_s for time_s, _ in found], [json.loads(text) for _, text in found])
        yield replace(row, case=clip.name, provider=setting.provider, preset=preset, warm_up=warm_up)


def row_of(times_s: Sequence[float], reports: Sequence[Mapping[str, Any]]) -> Row:
    """The row of some runs of `sync --json`, by their wall times and what they printed; parts are medians.

    `parts_s` add up to a run. `start_up_s` has its first part in detail: what is before the clip, until networks are
    open, until the first windows are painted, and by graph how long it opened and first ran, which overlap.
    """
    parts = [_parts(*run) for run in zip(times_s, reports, strict=True)]
    details = [_details(report) for report in reports]
    last = reports[-1]
    return Row(
        "start",
        "",
        None,
        None,
        Spread.of([1000 * time_s for time_s in times_s]),
        0,
        frames=last["frames"],
        parts_s={name: median(each[name] for each in parts) for name in parts[0]},
        start_up_s={name: median(each[name] for each in details) for name in details[0]},
        notes=(f"painting at {median(each['frames_per_s'] for each in reports):.1f} frames/s", *_notices(last)),
    )


def _parts(time_s: float, report: Mapping[str, Any]) -> dict[str, float]:
    before_s = report["total_s"] - report["wall_s"]
    painting_s = report["wall_s"] - report["startup_s"] - report["finish_s"]
    start_s = before_s + report["startup_s"]
    return {"start-up": start_s, "painting": painting_s, "end": time_s - start_s - painting_s}


def _details(report: Mapping[str, Any]) -> dict[str, float]:
    engines = sorted(report["engines"], key=lambda engine: str(engine["graph"]))
    return {
        "imports, bundle, provider": report["total_s"] - report["wall_s"],
        "until networks are open": report["opened_s"],
        "first windows": report["startup_s"] - report["opened_s"],
        **{f"open {engine['graph']}": engine["open_s"] for engine in engines},
        **{f"first run {engine['graph']}": engine["first_ms"] / 1000 for engine in engines},
    }


def _notices(report: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(without_paths, report["notices"]))


def _run(words: Sequence[str], code: int) -> tuple[float, str]:
    """Wall seconds of the command line with these words, and its stdout; raises `LatentSyncError` on other codes."""
    start_s = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "latentsync_trt", *words], capture_output=True, encoding="utf-8", check=False
    )
    time_s = perf_counter() - start_s
    if done.returncode != code:
        said = (done.stdout or done.stderr).strip()
        raise LatentSyncError(f"{words[0]} ended with exit code {done.returncode}: {said}")
    return time_s, done.stdout
