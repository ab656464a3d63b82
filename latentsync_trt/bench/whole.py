"""Scenario "end-to-end": a clip from file to file, as `sync` does it, for each preset."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from latentsync_trt.bench.machine import without_paths
from latentsync_trt.bench.material import Clip
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import SyncReport


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
    last = reports[-1]
    return Row(
        "end-to-end",
        clip.name,
        setting.provider,
        preset,
        time,
        warm_up,
        frames=last.frames,
        memory=memory,
        parts_s={stage.stage: stage.busy_s for stage in last.stages},
        start_up_s={"check bundle": opened_s - start_s, "build, open, first runs": ready_s - opened_s},
        engines=tuple(asdict(engine) for engine in last.engines),
        facts={"frames_with_face": float(last.frames_with_face), "windows": float(last.windows)},
        notes=tuple(map(without_paths, last.notices)),
    )
