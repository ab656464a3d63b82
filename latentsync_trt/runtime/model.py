"""A bundle that is open on one provider: all networks that a run needs, ready to run."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    FULL_STEP,
    STEP_GRAPHS,
    UNGUIDED_GRAPHS,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
)
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, OutputError, ProviderUnavailable
from latentsync_trt.runtime.background_build import BackgroundBuild
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.cache import EngineCache, Notice, cache_folder
from latentsync_trt.runtime.engines.session import Session, give_back_gpu_memory
from latentsync_trt.runtime.engines.session_factory import OpenedEngine, SessionFactory
from latentsync_trt.runtime.first_runs import STAGES, FirstRuns
from latentsync_trt.runtime.memory_estimate import MemoryPlan, needed_bytes, plan_memory, window_bytes
from latentsync_trt.runtime.providers.gpu import free_memory_bytes
from latentsync_trt.runtime.providers.select import Selection, next_provider
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.runtime.stages import Stage, StageThreads, results
from latentsync_trt.runtime.vae import VaeCodec
from latentsync_trt.types import EngineTime, Float32Array

T = TypeVar("T")

# Opening reads and uploads weights; more threads would only wait for the disk.
_OPENERS = 3

# Those whose opening and first run take longest; others follow.
_OPENED_FIRST = (FULL_STEP, UNGUIDED_GRAPHS[0], VAE_DECODER, VAE_ENCODER)


class Notices:
    """Sentences for the user, each once, in `texts`, and passed to `on_notice`. Thread-safe."""

    def __init__(self, on_notice: Notice | None = None) -> None:
        self.on_notice, self._lock = on_notice, threading.Lock()
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Adds a notice, unless there is the same one."""
        with self._lock:
            if text in self.texts:
                return
            self.texts.append(text)
        if self.on_notice is not None:
            self.on_notice(text)


class Sessions(Protocol):
    """The sessions of a model."""

    def session(self, graph: str) -> Session:
        """The session of a graph, valid until that of another network is asked for."""
        ...

    def opened(self) -> dict[str, OpenedEngine]:
        """What was opened so far, by graph."""
        ...


@dataclass(frozen=True, slots=True)
class AllOpen:
    """Sessions that are open, or being opened, all at once."""

    engines: dict[str, Future[OpenedEngine]]

    def session(self, graph: str) -> Session:
        """As `Sessions.session`; waits until it is open. Raises as `SessionFactory.open`."""
        return self.engines[graph].result().session

    def opened(self) -> dict[str, OpenedEngine]:
        """As `Sessions.opened`; without those that could not be opened."""
        done = {graph: engine for graph, engine in self.engines.items() if engine.done() and not engine.cancelled()}
        return {graph: engine.result() for graph, engine in done.items() if engine.exception() is None}


