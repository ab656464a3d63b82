"""Measures `sync` from file to file, for each provider and preset."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
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
from latentsync_trt.measure.clips import measure_clip
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet
from latentsync_trt.media.demo_clip import SpokenClip
from latentsync_trt.media.reader import delays_of
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.devices import free_memory_bytes
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.sync.api import LipSync
from latentsync_trt.unexpected import without_paths


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider.

    `resolution_px`: of the faces. `free_before_bytes`: device memory free before anything was
    opened, None on the CPU. `say`: called with a line about what is measured. `runs`, `warm_up`:
    with and without a clock.
    """

    bundle: Bundle
    selection: Selection
    runtime: RuntimeOptions
    resolution_px: int
    free_before_bytes: int | None
    say: Callable[[str], None]
    runs: int = 3
    warm_up: int = 1

    def timed(self, run: Callable[[], Any]) -> tuple[list[float], Any]:
        """Milliseconds of each timed run, and what the last one returned; `run` must be
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
        **fields: Any,
    ) -> BenchRow:
        """A row whose time has the median, and the 5th and 95th percentile (interpolated where runs
        are few).
        """
        names = ("median_ms", "p5_ms", "p95_ms")
        levels = np.percentile(times_ms, [50, 5, 95]).tolist()
        known = {
            "provider": self.selection.name,
            "preset": None,
            "notes": tuple(map(without_paths, notes)),
            **fields,
        }
        return BenchRow(
            scenario,
            case,
            time={**dict(zip(names, levels, strict=True)), "runs": len(times_ms)},
            **known,
        )

    @contextmanager
    def memory(self) -> Iterator[dict[str, int | None]]:
        """The peak while the block runs, final after it: resident on the host, and in use on the
        device beyond the use before the bench began (None if unknown).
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
                peak.update({name: max(peak[name] or 0, value) for name, value in used.items()})

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
    say: Callable[[str], None],
) -> list[Setting]:
    """One setting per provider, in the order given, without duplicates. Raises `InputError` if an
    option cannot be used, `ProviderUnavailable` if a named provider does not load.
    """
    settings = dict[str, Setting]()
    resolution_px = resolution_of(bundle.manifest, sync, runtime)
    for name in providers:
        selection = select_provider(name, runtime.one_device)
        for text in selection.notices():
            say(text)
        free_bytes = None if selection.gpu is None else free_memory_bytes(selection.gpu.index)
        settings.setdefault(
            selection.name, Setting(bundle, selection, runtime, resolution_px, free_bytes, say)
        )
    return [*settings.values()]


def run_bench(
    settings: Iterable[Setting],
    presets: Iterable[SyncOptions],
    clip: SpokenClip,
    folder: Path,
    network: SyncNet | None,
) -> Generator[BenchRow, None, None]:
    """Syncs `clip` with each of the `presets` in each setting, into `folder`; `network` measures
    LSE-C and LSE-D. Raises as `LipSync.sync`.
    """
    for setting, options in product(settings, presets):
        setting.say(f"{setting.selection.name}: {clip.name} with preset {options.preset}")
        target = folder / f"{setting.selection.name}-{options.preset}.mp4"
        with setting.memory() as memory:
            start_s = perf_counter()
            with LipSync(
                setting.bundle, setting.selection, setting.runtime, on_notice=setting.say
            ) as lip_sync:
                lip_sync.warm_up(options)
                start_up_s = {"build, open, first runs": perf_counter() - start_s}
                sync = partial(
                    lip_sync.sync, clip.video, clip.audio, target, replace(options, overwrite=True)
                )
                times_ms, report = setting.timed(sync)
        meter = None
        if network is not None:
            meter = SyncMeter(network, clip.audio, delays_of(clip.video, clip.audio).sound_s)
            measure_clip(target, clip.audio, meter=meter)
        found: dict[str, Any] = {
            "preset": options.preset,
            "frames": report.frames,
            "memory": memory,
            "start_up_s": start_up_s,
            "syncnet": meter and meter.result(),
            "parts_s": {stage.stage: stage.busy_s for stage in report.stages},
            "engines_ms": {engine.graph: engine.mean_ms for engine in report.engines},
        }
        yield setting.row("end-to-end", clip.name, times_ms, report.notices, **found)
