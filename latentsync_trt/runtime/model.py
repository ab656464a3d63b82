"""A bundle that is open on one provider: all networks that a run needs, ready to run."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from latentsync_trt.bundle.manifest import (
    AUDIO_ENCODER,
    FULL_STEP,
    STEP_GRAPHS,
    UNGUIDED_GRAPHS,
    VAE_DECODER,
    VAE_ENCODER,
    Bundle,
    manifest_sha256,
)
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import (
    EngineBuildError,
    InputError,
    Notices,
    OutputError,
    ProviderUnavailable,
)
from latentsync_trt.runtime.denoiser import GraphDenoiser
from latentsync_trt.runtime.engines.buffers import give_back_gpu_memory
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.session import Session
from latentsync_trt.runtime.engines.session_factory import (
    BackgroundBuild,
    OpenedEngine,
    SessionFactory,
)
from latentsync_trt.runtime.first_runs import STAGES, FirstRuns
from latentsync_trt.runtime.memory_estimate import MemoryPlan, memory_plan
from latentsync_trt.runtime.providers.choice import next_provider
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.stages import Stage, StageThreads, results
from latentsync_trt.runtime.vae import VaeCodec
from latentsync_trt.types import EngineTime, Float32Array, NoticeCallback

T = TypeVar("T")

# Opening reads and uploads weights; more threads would only wait for the disk.
_OPENING_THREADS = 3

# Those whose opening and first run take longest; others follow.
_OPENED_FIRST = (FULL_STEP, UNGUIDED_GRAPHS[0], VAE_DECODER, VAE_ENCODER)


@dataclass(frozen=True, slots=True)
class AllOpen:
    """Sessions that are open, or being opened, all at once."""

    engines: dict[str, Future[OpenedEngine]]

    def session(self, graph: str) -> Session:
        """Waits until the session is open. Raises as `SessionFactory.open`."""
        return self.engines[graph].result().session

    def opened(self) -> list[OpenedEngine]:
        """Returns what could be opened so far."""
        return [
            engine.result()
            for engine in self.engines.values()
            if engine.done() and not engine.cancelled() and engine.exception() is None
        ]


class OneNetworkAtATime:
    """Opens the sessions of one network, and closes those of the one before."""

    def __init__(self, factory: SessionFactory) -> None:
        self._factory = factory
        self._open: list[str] = []
        self._engines: dict[str, OpenedEngine] = {}

    def session(self, graph: str) -> Session:
        """Returns a session for one thread at a time, valid until one of another network is asked
        for. Raises as `SessionFactory.open`.
        """
        graphs = self._factory.bundle.manifest.graphs
        weights = graphs[graph].weights
        if any(graphs[name].weights != weights for name in self._open):
            for name in self._open:
                self._engines[name].session.close()
            self._open.clear()
            give_back_gpu_memory(self._factory.selection)
        if graph not in self._open:
            engine = self._factory.open(graph)
            if graph in self._engines:
                engine = engine.after(self._engines[graph])
            self._engines[graph] = engine
            self._open.append(graph)
        return self._engines[graph].session

    def opened(self) -> list[OpenedEngine]:
        """Returns what was opened so far, also what is closed again."""
        return list(self._engines.values())


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The networks of a bundle, open on one provider; nothing of it changes until `close`."""

    bundle: Bundle
    selection: Selection
    memory_plan: MemoryPlan
    graphs: frozenset[str]
    """Those that can run."""
    vae: VaeCodec
    """To be used within `run` alone, as is `denoiser`."""
    denoiser: GraphDenoiser
    notices: tuple[str, ...]
    """About builds, and what makes a run slow."""
    build: BackgroundBuild | None
    """What builds engines for the next run."""
    _sessions: AllOpen | OneNetworkAtATime
    _threads: StageThreads

    def audio_encoder(self, mel: Float32Array) -> Float32Array:
        """Turns a log mel spectrogram `(1, 80, 3000)` into features `(1, 1500, L, D)`; to be used
        outside of `run`.
        """

        def encode() -> Float32Array:
            return self._sessions.session(AUDIO_ENCODER).run({"mel": mel})[0]

        return self._threads.run("encode", encode)

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """Returns the result of `action`, which uses `vae` or `denoiser`, run in the thread of
        `stage` in its turn; raises as `Session.run`.
        """

        def run() -> T:
            try:
                return action()
            finally:
                if self.memory_plan.mode == "one network at a time":
                    self.denoiser.release()  # another network may need the memory of its buffers

        return self._threads.run(stage, run)

    def times(self) -> tuple[EngineTime, ...]:
        """Returns the time spent on each engine so far, in the order in which they were opened."""
        return tuple(engine.times() for engine in self._sessions.opened())

    def close(self) -> None:
        """Waits for what runs; frees everything, and stops a build."""
        if self.build is not None:
            self.build.stop()
        self._threads.close()
        self.denoiser.release()
        _close(self._sessions)
        give_back_gpu_memory(self.selection)


def _close(sessions: AllOpen | OneNetworkAtATime) -> None:
    for engine in sessions.opened():
        engine.session.close()


