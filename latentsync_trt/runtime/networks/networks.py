"""The networks of one bundle on one provider: audio encoder, image codec and denoiser."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from latentsync_trt.bundle.manifest import AUDIO_ENCODER, FULL_STEP, Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import (
    EngineBuildError,
    InferenceError,
    InputError,
    OutOfMemory,
    OutputError,
    ProviderUnavailable,
)
from latentsync_trt.remembered import forget
from latentsync_trt.runtime.cache import EngineCache, Notice, cache_folder
from latentsync_trt.runtime.networks.background import BackgroundBuild
from latentsync_trt.runtime.networks.batching import needed_bytes, windows_that_fit
from latentsync_trt.runtime.networks.denoiser import ReplaysDiffer
from latentsync_trt.runtime.networks.opened import Opened
from latentsync_trt.runtime.networks.threads import Shared, Stage, StageThreads
from latentsync_trt.runtime.networks.verdict import Judge
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, next_provider
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.runtime.sessions.engines import CUDA_FORM_FACT, Engines
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.types import Denoiser, EngineTime, Float32Array, ImageCodec

T = TypeVar("T")


class Notices:
    """Collects sentences for the user, each once, and passes them to `on_notice`. Thread-safe."""

    def __init__(self, on_notice: Notice | None = None) -> None:
        self.on_notice = on_notice
        self._texts: list[str] = []
        self._lock = threading.Lock()

    def add(self, text: str) -> None:
        """Adds a notice, unless there is the same one since `take`."""
        with self._lock:
            if text in self._texts:  # a network that is reopened has the same problem each time
                return
            self._texts.append(text)
        if self.on_notice is not None:
            self.on_notice(text)

    def take(self) -> tuple[str, ...]:
        with self._lock:
            texts, self._texts = self._texts, []
        return tuple(texts)


class Delegate:
    """An object whose methods are called through `call`, by their names after `prefix`: what is behind may change."""

    def __init__(self, call: Callable[..., Any], prefix: str = "") -> None:
        self._call, self._prefix = call, prefix

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, f"{self._prefix}{method}")


class Networks(Shared):
    """Image codec, audio encoder and denoiser of `bundle`, run by the selected provider.

    `codec` and `denoiser` serve one window at a time, see `run` and `stage`; on a GPU, in the threads of their stages.

    Args:
        may_fall_back: to another provider, with a notice, where the selected one builds no engines.
        on_notice: called with a sentence about builds, waits, and what makes a run slow.

    Raises:
        InputError: bundle or provider do not support `options`.
    """

    def __init__(
        self,
        bundle: Bundle,
        selection: Selection,
        options: RuntimeOptions | None = None,
        *,
        may_fall_back: bool = False,
        on_notice: Notice | None = None,
    ) -> None:
        super().__init__()
        self.bundle = bundle
        self.options = options or RuntimeOptions()
        self.notices = Notices(on_notice)
        self.notice, self.take_notices = self.notices.add, self.notices.take
        self._cache = EngineCache(cache_folder(self.options.engine_cache), self.notice, self.options.engine_store)
        self._needed: tuple[str, ...] = ()
        self._build: BackgroundBuild | None = None
        self._build_wanted = self.options.build == "background"
        self._windows_that_fit: int | None = None
        self._in_turn = False
        self._judge = Judge(self._engines, self.notice, again=self.options.verify) if may_fall_back else None
        self.low_memory = self.options.low_memory
        """Whether one network at a time is on the device: by option, or since memory ran out."""
        self._threads = StageThreads(lambda: self.selection.gpu is not None)
        engines = self._engines(selection)
        if self._judge is not None and (problem := self._judge.problem(engines)):
            engines = self._following(engines, problem) or engines
        self._opened = Opened(engines, self._threads, low_memory=self.low_memory)
        self._opened.engines.check(windows=self.windows_per_batch)  # now, not at the first window
        self.codec = cast(ImageCodec, Delegate(self._call_codec))
        self.denoiser = cast(Denoiser, Delegate(self._call_denoiser))

    @property
    def selection(self) -> Selection:
        return self._opened.engines.selection

    @property
    def windows_per_batch(self) -> int:
        """Windows that the denoiser takes at once: the option, else as many as fitted at first."""
        if self.options.windows_per_batch is not None:
            return self.options.windows_per_batch
        return 1 if self.low_memory else self._windows_that_fit or 1

    @property
    def side_by_side(self) -> bool:  # type: ignore[override]
        """Whether stages run at the same time: on a GPU with room for all networks."""
        return self.selection.gpu is not None and not self._in_turn and not self.low_memory

    def times(self) -> tuple[EngineTime, ...]:
        return self._opened.times()

    def session(self, graph: str) -> Session:
        """The session of a graph, opened at the first call; valid until another network is used."""
        return self._opened.session(graph)

    def encode_mel(self, mel: Float32Array) -> Float32Array:
        """Log mel spectrogram `(1, 80, 3000)` → features `(1, 1500, L, D)`."""
        return self.run(lambda: self.stage("encode", lambda: self.session(AUDIO_ENCODER).run({"mel": mel})[0]))

    def stage(self, stage: Stage, action: Callable[[], T], *, after: int = 0) -> T:
        """Runs a part of what `run` runs in the thread of its stage; `after` as for `StageThreads.start`."""
        return self._threads.run(
            stage, action, after=after, alone=lambda: stage == "denoise" and self._opened.records()
        )

    def ahead(self, action: Callable[[], T]) -> Future[T | None] | None:
        """See `Opened.ahead`."""
        return self._opened.ahead(action)

    def _call_codec(self, method: str, *given: Any) -> Any:
        def call() -> Any:
            result = getattr(self._opened.codec, method)(*given)
            self._opened.decoded |= stage == "decode"
            return result

        stage: Stage = "encode" if method == "encode_faces" else "decode"
        return self.stage(stage, call)

    def _call_denoiser(self, method: str, *given: Any, **named: Any) -> Any:
        def call() -> Any:
            return getattr(self._opened.denoiser, method)(*given, **named)

        return self.stage("denoise", partial(self._replayed, call))

    def _replayed(self, action: Callable[[], T]) -> T:
        """`action`; if replays of CUDA graphs differ from first runs, again without CUDA graphs, with a notice."""
        with suppress(ReplaysDiffer):
            return action()
        name = self.selection.name
        self.notice(f"CUDA graphs: {name} computes something else when it replays one; continuing without CUDA graphs")
        self._change_to(self._opened.engines.without_cuda_graph())
        return action()

    def _change_to(self, engines: Engines) -> None:
        self._opened.close()
        self._opened = Opened(engines, self._threads, low_memory=self.low_memory, before=self._opened)

    def save_memory(self) -> None:
        """After memory ran out: runs stages in turn, or keeps one network at a time on the device."""
        in_turn = self.side_by_side
        if in_turn:
            self._in_turn = True
        else:
            self.low_memory = True
        how = "stages of painting run in turn" if in_turn else "one network at a time is kept on it"
        self.notice(f"memory of the device is short (it ran out): {how}, which is slower")
        self._windows_that_fit = 1
        # Closes all sessions: they keep what a provider chose for lack of memory, as cuDNN's plans.
        self._change_to(self._with_room(self._opened.engines))

    def builds(self, graphs: tuple[str, ...]) -> bool:
        """Whether `prepare` would build engines before it returns."""
        return not self._build_wanted and bool(self._opened.engines.missing(graphs))

    def is_ready(self, graphs: tuple[str, ...]) -> bool:
        """Whether `graphs` are open, and have run, on a GPU with room for all."""
        return self.side_by_side and set(graphs) <= set(self._needed) and self._opened.have_run(graphs)

    def open_all(self, graphs: tuple[str, ...]) -> None:
        """As `prepare`, while nothing else runs."""
        self._needed = tuple(dict.fromkeys((*self._needed, *graphs)))  # other clips go on
        first = self._windows_that_fit is None
        if self._build_wanted:
            self._choose_memory()
            self._build_wanted = False
            self._start_build(graphs)
        self.open(graphs, choose_memory=first)
        if first:  # measured once: later, the pool itself holds memory that a batch could use
            ranges = self._opened.engines.ranges
            self._windows_that_fit = windows_that_fit(self.bundle.manifest, ranges, self._free_bytes())

    def open(self, graphs: Iterable[str], *, choose_memory: bool = False) -> None:
        """Builds and opens `graphs`, if need be on the next provider; raises as `prepare`.

        `choose_memory`: first decide how many networks the device holds at once.
        """
        graphs = tuple(graphs)
        while True:
            try:
                self._within_memory(partial(self._build_and_compare, graphs))
                if choose_memory:
                    self._choose_memory()
                self._within_memory(partial(self._open, graphs))
            except (EngineBuildError, OutputError) as error:  # the latter: the engine cache cannot be written
                self._fall_back(error)
            else:
                return

    def _build_and_compare(self, graphs: tuple[str, ...]) -> None:
        """Builds missing engines; under `auto`, compares them once with the next provider."""
        if self._judge is not None and self._opened.engines.compiled:
            self._judge.examine(self._opened.engines, graphs, self._opened.build)
        else:
            self._opened.build(graphs)

    def warm_up(self, graphs: Iterable[str]) -> None:
        """Runs each graph once on random numbers, as first runs are slow."""
        graphs = tuple(graphs)
        with self._gate.entered(alone=True):
            self._replayed(lambda: self._opened.warm_up(graphs))

    def _open(self, graphs: tuple[str, ...]) -> None:
        """Opens `graphs`; on a GPU with room for all, also runs each of them once."""
        try:
            self._replayed(lambda: self._opened.open(graphs, run=self.side_by_side))
        except InferenceError:
            forget(CUDA_FORM_FACT)
            raise

    def _change_to_built(self) -> None:
        build, self._build = self._build, None
        if build is None:  # another thread was here
            return
        meanwhile = self._opened.engines
        try:
            engines = build.result()
            name, elapsed_s = engines.selection.name, build.elapsed_s
            self.notice(f"engines for {name} are ready after {elapsed_s:.0f} s; changing to them")
            self._change_to(engines)
            self._build_and_compare(self._needed)
            self._open(self._needed)
        except (EngineBuildError, OutOfMemory) as error:
            self.notice(f"building in the background failed, continuing with {meanwhile.selection.name}: {error}")
        else:
            return
        if self._opened.engines is not meanwhile:
            self._change_to(meanwhile)
            self._open(self._needed)

    @property
    def built(self) -> bool:  # type: ignore[override]
        return self._build is not None and self._build.done

    @property
    def building(self) -> bool:
        return self._build is not None and not self._build.done

    def wait_for_build(self) -> str:
        """Waits for a background build; returns its error, empty if none."""
        build = self._build
        return "" if build is None else build.wait()

    def close(self) -> None:
        if self._build is not None:
            self._build.stop()
            self._build = None
        self._threads.close()
        self._opened.close()

    def _free_bytes(self) -> int | None:
        gpu = self.selection.gpu
        return None if gpu is None else free_memory_bytes(gpu.index)

    def _choose_memory(self) -> None:
        """Decides by free memory: all networks at once or one at a time, side by side, CUDA graphs."""
        free_bytes, engines = self._free_bytes(), self._opened.engines
        if free_bytes is not None and not self.low_memory:
            least = self._needed_bytes(engines)
            if least > free_bytes:
                needed, free = f"{least / 1e9:.1f} GB", f"{free_bytes / 1e9:.1f} GB"
                self.low_memory = True
                self.notice(
                    f"memory of the device is short (this bundle takes about {needed}, {free} is free): one network at "
                    "a time is kept on it, which is slower"
                )
            self._in_turn = self._needed_bytes(engines, side_by_side=True) > free_bytes
        with_room = self._with_room(engines)
        if with_room is not engines or self.low_memory is not self._opened.low_memory:
            self._change_to(with_room)

    def _needed_bytes(self, engines: Engines, *, side_by_side: bool = False, recorded: bool = False) -> int:
        return needed_bytes(
            self.bundle.manifest,
            provider=engines.selection.provider,
            form=engines.form(FULL_STEP),
            side_by_side=side_by_side,
            recorded=recorded,
            engine_bytes=engines.memory_bytes(self._needed) if engines.compiled else None,
        )

    def _with_room(self, engines: Engines) -> Engines:
        """Returns `engines`, without CUDA graphs where the CUDA provider has no room for them."""
        if engines.selection.provider is not CUDA or self.options.cuda_graph is not None or not engines.cuda_graph:
            return engines
        free_bytes = self._free_bytes() or 0
        needed = self._needed_bytes(engines, side_by_side=self.side_by_side, recorded=True)
        fits = not self.low_memory and needed <= free_bytes
        return engines if fits else engines.without_cuda_graph()

    def _engines(self, selection: Selection) -> Engines:
        return Engines(self.bundle, selection, self.options, self._cache, self.notice)

    def _start_build(self, graphs: tuple[str, ...]) -> None:
        """Builds missing engines in a child process, and runs on the next provider meanwhile."""
        engines = self._opened.engines
        name = engines.selection.name
        missing = self._opened.engines.missing(graphs)
        if not missing:
            return
        try:
            meanwhile = self._with_room(self._engines(next_provider(engines.selection)))
            self._build = BackgroundBuild(engines, missing)
        except (ProviderUnavailable, InputError, OSError) as error:
            self.notice(f"engines cannot be built in the background, so the run waits for them: {error}")
            return
        self._change_to(meanwhile)
        running = meanwhile.selection.name
        self.notice(f"{len(missing)} engines for {name} are being built; running on {running} meanwhile")

    def _fall_back(self, error: EngineBuildError | OutputError) -> None:
        following = self._following(self._opened.engines, str(error))
        if following is None:
            raise error
        self._change_to(self._with_room(following))

    def _following(self, engines: Engines, reason: str) -> Engines | None:
        """Engines of the next provider that loads and has no known problem, with a notice; None if there is none."""
        while self._judge is not None:
            try:
                following = self._engines(next_provider(engines.selection))
            except ProviderUnavailable:
                break
            name, other = engines.selection.name, following.selection.name
            self.notice(f"{name} is not used for this bundle, continuing with {other}: {reason}")
            engines, reason = following, self._judge.problem(following)
            if not reason:
                return engines
        return None
