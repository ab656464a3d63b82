"""What every scenario works with: a bundle on a provider, and how often."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from latentsync_trt.bench.options import BenchOptions
from latentsync_trt.bench.watch import MemoryWatch
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import PresetName, RuntimeOptions, SyncOptions
from latentsync_trt.diffusion.loop import Denoiser, initial_noise
from latentsync_trt.diffusion.plan import plan_for
from latentsync_trt.diffusion.scheduler import solver_schedule
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.runtime.networks.networks import Networks
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, select_provider
from latentsync_trt.runtime.sessions.memory import give_back_gpu_memory
from latentsync_trt.sync.inpaint import ImageCodec, Inpainter

REFERENCE_PRESET: PresetName = "quality"


@dataclass(frozen=True, slots=True)
class Setting:
    """A bundle on a provider.

    `reference`: the bundle that pictures are compared with, None for `bundle` itself. `sync`: what counts before every
    preset. `free_before_bytes`: device
    memory that was free before anything was opened, None where there is none. `say`: told what is being measured.
    """

    bundle: Bundle
    reference: Bundle | None
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
    def windows_per_batch(self) -> int:
        """Of loops: one unless more were asked for, so that rows of different machines compare."""
        return self.runtime.windows_per_batch or 1

    @property
    def reference_name(self) -> str:
        """What pictures are compared with, in words."""
        return f"{(self.reference or self.bundle).manifest.name}, preset {REFERENCE_PRESET}, on {self.provider}"

    @property
    def reference_setting(self) -> "Setting":
        """The same for the bundle of the reference, where nothing counts before the preset."""
        return replace(self, bundle=self.reference or self.bundle, reference=None, sync=SyncOptions())

    def sync_options(self, preset: str) -> SyncOptions:
        """What `sync --preset` would run, with what counts before it."""
        return with_preset(self.sync, preset)

    def is_reference(self, preset: str) -> bool:
        """Whether a run with `preset` is the reference itself."""
        return self.reference is None and self.sync_options(preset) == SyncOptions(preset=REFERENCE_PRESET)

    @contextmanager
    def networks(self) -> Iterator[Networks]:
        """The bundle's networks; closed at the end, and their device memory given back.

        Raises:
            InputError: the runtime options ask for what bundle or provider do not have.
        """
        networks = Networks(self.bundle, self.selection, self.runtime, on_notice=self.say)
        try:
            yield networks
        finally:
            self.close(networks)

    def close(self, networks: Networks) -> None:
        """Closes sessions, which open again when they are needed, and returns what they held to the device."""
        networks.close()
        self.give_back()

    def give_back(self) -> None:
        """Returns what closed sessions held to the device."""
        if self.provider == "cuda":
            give_back_gpu_memory(self.selection.device_id)

    def watch(self) -> MemoryWatch:
        """Looks at memory while something runs."""
        gpu = self.selection.gpu
        return MemoryWatch(None if gpu is None else gpu.index, self.free_before_bytes)

    def inpainter(self, preset: str, codec: ImageCodec, denoiser: Denoiser) -> Inpainter:
        """The inpainter that `sync --preset` uses, on this codec and denoiser."""
        options = self.sync_options(preset)
        resolution_px, latent_px = self.bundle.manifest.resolution_px, self.bundle.manifest.latent_px
        return Inpainter(
            codec=codec,
            denoiser=denoiser,
            mask=mouth_mask(resolution_px),
            latent_mask=latent_mask(resolution_px),
            noise=initial_noise(options.seed, latent_px, latent_px),
            guidance=options.guidance,
            schedule=solver_schedule(options.sampling.solver, options.sampling.steps),
            plan=plan_for(options),
            windows_per_batch=self.windows_per_batch,
        )


def with_preset(sync: SyncOptions, preset: str) -> SyncOptions:
    """`sync` with another preset; raises `InputError` where the two contradict."""
    return replace(sync, preset=preset)  # type: ignore[arg-type]  # checked by `SyncOptions` itself


def settings_for(
    bundle: Bundle,
    reference: Bundle | None,
    runtime: RuntimeOptions,
    sync: SyncOptions,
    options: BenchOptions,
    say: Callable[[str], None],
) -> list[Setting]:
    """A setting for each provider, in the order given, each provider once.

    Raises:
        ProviderUnavailable: a named provider does not load.
    """
    selections: dict[str, Selection] = {}
    for request in options.provider:
        selection = select_provider(request, runtime.device)
        for text in selection.notices():
            say(text)
        selections.setdefault(selection.name, selection)
    return [
        Setting(bundle, reference, chosen, runtime, sync, options, _free_memory_bytes(chosen), say)
        for chosen in selections.values()
    ]


def _free_memory_bytes(selection: Selection) -> int | None:
    return None if selection.gpu is None else free_memory_bytes(selection.gpu.index)