def open_model(
    bundle: Bundle,
    selection: Selection,
    options: RuntimeOptions,
    graphs: Sequence[str],
    on_notice: NoticeCallback | None = None,
) -> Model:
    """Builds the engines that are missing, opens `graphs` and runs each once.

    Where the selected provider was not named, and cannot compile or open a graph, the next one is
    taken, with a notice. `on_notice` may be called from any thread.

    Raises `BundleError` if the bundle lacks one of `graphs`; others as `SessionFactory`, and its
    `open`.
    """
    notices = Notices(on_notice)
    folder = cache_folder(options.engine_cache, used=selection.provider.builds)
    cache = EngineCache(folder, notices.add)
    build = None
    if options.build == "background":
        factory = SessionFactory(bundle, selection, options, cache)
        build, selection = _build_in_background(factory, graphs, notices)
    try:
        while True:
            factory = SessionFactory(bundle, selection, options, cache)
            try:
                return _open_graphs(factory, graphs, notices, build)
            except (EngineBuildError, OutputError) as error:  # the latter: of the engine cache
                following = _fallback(selection, bundle)
                if following is None:
                    raise
                notices.add(
                    f"{selection.name} is not used for this bundle, "
                    f"continuing with {following.name}: {error}"
                )
            selection = following
    except BaseException:
        if build is not None:
            build.stop()
        raise


def make_session_factory(
    bundle: Bundle, selection: Selection, options: RuntimeOptions
) -> SessionFactory:
    """Returns the factory that `open_model` would use, without notices; raises `InputError` if
    bundle or provider do not support `options`.
    """

    folder = cache_folder(options.engine_cache, used=selection.provider.builds)
    return SessionFactory(bundle, selection, options, EngineCache(folder, lambda _: None))


def must_build(factory: SessionFactory, graphs: Sequence[str]) -> bool:
    """Returns whether `open_model` would build engines, by a quick look; raises `BundleError` if
    the bundle lacks one of `graphs`.
    """
    for graph in graphs:
        factory.bundle.graph_path(graph)
    if factory.options.build == "background" or not factory.compiled:
        return False
    return not all(factory.cache.has(factory.key(graph)) for graph in graphs)


def _fallback(selection: Selection, bundle: Bundle) -> Selection | None:
    """Returns the provider to try next; None where the user named one, or none is left."""
    if selection.is_named:
        return None
    with suppress(ProviderUnavailable):
        return next_provider(selection, manifest_sha256(bundle.folder))
    return None


def _build_in_background(
    factory: SessionFactory, graphs: Sequence[str], notices: Notices
) -> tuple[BackgroundBuild | None, Selection]:
    """Starts building the engines that are missing, if any; returns what builds them, and the
    provider for this run.
    """
    selection = factory.selection
    missing = factory.missing(graphs)
    if not missing:
        return None, selection
    try:
        following = next_provider(selection, manifest_sha256(factory.bundle.folder))
        build = BackgroundBuild(factory, missing)
    except (ProviderUnavailable, InputError, OSError) as error:
        notices.add(
            f"engines cannot be built in the background, so the run waits for them: {error}"
        )
        return None, selection
    notices.add(
        f"{len(missing)} engines for {selection.name} are built "
        f"for the next run; this one uses {following.name}"
    )
    return build, following


def _open_graphs(
    factory: SessionFactory,
    graphs: Sequence[str],
    notices: Notices,
    build: BackgroundBuild | None,
) -> Model:
    # one by one, as builds time kernels, and before anything is open
    for graph in factory.missing(graphs):
        factory.build(graph)
    plan = memory_plan(factory, graphs, notices.add)
    threads = StageThreads(in_turn=plan.mode != "pipelined")
    with ThreadPoolExecutor(_OPENING_THREADS, thread_name_prefix="open") as executor:
        sessions: AllOpen | OneNetworkAtATime = OneNetworkAtATime(factory)
        if plan.mode != "one network at a time":
            sessions = _start_opening(factory, graphs, plan, executor)
        vae = VaeCodec(factory, sessions.session)
        denoiser = GraphDenoiser(sessions.session, factory.selection, cuda_graph=plan.cuda_graph)
        try:
            if isinstance(sessions, AllOpen):
                first_runs = FirstRuns(sessions.session, factory.ranges, vae, denoiser)
                runs = _start_first_runs(first_runs, graphs, threads, plan, factory.selection)
                waiting: list[Future[Any]] = [*sessions.engines.values(), *runs]
                results(waiting)
                # while nothing else uses the GPU, as ONNX Runtime records what all threads do
                if plan.cuda_graph:
                    threads.run("denoise", partial(first_runs.steps, graphs, recorded=True))
        except BaseException:
            threads.close()
            _close(sessions)
            raise
    return Model(
        bundle=factory.bundle,
        selection=factory.selection,
        memory_plan=plan,
        graphs=frozenset(graphs),
        vae=vae,
        denoiser=denoiser,
        notices=tuple(notices.texts),
        build=build,
        _sessions=sessions,
        _threads=threads,
    )


def _start_opening(
    factory: SessionFactory, graphs: Sequence[str], plan: MemoryPlan, executor: Executor
) -> AllOpen:
    give_back_gpu_memory(factory.selection)  # whose first call allocates some itself
    first = [graph for graph in _OPENED_FIRST if graph in graphs]
    others = [graph for graph in graphs if graph not in first]
    engines = {}
    for graph in (*first, *others):
        cuda_graph = plan.cuda_graph and graph in STEP_GRAPHS
        engines[graph] = executor.submit(factory.open, graph, cuda_graph=cuda_graph)
    return AllOpen(engines)


def _start_first_runs(
    first_runs: FirstRuns,
    graphs: Sequence[str],
    threads: StageThreads,
    plan: MemoryPlan,
    selection: Selection,
) -> list[Future[None]]:
    """Starts the first run of each graph, as soon as it is open. None on the CPU, which chooses no
    kernels.
    """
    if selection.gpu is None:
        return []
    runs = [
        threads.start(stage, partial(first_runs.network, graph))
        for graph, stage in STAGES.items()
        if graph in graphs
    ]
    if not selection.provider.builds or not plan.cuda_graph:  # TensorRT records in any run
        steps = partial(first_runs.steps, graphs, recorded=not plan.cuda_graph)
        runs.append(threads.start("denoise", steps))
    return runs
