"""Scenario "end-to-end": a clip from file to file, as `sync` does it, for each preset."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from latentsync_trt.bench.loops import compare
from latentsync_trt.bench.machine import without_paths
from latentsync_trt.bench.material import Clip, aligned_faces, generated_part
from latentsync_trt.bench.rows import Quality, Row
from latentsync_trt.bench.setting import REFERENCE_PRESET, Setting
from latentsync_trt.bench.spread import Spread, measure
from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.align import crop
from latentsync_trt.media.reader import read_frames
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.sync.api import LipSync
from latentsync_trt.types import SyncReport, UInt8Array

_STAGES = ("open", "encode audio", "decode", "face", "align", "gather", "paint", "compose", "encode")
"""As a frame meets them; a report has them in the order in which they first ran."""

_MOST_COMPARED = 250
"""Ten seconds, of which the faces fit in memory."""


def measure_clips(setting: Setting, clip: Clip, folder: Path) -> Iterator[Row]:
    """A row for each preset; `folder` takes the videos that are written. Errors as `LipSync.sync`."""
    presets = sorted(setting.options.preset, key=lambda preset: not setting.is_reference(preset))
    reference = None if setting.is_reference(presets[0]) else _write_reference(setting, clip, folder)
    for preset in presets:
        setting.say(f"{setting.provider}: {clip.name} with preset {preset}")
        target = folder / f"{setting.provider}-{preset}.mp4"
        row = _measure(setting, clip, preset, target)
        if reference is None:
            reference = target
        else:
            row = replace(row, quality=_quality(setting, target, reference))
        yield row


def _measure(setting: Setting, clip: Clip, preset: str, target: Path) -> Row:
    runs, warm_up = setting.options.runs_of("end-to-end"), setting.options.warm_up_of("end-to-end")
    options = setting.sync_options(preset)
    reports: list[SyncReport] = []
    with setting.watch() as watch:
        start_s = perf_counter()
        with _lip_sync(setting) as lip_sync:
            opened_s = perf_counter()
            lip_sync.warm_up(options)
            ready_s = perf_counter()

            def sync() -> None:
                reports.append(lip_sync.sync(clip.video, clip.audio, target, options))

            times_ms = measure(sync, runs=runs, warm_up=warm_up)
    setting.give_back()
    return Row(
        "end-to-end",
        clip.name,
        setting.provider,
        preset,
        Spread.of(times_ms),
        warm_up,
        frames=reports[-1].frames,
        memory=watch.peak,
        parts_s=_parts(reports[-runs:]),
        start_up_s={"check bundle": opened_s - start_s, "build, open, first runs": ready_s - opened_s},
        engines=tuple(asdict(engine) for engine in reports[-1].engines),
        facts=_facts(reports[-1], times_ms, _parts(reports[-runs:])),
        notes=tuple(without_paths(notice) for notice in reports[-1].notices),
    )


def _parts(reports: list[SyncReport]) -> dict[str, float]:
    """Seconds that each stage was busy in the middle one of several runs."""
    stages = [{stage.stage: stage.busy_s for stage in report.stages} for report in reports]
    names = sorted(stages[0], key=lambda name: _STAGES.index(name) if name in _STAGES else len(_STAGES))
    return {name: median(run.get(name, 0.0) for run in stages) for name in names}


def _facts(report: SyncReport, times_ms: list[float], parts_s: dict[str, float]) -> dict[str, float]:
    wall_s = median(times_ms) / 1000
    return {
        "paint_busy_share": parts_s.get("paint", 0.0) / wall_s,
        "seconds_per_second_of_video": wall_s / report.duration_s,
        "frames_with_face": float(report.frames_with_face),
        "windows": float(report.windows),
    }


def _write_reference(setting: Setting, clip: Clip, folder: Path) -> Path:
    """The clip to compare with."""
    target = folder / f"{setting.provider}-reference.mp4"
    setting.say(f"{setting.provider}: the clip to compare with ({setting.reference_name})")
    with _lip_sync(setting.reference_setting) as lip_sync:
        lip_sync.sync(clip.video, clip.audio, target, setting.reference_setting.sync_options(REFERENCE_PRESET))
    setting.give_back()
    return target


def _quality(setting: Setting, target: Path, reference: Path) -> Quality:
    """Compares the faces of two clips where the reference's face is.

    Raises:
        NoFaceError: the reference shows none.
    """
    resolution_px = setting.bundle.manifest.resolution_px
    rows, columns = generated_part(resolution_px)
    ours, theirs = list[UInt8Array](), list[UInt8Array]()
    pictures = (frame.rgb for frame in read_frames(target, rgb_only=True))
    faces = aligned_faces((frame.rgb for frame in read_frames(reference, rgb_only=True)), resolution_px)
    for picture, face in islice(zip(pictures, faces, strict=False), _MOST_COMPARED):
        if face is not None:
            ours.append(crop(picture, face.matrix, resolution_px).image[rows, columns])
            theirs.append(face.image[rows, columns])
    if not ours:
        raise NoFaceError(f"the first {_MOST_COMPARED} frames of the reference show no face: nothing to compare")
    return compare(np.stack(ours), np.stack(theirs), setting.reference_name)


def _lip_sync(setting: Setting) -> LipSync:
    return LipSync(Networks(setting.bundle, setting.selection, setting.runtime, on_notice=setting.say))
