"""Measures `sync` from file to file: for `bench` and, on two windows, for `selftest`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from latentsync_trt.bench.rows import BenchRow
from latentsync_trt.bundle.manifest import Bundle, resolution_of
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import Notices
from latentsync_trt.measure.clips import measure_clip
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet
from latentsync_trt.measures import SyncNetMeasure
from latentsync_trt.media.demo_clip import SpokenClip
from latentsync_trt.media.reader import delays_of
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.devices import free_memory_bytes
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.sync.api import LipSync
from latentsync_trt.sync.inputs import Helpers
from latentsync_trt.types import NoticeCallback, SyncReport
from latentsync_trt.unexpected import without_paths


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider, and how often its runs are repeated."""

    bundle: Bundle
    selection: Selection
    runtime: RuntimeOptions
    resolution_px: int
    """Side of a face."""
    free_before_bytes: int | None
    """Device memory that was free before anything was opened; None on the CPU."""
    on_notice: NoticeCallback
    """Gets lines about what is measured."""
    runs: int = 3
    warm_up: int = 1
    """Runs before those, which are not timed."""

    def timed(self, run: Callable[[], Any]) -> tuple[list[float], Any]:
        """Returns the milliseconds of each timed run, and what the last one returned; `run` must be
        synchronous.
        """
        times_ms = []
        for _ in range(self.warm_up + self.runs):
            start_s = perf_counter()
            result = run()
            times_ms.append(1000 * (perf_counter() - start_s))
        return times_ms[self.warm_up :], result

    def row(
        self,
        scenario: str,
        case: str,
        times_ms: Sequence[float],
        notes: Iterable[str],
        *,
        provider: str | None = None,
        preset: str | None = None,
        **fields: Any,
    ) -> BenchRow:
        """Returns a row whose time has the median, and the 5th and 95th percentile (interpolated
        where runs are few).
        """
        median_ms, p5_ms, p95_ms = np.percentile(times_ms, [50, 5, 95]).tolist()
        time = {"median_ms": median_ms, "p5_ms": p5_ms, "p95_ms": p95_ms, "runs": len(times_ms)}
        return BenchRow(
            scenario,
            case,
            provider=provider or self.selection.name,
            preset=preset,
            time=time,
            notes=tuple(map(without_paths, notes)),
            **fields,
        )

    @contextmanager
    def memory(self) -> Iterator[dict[str, int | None]]:
        """Yields the peak while the block runs, final after it: resident on the host, and in use on
        the device beyond the use before the bench began (None if unknown).
        """
        process = psutil.Process()
        ended = Event()
        gpu = self.selection.gpu
        peak: dict[str, int | None] = {"host_bytes": 0, "device_bytes": None}

        def poll() -> None:
            while not ended.is_set():
                ended.wait(0.02)  # shorter than a denoising step, long enough not to slow it down
                used = {"host_bytes": process.memory_info().rss}
                free_bytes = None if gpu is None else free_memory_bytes(gpu.index)
                if free_bytes is not None and self.free_before_bytes is not None:
                    used["device_bytes"] = self.free_before_bytes - free_bytes
                for name, value in used.items():
                    peak[name] = max(peak[name] or 0, value)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(poll)
            try:
                yield peak
            finally:
                ended.set()


def settings_for(
    bundle: Bundle,
    runtime: RuntimeOptions,
    sync: SyncOptions,
    providers: Sequence[str],
    on_notice: NoticeCallback,
) -> list[Setting]:
    """Returns a setting for each provider, in the order of their names, without duplicates. Raises
    `InputError` if an option cannot be used, `ProviderUnavailable` if a named provider does not
    load.
    """
    settings: dict[str, Setting] = {}
    resolution_px = resolution_of(bundle.manifest, sync, runtime)
    for name in providers:
        selection = select_provider(name, runtime.one_device)
        for text in selection.notices():
            on_notice(text)
        if selection.name not in settings:
            gpu = selection.gpu
            free_bytes = None if gpu is None else free_memory_bytes(gpu.index)
            settings[selection.name] = Setting(
                bundle, selection, runtime, resolution_px, free_bytes, on_notice
            )
    return [*settings.values()]


@dataclass(frozen=True, slots=True)
class MeasuredSync:
    """Measured runs of `sync`, with one setting and the same inputs."""

    report: SyncReport
    """The last run's."""
    times_ms: Sequence[float]
    """Of each timed run."""
    start_up_s: float
    """Time before the first run, in which networks were built, opened and run once."""
    start_up_notices: Sequence[str]
    """Notices from that time."""
    memory: Mapping[str, int | None]
    """See `Setting.memory`."""


def measure_sync(
    setting: Setting,
    clip: SpokenClip,
    output: Path,
    options: SyncOptions,
    helpers: Helpers | None = None,
) -> MeasuredSync:
    """Opens the model and syncs the clip as often as the setting says. Raises as `LipSync.sync`."""
    options = replace(options, overwrite=True)
    notices = Notices(setting.on_notice)
    with setting.memory() as memory:
        start_s = perf_counter()
        with LipSync(
            setting.bundle, setting.selection, setting.runtime, on_notice=notices.add
        ) as lip_sync:
            lip_sync.warm_up(options)
            start_up_s = perf_counter() - start_s
            start_up_notices = tuple(notices.texts)
            sync = partial(lip_sync.sync, clip.video, clip.audio, output, options, helpers=helpers)
            times_ms, report = setting.timed(sync)
    return MeasuredSync(report, times_ms, start_up_s, start_up_notices, memory)


def run_bench(
    settings: Iterable[Setting],
    presets: Iterable[SyncOptions],
    clip: SpokenClip,
    folder: Path,
    network: SyncNet | None,
) -> Iterator[BenchRow]:
    """Syncs `clip` with each of the `presets` in each setting, into `folder`, and yields a row for
    each; `network` measures LSE-C and LSE-D. Raises as `LipSync.sync`.
    """
    for setting, options in product(settings, presets):
        name = setting.selection.name
        setting.on_notice(f"{name}: {clip.name} with preset {options.preset}")
        output = folder / f"{name}-{options.preset}.mp4"
        measured = measure_sync(setting, clip, output, options)
        report = measured.report
        yield setting.row(
            "end-to-end",
            clip.name,
            measured.times_ms,
            report.notices,
            preset=options.preset,
            frames=report.frames,
            memory=measured.memory,
            start_up_s={"build, open, first runs": measured.start_up_s},
            syncnet=_syncnet_of(output, clip, network),
            parts_s={stage.stage: stage.busy_s for stage in report.stages},
            engines_ms={engine.graph: engine.mean_ms for engine in report.engines},
        )


def _syncnet_of(result: Path, clip: SpokenClip, network: SyncNet | None) -> SyncNetMeasure | None:
    if network is None:
        return None
    meter = SyncMeter(network, clip.audio, delays_of(clip.video, clip.audio).sound_s)
    measure_clip(result, clip.audio, meter=meter)
    return meter.result()
