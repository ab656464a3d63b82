"""A bundle that is open on one provider: all networks that a run needs, ready to run."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
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
from latentsync_trt.runtime.engines.cache import EngineCache, Notice, cache_folder
from latentsync_trt.runtime.engines.session import Session, give_back_gpu_memory
from latentsync_trt.runtime.engines.session_factory import (
    BackgroundBuild,
    OpenedEngine,
    SessionFactory,
)
from latentsync_trt.runtime.first_runs import STAGES, FirstRuns
from latentsync_trt.runtime.memory_estimate import MemoryPlan, plan_of
from latentsync_trt.runtime.providers.choice import next_provider
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.stages import Stage, StageThreads, results
from latentsync_trt.runtime.vae import VaeCodec
from latentsync_trt.types import EngineTime, Float32Array

T = TypeVar("T")

# Opening reads and uploads weights; more threads would only wait for the disk.
_OPENERS = 3

# Those whose opening and first run take longest; others follow.
_OPENED_FIRST = (FULL_STEP, UNGUIDED_GRAPHS[0], VAE_DECODER, VAE_ENCODER)


@dataclass(frozen=True, slots=True)
class AllOpen:
    """Sessions that are open, or being opened, all at once."""

    engines: dict[str, Future[OpenedEngine]]

    def session(self, graph: str) -> Session:
        """Waits until it is open. Raises as `SessionFactory.open`."""
        return self.engines[graph].result().session

    def opened(self) -> list[OpenedEngine]:
        """What could be opened so far."""
        done = [
            engine for engine in self.engines.values() if engine.done() and not engine.cancelled()
        ]
        return [engine.result() for engine in done if engine.exception() is None]


class OneNetworkAtATime:
    """Opens the sessions of one network, and closes those of the one before."""

    def __init__(self, factory: SessionFactory) -> None:
        self._factory = factory
        self._open = dict[str, OpenedEngine]()
        self._all = dict[str, OpenedEngine]()

    def session(self, graph: str) -> Session:
        """By one thread at a time; valid until one of another network is asked for. Raises as
        `SessionFactory.open`.
        """
        graphs = self._factory.bundle.manifest.graphs
        if any(graphs[name].weights != graphs[graph].weights for name in self._open):
            for engine in self._open.values():
                engine.session.close()
            self._open.clear()
            give_back_gpu_memory(self._factory.selection)
        if graph not in self._open:
            engine = self._factory.open(graph)
            if before := self._all.get(graph):  # go on with its times
                engine.session.clock = before.session.clock
                new = engine.costs
                old = before.costs
                costs = replace(new, built=new.built or old.built, open_s=new.open_s + old.open_s)
                engine = replace(engine, costs=costs)
            self._open[graph] = self._all[graph] = engine
        return self._open[graph].session

    def opened(self) -> list[OpenedEngine]:
        """What was opened so far, also what is closed again."""
        return list(self._all.values())


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The networks of `bundle` on the provider of `selection`; nothing of it changes until `close`.

    `graphs`: those that can run. `vae`, `denoiser`: to be used within `run` alone. `notices`: about
    builds, and what makes a run slow. `build`: what builds engines for the next run.
    """

    bundle: Bundle
    selection: Selection
    memory_plan: MemoryPlan
    graphs: frozenset[str]
    vae: VaeCodec
    denoiser: GraphDenoiser
    notices: tuple[str, ...]
    build: BackgroundBuild | None
    _sessions: AllOpen | OneNetworkAtATime
    _threads: StageThreads

    def audio_encoder(self, mel: Float32Array) -> Float32Array:
        """Log mel spectrogram `(1, 80, 3000)` → features `(1, 1500, L, D)`; to be used outside of
        `run`.
        """
        return self._threads.run(
            "encode", lambda: self._sessions.session(AUDIO_ENCODER).run({"mel": mel})[0]
        )

    def run(self, stage: Stage, action: Callable[[], T]) -> T:
        """The result of `action`, which uses `vae` or `denoiser`, run in the thread of `stage` in
        its turn; raises as `Session.run`.
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
        return tuple(engine.times() for engine in self._sessions.opened())

    def close(self) -> None:
        """Waits for what runs; frees everything, and stops a build."""
        if self.build is not None:
            self.build.stop()
        self._threads.close()
        self.denoiser.release()
        _close(self._sessions.opened())
        give_back_gpu_memory(self.selection)


def open_model(
    bundle: Bundle,
    selection: Selection,
    options: RuntimeOptions,
    graphs: Sequence[str],
    on_notice: Notice | None = None,
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
    build: BackgroundBuild | None = None
    while True:
        try:
            factory = SessionFactory(bundle, selection, options, cache)
            if (
                options.build == "background"
                and build is None
                and (missing := factory.missing(tuple(graphs)))
            ):
                meanwhile = _built_meanwhile(factory, missing, notices)
                if meanwhile is not None:
                    build, selection = meanwhile
                    continue
            return _open(factory, tuple(graphs), notices, build)
        except BaseException as error:
            following = None
            # `OutputError`: the engine cache cannot be written.
            if isinstance(error, EngineBuildError | OutputError) and not selection.is_named:
                with suppress(ProviderUnavailable):
                    following = next_provider(selection, manifest_sha256(bundle.folder))
            if following is None:
                if build is not None:
                    build.stop()
                raise
            notices.add(
                f"{selection.name} is not used for this bundle, "
                f"continuing with {following.name}: {error}"
            )
            selection = following


def quiet_factory(bundle: Bundle, selection: Selection, options: RuntimeOptions) -> SessionFactory:
    """What `open_model` would use; raises `InputError` if bundle or provider do not support
    `options`.
    """
    folder = cache_folder(options.engine_cache, used=selection.provider.builds)
    return SessionFactory(bundle, selection, options, EngineCache(folder, lambda _: None))


def must_build(factory: SessionFactory, graphs: Sequence[str]) -> bool:
    """Whether `open_model` would build engines; raises `BundleError` if the bundle lacks one of
    `graphs`.
    """
    for graph in graphs:
        factory.bundle.graph_path(graph)
    if factory.options.build == "background" or not factory.compiled:
        return False
    return not all(factory.cache.has(factory.key(graph)) for graph in graphs)


def _built_meanwhile(
    factory: SessionFactory, missing: tuple[str, ...], notices: Notices
) -> tuple[BackgroundBuild, Selection] | None:
    """What builds engines, and the provider for this run; None, with a notice, if there is no
    other.
    """
    name = factory.selection.name
    try:
        following = next_provider(factory.selection, manifest_sha256(factory.bundle.folder))
        build = BackgroundBuild(factory, missing)
    except (ProviderUnavailable, InputError, OSError) as error:
        notices.add(
            f"engines cannot be built in the background, so the run waits for them: {error}"
        )
        return None
    notices.add(
        f"{len(missing)} engines for {name} are built "
        f"for the next run; this one uses {following.name}"
    )
    return build, following


def _open(
    factory: SessionFactory,
    graphs: tuple[str, ...],
    notices: Notices,
    build: BackgroundBuild | None,
) -> Model:
    # one by one, as builds time kernels, and before anything is open
    for graph in factory.missing(graphs):
        factory.build(graph)
    plan = plan_of(factory, graphs, notices.add)
    selection = factory.selection
    threads = StageThreads(in_turn=plan.mode != "pipelined")
    with ThreadPoolExecutor(_OPENERS, thread_name_prefix="open") as openers:
        sessions: AllOpen | OneNetworkAtATime = OneNetworkAtATime(factory)
        if plan.mode != "one network at a time":
            give_back_gpu_memory(selection)  # whose first call allocates some itself
            order = sorted(graphs, key=lambda graph: (*_OPENED_FIRST, graph).index(graph))
            recorded = {graph: plan.cuda_graph and graph in STEP_GRAPHS for graph in order}
            sessions = AllOpen(
                {
                    graph: openers.submit(factory.open, graph, cuda_graph=recorded[graph])
                    for graph in order
                }
            )
        vae = VaeCodec(factory, sessions.session)
        denoiser = GraphDenoiser(
            sessions.session, selection, cuda_graph=plan.cuda_graph, check_sizes=factory.check
        )
        try:
            first = FirstRuns(sessions.session, factory.ranges, vae, denoiser)
            if isinstance(sessions, AllOpen):
                runs = _first_runs(first, graphs, threads, plan, selection)
                waiting: list[Future[Any]] = [*sessions.engines.values(), *runs]
                results(waiting)
                # while nothing else uses the GPU, as ONNX Runtime records what all threads do
                if plan.cuda_graph:
                    threads.run("denoise", partial(first.steps, graphs, recorded=True))
        except BaseException:
            threads.close()
            _close(sessions.opened())
            raise
    texts = tuple(notices.texts)
    known = frozenset(graphs)
    return Model(
        factory.bundle, selection, plan, known, vae, denoiser, texts, build, sessions, threads
    )


def _close(engines: Iterable[OpenedEngine]) -> None:
    for engine in engines:
        engine.session.close()


def _first_runs(
    first: FirstRuns,
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
        threads.start(stage, partial(first.network, graph))
        for graph, stage in STAGES.items()
        if graph in graphs
    ]
    if not selection.provider.builds or not plan.cuda_graph:  # TensorRT records in any run
        runs.append(
            threads.start("denoise", partial(first.steps, graphs, recorded=not plan.cuda_graph))
        )
    return runs