class OneNetworkAtATime:
    """Opens the sessions of one network, and closes those of the one before."""

    def __init__(self, factory: SessionFactory) -> None:
        self._factory = factory
        self._open: dict[str, OpenedEngine] = {}
        self._all: dict[str, OpenedEngine] = {}

    def session(self, graph: str) -> Session:
        """As `Sessions.session`; by one thread at a time. Raises as `SessionFactory.open`."""
        graphs = self._factory.bundle.manifest.graphs
        if any(graphs[name].weights != graphs[graph].weights for name in self._open):
            for engine in self._open.values():
                engine.session.close()
            self._open.clear()
            give_back_gpu_memory(self._factory.selection)
        if graph not in self._open:
            engine = self._factory.open(graph)
            self._open[graph] = self._all[graph] = engine.after(self._all.get(graph))
        return self._open[graph].session

    def opened(self) -> dict[str, OpenedEngine]:
        """As `Sessions.opened`, those that were closed, too."""
        return dict(self._all)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The networks of `bundle` on the provider of `selection`; nothing of it changes until `close`.

    `graphs`: those that can run. `audio_encoder`: log mel spectrogram `(1, 80, 3000)` → features `(1, 1500, L, D)`.
    `vae`, `denoiser`: to be used within `run` alone. `notices`: about builds, and what makes a run slow. `build`: what
    builds engines for the next run.
    """

    bundle: Bundle
    options: RuntimeOptions
    selection: Selection
    memory_plan: MemoryPlan
    graphs: frozenset[str]
    audio_encoder: Callable[[Float32Array], Float32Array]
    vae: VaeCodec
    denoiser: GraphDenoiser
    notices: tuple[str, ...]
    build: BackgroundBuild | None
    _sessions: Sessions
    _threads: StageThreads

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """The result of `action`, which uses `vae` or `denoiser`, run in the thread of `stage`: after what others have
        asked for there before.

        Raises:
            InferenceError: the provider failed. OutOfMemory: there is too little memory.
        """

        def run() -> T:
            try:
                return action()
            finally:
                if self.memory_plan.mode == "one network at a time":
                    self.denoiser.release()  # another network may need the memory of its buffers

        return self._threads.run(stage, run)

    def times(self) -> tuple[EngineTime, ...]:
        """Time spent on each engine so far, in the order in which they were opened."""
        return tuple(engine.times(graph, self.selection.name) for graph, engine in self._sessions.opened().items())

    def close(self) -> None:
        """Waits for what runs; frees everything, and stops a build."""
        if self.build is not None:
            self.build.stop()
        self._threads.close()
        self.denoiser.release()
        _close(self._sessions)
        give_back_gpu_memory(self.selection)


def open_model(
    bundle: Bundle,
    selection: Selection,
    options: RuntimeOptions,
    graphs: Sequence[str],
    on_notice: Notice | None = None,
) -> Model:
    """Builds the engines that are missing, opens `graphs` and runs each once.

    Where the selected provider was not named, and cannot compile or open a graph, the next one is taken, with a notice.

    Args:
        on_notice: called from any thread with each notice as it occurs.

    Raises:
        BundleError: the bundle lacks one of `graphs`. InputError: bundle or provider do not support `options`.
        EngineBuildError: the provider cannot compile or open a graph. OutOfMemory: there is too little memory.
    """
    notices = Notices(on_notice)
    cache = EngineCache(cache_folder(options.engine_cache), notices.add)
    build: BackgroundBuild | None = None
    while True:
        try:
            factory = SessionFactory(bundle, selection, options, cache, notices.add)
            if options.build == "background" and build is None and (missing := factory.missing(tuple(graphs))):
                meanwhile = _built_meanwhile(factory, missing, notices)
                if meanwhile is not None:
                    build, selection = meanwhile
                    continue
            return _open(factory, tuple(graphs), notices, build)
        except BaseException as error:
            # `OutputError`: the engine cache cannot be written.
            following = _following(selection) if isinstance(error, EngineBuildError | OutputError) else None
            if following is None:
                if build is not None:
                    build.stop()
                raise
            other = following.name
            notices.add(f"{selection.name} is not used for this bundle, continuing with {other}: {error}")
            selection = following


def check_options(bundle: Bundle, selection: Selection, options: RuntimeOptions) -> None:
    """Raises `InputError` if bundle or provider do not support `options`."""
    _quiet_factory(bundle, selection, options).check(windows=options.windows_per_batch or 1)


def must_build(bundle: Bundle, selection: Selection, options: RuntimeOptions, graphs: Sequence[str]) -> bool:
    """Whether `open_model` would build engines; raises `BundleError` if the bundle lacks one of `graphs`."""
    factory = _quiet_factory(bundle, selection, options)
    for graph in graphs:
        bundle.graph_path(graph)
    if options.build == "background" or not factory.compiled:
        return False
    return not all(factory.cache.has(factory.key(graph)) for graph in graphs)


def _quiet_factory(bundle: Bundle, selection: Selection, options: RuntimeOptions) -> SessionFactory:
    return SessionFactory(bundle, selection, options, EngineCache(cache_folder(options.engine_cache)), lambda _: None)


def _following(selection: Selection) -> Selection | None:
    """The provider after the selected one; None if that was named, or there is none."""
    with suppress(ProviderUnavailable):
        return None if selection.is_named else next_provider(selection)
    return None


def _built_meanwhile(
    factory: SessionFactory, missing: tuple[str, ...], notices: Notices
) -> tuple[BackgroundBuild, Selection] | None:
    """A process that builds engines, and the next provider, which this run uses; None, with a notice, if there is
    none."""
    name = factory.selection.name
    try:
        following = next_provider(factory.selection)
        build = BackgroundBuild(factory, missing)
    except (ProviderUnavailable, InputError, OSError) as error:
        notices.add(f"engines cannot be built in the background, so the run waits for them: {error}")
        return None
    notices.add(f"{len(missing)} engines for {name} are built for the next run; this one uses {following.name}")
    return build, following


def _open(factory: SessionFactory, graphs: tuple[str, ...], notices: Notices, build: BackgroundBuild | None) -> Model:
    for graph in factory.missing(graphs):  # one by one, as builds time kernels, and before anything is open
        factory.build(graph)
    plan = _memory_plan(factory, graphs, notices)
    selection, threads = factory.selection, StageThreads(in_turn=plan.mode != "pipelined")
    with ThreadPoolExecutor(_OPENERS, thread_name_prefix="open") as openers:
        sessions: Sessions = OneNetworkAtATime(factory)
        if plan.mode != "one network at a time":
            give_back_gpu_memory(selection)  # whose first call allocates some itself
            order = sorted(graphs, key=lambda graph: (*_OPENED_FIRST, graph).index(graph))
            recorded = {graph: plan.cuda_graph and graph in STEP_GRAPHS for graph in order}
            sessions = AllOpen(
                {graph: openers.submit(factory.open, graph, cuda_graph=recorded[graph]) for graph in order}
            )
        vae = VaeCodec(factory, sessions.session)
        denoiser = GraphDenoiser(
            sessions.session,
            selection.device,
            selection.device_id,
            cuda_graph=plan.cuda_graph,
            check_sizes=factory.check,
        )
        try:
            first = FirstRuns(sessions.session, factory.ranges, vae, denoiser)
            if isinstance(sessions, AllOpen):
                runs = _first_runs(first, graphs, threads, plan, selection)
                waiting: list[Future[Any]] = [*sessions.engines.values(), *runs]
                results(waiting)
                if plan.cuda_graph:  # while nothing else uses the GPU, as ONNX Runtime records what all threads do
                    threads.run("denoise", partial(first.steps, graphs, recorded=True))
        except BaseException:
            threads.close()
            _close(sessions)
            raise

    def encode_mel(mel: Float32Array) -> Float32Array:
        return threads.run("encode", lambda: sessions.session(AUDIO_ENCODER).run({"mel": mel})[0])

    texts = tuple(notices.texts)
    return Model(
        factory.bundle,
        factory.options,
        selection,
        plan,
        frozenset(graphs),
        encode_mel,
        vae,
        denoiser,
        texts,
        build,
        sessions,
        threads,
    )


def _close(sessions: Sessions) -> None:
    for engine in sessions.opened().values():
        engine.session.close()


def _memory_plan(factory: SessionFactory, graphs: tuple[str, ...], notices: Notices) -> MemoryPlan:
    """Decides by free memory; on the CPU, stages run in turn, as each uses all cores."""
    options, manifest, gpu = factory.options, factory.bundle.manifest, factory.selection.gpu
    windows = options.windows_per_batch
    if options.low_memory:
        return MemoryPlan("one network at a time", windows_per_batch=windows or 1)
    if gpu is None:
        return MemoryPlan("in turn", windows_per_batch=windows or 1)
    span, free_bytes = factory.ranges.get("windows"), free_memory_bytes(gpu.index)
    needed = partial(
        needed_bytes,
        manifest,
        provider=factory.selection.provider,
        variant=factory.variant(FULL_STEP),
        engine_bytes=factory.memory_bytes(graphs) if factory.compiled else None,
    )
    if_room = factory.cuda_graph and options.cuda_graph is None and factory.selection.provider is CUDA
    cuda_graph = None if if_room else factory.cuda_graph
    most = 1 if span is None else span.maximum
    plan = plan_memory(needed, window_bytes(manifest), free_bytes, cuda_graph=cuda_graph, most_windows=most)
    if plan.mode == "one network at a time" and free_bytes is not None:
        notices.add(
            f"memory of the device is short (this bundle takes about {needed() / 1e9:.1f} GB, {free_bytes / 1e9:.1f} "
            "GB is free): one network at a time is kept on it, which is slower"
        )
    return plan if windows is None else replace(plan, windows_per_batch=windows)


def _first_runs(
    first: FirstRuns, graphs: Sequence[str], threads: StageThreads, plan: MemoryPlan, selection: Selection
) -> list[Future[None]]:
    """Starts the first run of each graph, as soon as it is open. None on the CPU, which chooses no kernels."""
    if selection.gpu is None:
        return []
    runs = [threads.start(stage, partial(first.network, graph)) for graph, stage in STAGES.items() if graph in graphs]
    if selection.provider is CUDA or not plan.cuda_graph:  # TensorRT records in any run
        runs.append(threads.start("denoise", partial(first.steps, graphs, recorded=not plan.cuda_graph)))
    return runs
