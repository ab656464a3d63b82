"""Scenario "end-to-end": a clip from file to file by `sync`, for each preset."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from latentsync_trt.bench.material import Clip
from latentsync_trt.bench.rows import Row
from latentsync_trt.bench.setting import Setting
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import SyncReport


def measure_clips(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """A row for each preset; `folder` receives the videos. Errors as `LipSync.sync`."""
    for preset in setting.options.preset:
        setting.say(f"{setting.provider}: {clip.name} with preset {preset}")
        yield _measure(setting, clip, preset, folder / f"{setting.provider}-{preset}.mp4")


def _measure(setting: Setting, clip: Clip, preset: str, target: Path) -> Row:
    options = setting.sync_options(preset)
    reports: list[SyncReport] = []
    with setting.watch() as watch:
        start_s = perf_counter()
        with LipSync(Networks(setting.bundle, setting.selection, setting.runtime, on_notice=setting.say)) as lip_sync:
            lip_sync.warm_up(options)
            start_up_s = {"build, open, first runs": perf_counter() - start_s}

            def sync() -> None:
                reports[:] = [lip_sync.sync(clip.video, clip.audio, target, options)]

            row = setting.row("end-to-end", clip.name, sync, watch, preset=preset, start_up_s=start_up_s)
    (last,) = reports
    return replace(
        row,
        frames=last.frames,
        parts_s={stage.stage: stage.busy_s for stage in last.stages},
        notes=tuple(map(without_paths, last.notices)),
    )
