"""What all scenarios share: a bundle on a provider, and how often to run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from latentsync_trt.bench.measure import MemoryWatch, measure
from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.rows import Row, Spread
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.sync.inpaint import Inpainter, make_inpainter
from latentsync_trt.types import Denoiser, ImageCodec


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

    @contextmanager
    def networks(self) -> Iterator[Networks]:
        """The bundle's networks; at the end they are closed and their device memory is released.

        Raises:
            InputError: the bundle or the provider lacks what the runtime options ask for.
        """
        networks = Networks(self.bundle, self.selection, self.runtime, on_notice=self.say)
        try:
            yield networks
        finally:
            networks.close()

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
