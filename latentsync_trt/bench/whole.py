"""Scenario "end-to-end": a clip from file to file, as `sync` does it, for each preset."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter

from latentsync_trt.bench.machine import without_paths
from latentsync_trt.bench.material import Clip
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import SyncReport

_STAGES = ("open", "encode audio", "decode", "face", "align", "gather", "paint", "compose", "encode")
"""In the order of the data; a report has them in the order in which they first ran."""


def measure_clips(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """A row for each preset; `folder` takes the videos that are written. Errors as `LipSync.sync`."""
    for preset in setting.options.preset:
        setting.say(f"{setting.provider}: {clip.name} with preset {preset}")
        yield _measure(setting, clip, preset, folder / f"{setting.provider}-{preset}.mp4")
        setting.give_back()


def _measure(setting: Setting, clip: Clip, preset: str, target: Path) -> Row:
    options = setting.sync_options(preset)
    reports: list[SyncReport] = []
    with setting.watch() as watch:
        start_s = perf_counter()
        networks = Networks(setting.bundle, setting.selection, setting.runtime, on_notice=setting.say)
        with LipSync(networks) as lip_sync:
            opened_s = perf_counter()
            lip_sync.warm_up(options)
            ready_s = perf_counter()

            def sync() -> None:
                reports.append(lip_sync.sync(clip.video, clip.audio, target, options))

            time, warm_up = setting.time("end-to-end", sync)
            memory = watch.peak
    last, wall_s = reports[-1], time.median_ms / 1000
    parts_s = _parts(reports[-time.runs :])
    return Row(
        "end-to-end",
        clip.name,
        setting.provider,
        preset,
        time,
        warm_up,
        frames=last.frames,
        memory=memory,
        parts_s=parts_s,
        start_up_s={"check bundle": opened_s - start_s, "build, open, first runs": ready_s - opened_s},
        engines=tuple(asdict(engine) for engine in last.engines),
        facts={
            "paint_busy_share": parts_s.get("paint", 0.0) / wall_s,
            "seconds_per_second_of_video": wall_s / last.duration_s,
            "frames_with_face": float(last.frames_with_face),
            "windows": float(last.windows),
        },
        notes=tuple(map(without_paths, last.notices)),
    )


def _parts(reports: Sequence[SyncReport]) -> dict[str, float]:
    """Median of the seconds that each stage was busy."""
    stages = [{stage.stage: stage.busy_s for stage in report.stages} for report in reports]
    names = sorted(stages[0], key=lambda name: _STAGES.index(name) if name in _STAGES else len(_STAGES))
    return {name: median(run.get(name, 0.0) for run in stages) for name in names}
