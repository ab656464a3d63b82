"""Scenario "loop": a window of faces, or a batch, through the VAE and all denoising steps, for each preset."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

import numpy as np

from latentsync_trt.bench.machine import without_paths
from latentsync_trt.bench.material import Clip, FaceWindow, first_window, generated_part
from latentsync_trt.bench.perceptual import lpips_distance
from latentsync_trt.bench.pictures import likeness
from latentsync_trt.bench.rows import Quality, Row, StepTimes
from latentsync_trt.bench.setting import REFERENCE_PRESET, Setting
from latentsync_trt.bench.spread import Spread, measure
from latentsync_trt.bench.timed import LOOP, TimedCodec, TimedDenoiser, Times
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.types import UInt8Array, UInt16Array


def measure_loops(setting: Setting, clip: Clip) -> Iterator[Row]:
    """A row for each preset. Errors as `first_window` and `Inpainter.paint`."""
    setting.say(f"{setting.provider}: a window of {clip.name}")
    with setting.networks() as networks:
        manifest = setting.bundle.manifest
        window = first_window(clip, manifest.frames, manifest.resolution_px, networks.encode_mel)
        presets = sorted(setting.options.preset, key=lambda preset: not setting.is_reference(preset))
        reference = None if setting.is_reference(presets[0]) else _reference(setting, networks, window, clip)
        for preset in presets:
            setting.say(f"{setting.provider}: a window with preset {preset}")
            row, painted = _measure(setting, networks, window, preset)
            if reference is None:
                reference = painted
            else:
                row = replace(row, quality=compare(painted, reference, setting.reference_name))
            yield row


def _reference(setting: Setting, networks: Networks, window: FaceWindow, clip: Clip) -> UInt8Array:
    """The pictures to compare with."""
    setting.say(f"{setting.provider}: the window to compare with ({setting.reference_name})")
    with ExitStack() as stack:
        if setting.reference is not None:
            manifest = setting.reference.manifest
            networks = stack.enter_context(setting.reference_setting.networks())
            # Another bundle may hear with another encoder.
            window = first_window(clip, manifest.frames, manifest.resolution_px, networks.encode_mel)
        inpainter = setting.reference_setting.inpainter(REFERENCE_PRESET, networks, networks.denoiser())
        return _generated(inpainter.paint([(window.faces, window.audio)])[0])


def _measure(setting: Setting, networks: Networks, window: FaceWindow, preset: str) -> tuple[Row, UInt8Array]:
    """A row without quality, and the pictures that came out."""
    runs, warm_up = setting.options.runs_of("loop"), setting.options.warm_up_of("loop")
    times = Times()
    painted: list[Sequence[UInt16Array]] = []
    parts: list[dict[str, float]] = []
    inpainter = setting.inpainter(preset, TimedCodec(networks, times), TimedDenoiser(networks.denoiser(), times))

    windows = [(window.faces, window.audio)] * setting.windows_per_batch
    frames = len(windows) * len(window.faces)

    def paint() -> None:
        times.parts_s.clear()
        painted[:] = inpainter.paint(windows)
        parts.append(dict(times.parts_s))

    with setting.watch() as watch:
        measure(paint, runs=0, warm_up=warm_up)
        times.clear()
        parts.clear()
        times_ms = measure(paint, runs=runs, warm_up=0)
    parts_s = {name: median(run[name] for run in parts) for name in parts[0]}
    time = Spread.of(times_ms)
    steps = times.steps(runs)
    row = Row(
        "loop",
        "one window" if len(windows) == 1 else f"{len(windows)} windows",
        setting.provider,
        preset,
        time,
        warm_up,
        frames=frames,
        memory=watch.peak,
        parts_s={**parts_s, "rest": max(time.median_ms / 1000 - sum(parts_s.values()), 0.0)},
        steps=steps,
        facts=_facts(steps, parts_s[LOOP], frames / MODEL_FPS, time),
        notes=tuple(map(without_paths, networks.take_notices())),
    )
    return row, _generated(painted[0])


def _facts(steps: tuple[StepTimes, ...], loop_s: float, video_s: float, time: Spread) -> dict[str, float]:
    """What the loop costs in its own guided full steps, and the seconds of computing for a second of video."""
    facts = {"seconds_per_second_of_video": time.median_ms / 1000 / video_s}
    full_ms = [ms for kind in steps if kind.full and kind.guided for ms in kind.times_ms]
    if full_ms:
        facts["full_step_ms"] = median(full_ms)
        facts["full_step_equivalents"] = 1000 * loop_s / median(full_ms)
    return facts


def compare(ours: UInt8Array, reference: UInt8Array, name: str) -> Quality:
    """How near `ours` is to `reference`, both the generated parts of faces, uint8 `(n, h, w, 3)`.

    Raises:
        InputError: they differ in number or size.
    """
    found = likeness(ours, reference)
    psnr_db = found.psnr_db if np.isfinite(found.psnr_db) else None
    return Quality(name, psnr_db, found.ssim, lpips_distance(ours, reference), found.frames)


def _generated(painted: Sequence[UInt16Array]) -> UInt8Array:
    """The generated part of faces, uint16 `(H, W, 3)`, as pictures of 8 bits."""
    rows, columns = generated_part(len(painted[0]))
    return np.rint(np.stack([face[rows, columns] for face in painted]) / 257).astype(np.uint8)
