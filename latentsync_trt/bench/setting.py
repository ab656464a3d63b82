"""What all scenarios share: a bundle on a provider, timed runs, and a watch on memory."""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Self

import psutil

from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.rows import Memory, Row, Spread
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.sync.inpaint import Inpainter, make_inpainter, resolution_of
from latentsync_trt.types import Denoiser, ImageCodec

_POLL_S = 0.02
"""Interval of polling: shorter than a denoising step, long enough not to slow it down."""


def measure(run: Callable[[], object], *, runs: int, warm_up: int) -> list[float]:
    """Milliseconds of each of `runs` calls, after `warm_up` untimed ones; `run` must be synchronous."""
    for _ in range(warm_up):
        run()
    times_ms = []
    for _ in range(runs):
        start_s = perf_counter()
        run()
        times_ms.append(1000 * (perf_counter() - start_s))
    return times_ms


class MemoryWatch:
    """Polls memory in a thread of its own while the block runs.

    Args:
        gpu_index: the GPU to watch, or None. free_before_bytes: memory that was free on it before the bench began.
    """

    def __init__(self, gpu_index: int | None, free_before_bytes: int | None) -> None:
        self._gpu_index, self._free_before_bytes = gpu_index, free_before_bytes
        self._process = psutil.Process()
        self._host_bytes, self._device_bytes = 0, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def peak(self) -> Memory:
        """The highest use so far."""
        self._look()
        return Memory(self._host_bytes, None if self._free_before_bytes is None else self._device_bytes)

    def _poll(self) -> None:
        while not self._stopped.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        self._host_bytes = max(self._host_bytes, self._process.memory_info().rss)
        if self._gpu_index is not None and self._free_before_bytes is not None:
            free_bytes = free_memory_bytes(self._gpu_index)
            if free_bytes is not None:
                self._device_bytes = max(self._device_bytes, self._free_before_bytes - free_bytes)


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider.

    `sync`: options that override every preset. `free_before_bytes`: device memory free before anything was opened, None
    on the CPU. `say`: called with a line about what is being measured.
    """

    bundle: Bundle
    selection: Selection
    runtime: RuntimeOptions
    sync: SyncOptions
    options: BenchOptions
    free_before_bytes: int | None
    say: Callable[[str], None]

    @property
    def provider(self) -> str:
        """Name of the provider."""
        return self.selection.name

    @property
    def resolution_px(self) -> int:
        """Of the faces; raises `InputError` as `resolution_of`."""
        return resolution_of(self.bundle.manifest, self.sync, self.runtime)

    def sync_options(self, preset: str) -> SyncOptions:
        """The options of `sync --preset`, overridden by those of this bench; raises `InputError` on a contradiction."""
        return replace(self.sync, preset=preset)  # type: ignore[arg-type]  # checked by `SyncOptions` itself

    def time(self, scenario: str, run: Callable[[], object]) -> tuple[Spread, int]:
        """Times `run` as often as the scenario asks for; returns the times and the number of warm-up runs."""
        runs, warm_up = self.options.repetitions(scenario)
        return Spread.of(measure(run, runs=runs, warm_up=warm_up)), warm_up

    def row(self, scenario: str, case: str, run: Callable[[], object], watch: MemoryWatch, **fields: Any) -> Row:
        """Times `run`; a row with its times, the memory that `watch` saw, and `fields`."""
        time, warm_up = self.time(scenario, run)
        known = {"provider": self.provider, "preset": None, **fields}
        return Row(scenario, case, time=time, warm_up=warm_up, memory=watch.peak, **known)

    def networks(self) -> closing[Networks]:
        """A context with the bundle's networks. Raises `InputError` if bundle or provider lack what `runtime` asks."""
        return closing(Networks(self.bundle, self.selection, self.runtime, on_notice=self.say))

    def watch(self) -> MemoryWatch:
        """Watches memory while a block runs."""
        gpu = self.selection.gpu
        return MemoryWatch(None if gpu is None else gpu.index, self.free_before_bytes)

    def inpainter(self, options: SyncOptions, codec: ImageCodec, denoiser: Denoiser) -> Inpainter:
        """The inpainter that `sync` uses, on this codec and denoiser."""
        manifest = self.bundle.manifest
        return make_inpainter(manifest, options, codec, denoiser, windows_per_batch=self.runtime.windows_per_batch or 1)


def settings_for(
    bundle: Bundle, runtime: RuntimeOptions, sync: SyncOptions, options: BenchOptions, say: Callable[[str], None]
) -> list[Setting]:
    """One setting per provider, in the order given, without duplicates.

    Raises:
        ProviderUnavailable: a named provider does not load.
    """
    settings: dict[str, Setting] = {}
    for name in options.provider:
        chosen = select_provider(name, runtime.one_device)
        for text in chosen.notices():
            say(text)
        free_bytes = None if chosen.gpu is None else free_memory_bytes(chosen.gpu.index)
        settings.setdefault(chosen.name, Setting(bundle, chosen, runtime, sync, options, free_bytes, say))
    return list(settings.values())
