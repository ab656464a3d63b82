"""The networks of one bundle on one provider: audio encoder, image codec and denoiser over the pool of sessions."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import numpy as np

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, OutOfMemory, OutputError, ProviderUnavailable
from latentsync_trt.runtime.cache.engine_cache import EngineCache, Notice, cache_folder
from latentsync_trt.runtime.compiler.profiles import usual_shape
from latentsync_trt.runtime.networks.background import BackgroundBuild
from latentsync_trt.runtime.networks.batching import needed_bytes, windows_that_fit
from latentsync_trt.runtime.networks.codec import PooledCodec
from latentsync_trt.runtime.networks.denoiser import step_graph
from latentsync_trt.runtime.networks.pooled import Denoisers, PooledDenoiser
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, next_provider
from latentsync_trt.runtime.sessions.engines import COMPILING_PROVIDERS, Engines
from latentsync_trt.runtime.sessions.pool import SessionPool
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.runtime.sessions.trace import profile_folder, write_profile
from latentsync_trt.types import EngineTime, Float32Array, Span, UInt8Array, UInt16Array


class Networks:
    """Image codec, audio encoder and denoiser of `bundle`, run by the selected provider.

    Args:
        may_pass_over: another provider may be taken where the selected one cannot make the engines; it is told.
        on_notice: told, in a sentence, about builds, waits, and whatever makes a run slower than expected.

    Raises:
        InputError: `options` ask for shapes that the bundle does not have, or for what the provider cannot do.
    """

    def __init__(
        self,
        bundle: Bundle,
        selection: Selection,
        options: RuntimeOptions | None = None,
        *,
        may_pass_over: bool = False,
        on_notice: Notice | None = None,
    ) -> None:
        self.bundle = bundle
        self.options = options or RuntimeOptions()
        self._on_notice = on_notice
        self._notices: list[str] = []
        self._may_pass_over = may_pass_over
        self._cache = EngineCache(cache_folder(self.options.engine_cache), self._notice)
        self._denoisers: WeakSet[PooledDenoiser] = WeakSet()
        self._needed: tuple[str, ...] = ()
        self._build: BackgroundBuild | None = None
        self._build_wanted = self.options.build == "background"
        self._profile = profile_folder(self.options.profile)
        self._spans: list[Span] = []
        self._pool = SessionPool(
            self._engines(selection),
            low_memory=self.options.low_memory,
            trace_folder=self._profile,
            on_notice=self._notice,
            on_close=self._release_buffers,
        )

        self._windows_that_fit: int | None = None
        # Known now, not at the first window.
        self._pool.engines.check(windows=self.windows_per_batch)
        self._graph_denoisers = Denoisers(self._pool, self._notice)
        self._codec = PooledCodec(self._pool)

    @property
    def selection(self) -> Selection:
        """The provider that runs now."""
        return self._pool.engines.selection

    @property
    def windows_per_batch(self) -> int:
        """How many windows the denoiser takes at once: as asked, else as many as the first `prepare` found to fit."""
        if self.options.windows_per_batch is not None:
            return self.options.windows_per_batch
        return 1 if self.low_memory else self._windows_that_fit or 1

    @property
    def low_memory(self) -> bool:
        """Whether one network at a time is kept on the device: by request, or since memory ran out."""
        return self._pool.low_memory

    @property
    def on_span(self) -> Callable[[Span], None] | None:
        """Takes the times of stages for the profile; None if there is to be none."""
        return None if self._profile is None else self._spans.append

    def times(self) -> tuple[EngineTime, ...]:
        """What each engine cost so far."""
        return self._pool.times()

    def take_notices(self) -> tuple[str, ...]:
        """What was noticed since the last call."""
        notices, self._notices = self._notices, []
        return tuple(notices)

    def session(self, graph: str) -> Session:
        """The session of a graph, opened at the first call; valid until another network is used."""
        return self._pool.session(graph)

    def prepare(self, graphs: Iterable[str]) -> None:
        """Builds and opens what a run needs, before it begins.

        Raises:
            EngineBuildError: the provider, or every provider that may be taken, cannot compile a graph.
            OutOfMemory: there is too little memory.
        """
        self._needed = graphs = tuple(graphs)
        if self._windows_that_fit is None:
            self._save_memory_if_short()
        if self._build_wanted:
            self._build_wanted = False
            self._start_build(graphs)
        while True:
            try:
                self._pool.prepare(graphs)
                break
            except EngineBuildError as error:
                self._pass_over(error)
        if self._windows_that_fit is None:  # later, some of what is used is the pool's own and would be free again
            self._windows_that_fit = self._count_windows_that_fit()

    def warm_up(self, graphs: Iterable[str]) -> None:
        """Runs each graph once on zeros, so that the first clip does not pay for what providers do at a first run."""
        for graph in graphs:
            session = self.session(graph)
            ranges = self._pool.engines.ranges
            session.run(
                {tensor.name: np.zeros(usual_shape(tensor.shape, ranges), tensor.dtype) for tensor in session.inputs}
            )

    def between_windows(self) -> None:
        """Changes to the engines that were built in the background, once they are ready."""
        if self._build is None or not self._build.done:
            return
        build, self._build = self._build, None
        meanwhile = self._pool.engines
        problem = build.error or self._change_to_built(build)
        if not problem:
            return
        self._notice(f"building in the background failed, going on with {meanwhile.selection.name}: {problem}")
        if self._pool.engines is not meanwhile:
            self._pool.switch(meanwhile)
            self._pool.prepare(self._needed)

    def wait_for_build(self) -> str:
        """Waits for engines that are built in the background; returns what went wrong, empty if nothing."""
        return "" if self._build is None else self._build.wait()

    @property
    def building(self) -> bool:
        """Whether engines are being built in the background."""
        return self._build is not None and not self._build.done

    def close(self) -> tuple[Path, ...]:
        """Frees everything, stops a build in the background; writes the profile, if one was asked for: its files.

        Raises:
            OutputError: the profile cannot be written.
        """
        if self._build is not None:
            self._build.stop()
        self._codec.release()
        self._pool.close()
        times, traces = self._pool.take_profile()
        if self._profile is None or not traces:
            return ()
        spans, self._spans = self._spans, []
        return write_profile(self._profile, times, traces, spans)

    def denoiser(self) -> PooledDenoiser:
        """A denoiser for one clip."""
        denoiser = PooledDenoiser(self._pool, self._graph_denoisers)
        self._denoisers.add(denoiser)
        return denoiser

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        """Log mel spectrogram `(1, 80, 3000)` → features `(1, 1500, L, D)`."""
        return self.session("audio_encoder").run({"mel": mel})[0]

    def encode(self, images: Float32Array) -> Float32Array:
        """Images `(N, 3, H, W)` in [−1, 1] → scaled latents `(N, 4, h, w)`, any N."""
        return self._codec.encode(images)

    def decode(self, latents: Float32Array) -> Float32Array:
        """Scaled latents `(N, 4, h, w)` → images `(N, 3, H, W)`, about [−1, 1], any N."""
        return self._codec.decode(latents)

    def encode_faces(self, faces: UInt8Array, mask: Float32Array) -> tuple[Float32Array, Float32Array]:
        """As `diffusion.inpainting.ImageCodec.encode_faces`."""
        return self._codec.encode_faces(faces, mask)

    def decode_faces(self, latents: Float32Array) -> list[UInt16Array]:
        """As `diffusion.inpainting.ImageCodec.decode_faces`."""
        return self._codec.decode_faces(latents)

    def _save_memory_if_short(self) -> None:
        """Keeps one network at a time from the start, where all of them would not fit."""
        gpu = self.selection.gpu
        free_bytes = None if gpu is None else free_memory_bytes(gpu.index)
        if free_bytes is None or self.low_memory:
            return
        form = self._pool.engines.form("denoise_step")
        least = needed_bytes(self.bundle.manifest, provider=self.selection.name, form=form)
        if least > free_bytes:
            self._pool.save_memory(f"this bundle takes about {least / 1e9:.1f} GB, {free_bytes / 1e9:.1f} GB is free")

    def _count_windows_that_fit(self) -> int:
        """Of the engines that run now; those that are being built meanwhile are for the same shapes."""
        gpu = self.selection.gpu
        free_bytes = None if gpu is None else free_memory_bytes(gpu.index)
        return windows_that_fit(self.bundle.manifest, self._pool.engines.ranges, free_bytes)

    def _notice(self, text: str) -> None:
        if text in self._notices:  # networks that take turns meet the same trouble at every turn
            return
        self._notices.append(text)
        if self._on_notice is not None:
            self._on_notice(text)

    def _engines(self, selection: Selection) -> Engines:
        return Engines(self.bundle, selection, self.options, self._cache, self._notice)

    def _start_build(self, graphs: tuple[str, ...]) -> None:
        """Builds what is missing in a process of its own, and runs on the next provider meanwhile."""
        engines = self._pool.engines
        name = engines.selection.name
        # Elsewhere building takes less than a window does on the next provider.
        missing = self._missing(graphs) if name in COMPILING_PROVIDERS else ()
        if not missing:
            return
        try:
            meanwhile = self._engines(next_provider(engines.selection))
        except (ProviderUnavailable, InputError) as error:
            self._notice(f"nothing to run on while engines are built, so the run waits for them: {error}")
            return
        self._pool.switch(meanwhile)
        self._build = BackgroundBuild(engines, missing)
        running = meanwhile.selection.name
        self._notice(f"{len(missing)} engines for {name} are being built; running on {running} meanwhile")

    def _missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` that a build would leave in the cache; none where the cache cannot even be read."""
        with suppress(OutputError):  # opening tells of it, and builds for this run only
            return self._pool.engines.missing(graphs)
        return ()

    def _change_to_built(self, build: BackgroundBuild) -> str:
        """Opens the engines that were built; what went wrong, empty if nothing."""
        name = build.engines.selection.name
        self._notice(f"engines for {name} are ready after {build.elapsed_s:.0f} s; changing to them")
        self._pool.switch(build.engines)
        try:
            self._pool.prepare(self._needed)
        except (EngineBuildError, OutOfMemory) as error:
            return str(error)
        return ""

    def _pass_over(self, error: EngineBuildError) -> None:
        """Goes on with the next provider, saying why; raises `error` where a provider was demanded or none is left."""
        if not self._may_pass_over:
            raise error
        try:
            following = next_provider(self.selection, at_once=False)
        except ProviderUnavailable:
            raise error from None
        self._notice(f"{self.selection.name} cannot run this bundle, going on with {following.name}: {error}")
        self._pool.switch(self._engines(following))

    def _release_buffers(self, graphs: tuple[str, ...]) -> None:
        # Where others make room for a denoiser's step, that step goes on with what it has.
        if any(graph.startswith("denoise_step") for graph in graphs):
            self._graph_denoisers.release()
            for denoiser in self._denoisers:
                denoiser.release()


def graphs_for(*, guidance: float, full_steps_only: bool, unguided_too: bool = False) -> tuple[str, ...]:
    """The graphs that a run of these settings uses; `unguided_too`: some of its steps are not guided."""
    guided = guidance > 1.0
    kinds = (True, False) if guided and unguided_too else (guided,)
    cached = (False,) if full_steps_only else (False, True)
    steps = [step_graph(guided=kind, cached=reuse) for kind in kinds for reuse in cached]
    return ("audio_encoder", "vae_encoder", *steps, "vae_decoder")
