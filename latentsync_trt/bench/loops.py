"""Scenario "loop": one window of faces, or a batch, through the VAE and all denoising steps, for each preset."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from statistics import fmean

import numpy as np

from latentsync_trt.bench.material import Clip, FaceWindow, first_window, generated_part
from latentsync_trt.bench.pictures import likeness
from latentsync_trt.bench.rows import Quality, Row, Spread
from latentsync_trt.bench.setting import Setting, measure
from latentsync_trt.config import PresetName, SyncOptions
from latentsync_trt.privacy import without_paths
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.types import UInt8Array, UInt16Array

_REFERENCE: PresetName = "quality"
"""The preset whose pictures the others are compared with."""


def measure_loops(setting: Setting, clip: Clip) -> Iterator[Row]:
    """A row for each preset; the reference preset, if it is among them, comes first. Errors as `Inpainter.paint`."""
    reference_options = SyncOptions(preset=_REFERENCE, resolution=setting.sync.resolution)
    reference_name = f"{setting.bundle.manifest.name}, preset {_REFERENCE}, on {setting.provider}"
    setting.say(f"{setting.provider}: a window of {clip.name}")
    with setting.networks() as networks:
        manifest = setting.bundle.manifest
        window = first_window(clip, manifest.frames, networks, setting.resolution_px)
        options = {preset: setting.sync_options(preset) for preset in setting.options.preset}
        reference = None
        if reference_options not in options.values():
            setting.say(f"{setting.provider}: the window to compare with ({reference_name})")
            inpainter = setting.inpainter(reference_options, networks.codec, networks.denoiser)
            reference = _generated(inpainter.paint([(window.faces, window.audio)])[0])
        for preset in sorted(options, key=lambda name: options[name] != reference_options):
            setting.say(f"{setting.provider}: a window with preset {preset}")
            row, painted = _measure(setting, networks, window, preset, options[preset])
            if reference is None:
                reference = painted
            else:
                row = replace(row, quality=Quality(**asdict(likeness(painted, reference)), reference=reference_name))
            yield row


def _measure(
    setting: Setting, networks: Networks, window: FaceWindow, preset: str, options: SyncOptions
) -> tuple[Row, UInt8Array]:
    """A row without quality, and the generated part of the first window."""
    runs, warm_up = setting.options.repetitions("loop")
    inpainter = setting.inpainter(options, networks.codec, networks.denoiser)
    windows = [(window.faces, window.audio)] * (setting.runtime.windows_per_batch or 1)
    painted: list[Sequence[UInt16Array]] = []

    def paint() -> None:
        painted[:] = inpainter.paint(windows)

    with setting.watch() as watch:
        measure(paint, runs=0, warm_up=warm_up)
        before_s = _graph_seconds(networks)
        times_ms = measure(paint, runs=runs, warm_up=0)
        memory = watch.peak
    busy_s = {graph: total_s - before_s.get(graph, 0.0) for graph, total_s in _graph_seconds(networks).items()}
    parts_s = {graph: total_s / runs for graph, total_s in busy_s.items() if total_s > 0}
    row = Row(
        "loop",
        "one window" if len(windows) == 1 else f"{len(windows)} windows",
        setting.provider,
        preset,
        Spread.of(times_ms),
        warm_up,
        frames=len(windows) * len(window.faces),
        memory=memory,
        parts_s={**parts_s, "rest": fmean(times_ms) / 1000 - sum(parts_s.values())},
        notes=tuple(map(without_paths, networks.take_notices())),
    )
    return row, _generated(painted[0])


def _graph_seconds(networks: Networks) -> dict[str, float]:
    return {time.graph: (time.first_ms + (time.runs - 1) * time.mean_ms) / 1000 for time in networks.times()}


def _generated(painted: Sequence[UInt16Array]) -> UInt8Array:
    """The generated part of faces, uint16 `(H, W, 3)`, as 8-bit pictures."""
    rows, columns = generated_part(len(painted[0]))
    return np.rint(np.stack([face[rows, columns] for face in painted]) / 257).astype(np.uint8)
