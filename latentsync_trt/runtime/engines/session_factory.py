"""Opens and checks the graphs of one bundle on one provider, directly or as engines from the cache,
and builds engines: in this run, or in a child process for the next one, while this one uses another
provider.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, GraphVariant, Manifest
from latentsync_trt.child import Child, ChildProcess
from latentsync_trt.child_main import OnProgress
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, LatentSyncError
from latentsync_trt.runtime.engines.builders import (
    CUDNN_ATTENTION_FROM,
    TensorRTBuilder,
    cuda_options,
    options_for,
)
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.entries import EngineKey, Entry
from latentsync_trt.runtime.engines.session import CPU_ONLY, RunClock, Session, SessionSettings
from latentsync_trt.runtime.engines.shapes import (
    DimensionRanges,
    dimension_ranges,
    engine_ranges,
    ranges_of_graph,
)
from latentsync_trt.runtime.providers.choice import eight_bit_notice
from latentsync_trt.runtime.providers.devices import Gpu
from latentsync_trt.runtime.providers.libraries import onnxruntime_version, tensorrt_version
from latentsync_trt.runtime.providers.selection import Selection
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.types import EngineTime

LEAST_NODE_SHARE = 0.9
"""Minimum share of a graph's nodes on the chosen provider; below it, copies between devices cost
more than nodes.
"""

_RECORDED_UP_TO_PX = 256
"""Resolution up to which steps are recorded as CUDA graphs by default: 9 % more frames there, none
more at 512 px.
"""

_HASHING_THREADS = 4


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An open graph."""

    session: Session
    costs: EngineTime
    """What it cost until it was open."""
    size_bytes: int = 0
    """The size of its engine in the cache."""
    earlier_runs: RunClock = field(default_factory=RunClock)
    """Runs before it was closed and opened again."""

    def times(self) -> EngineTime:
        """Returns the costs, and its runs so far."""
        runs = self._runs()
        return replace(
            self.costs, runs=runs.runs, first_ms=1000 * runs.first_run_s, mean_ms=runs.mean_ms
        )

    def after(self, closed: "OpenedEngine") -> "OpenedEngine":
        """Returns this engine with the times of the same graph, which was open before."""
        costs = replace(
            self.costs,
            built=self.costs.built or closed.costs.built,
            open_s=self.costs.open_s + closed.costs.open_s,
        )
        return replace(self, costs=costs, earlier_runs=closed._runs())

    def _runs(self) -> RunClock:
        return self.earlier_runs.followed_by(self.session.clock)


class SessionFactory:
    """Opens the graphs of a bundle, and finds and builds their engines where the provider needs
    them. Raises `InputError` if bundle or provider do not support `options`.
    """

    def __init__(
        self, bundle: Bundle, selection: Selection, options: RuntimeOptions, cache: EngineCache
    ) -> None:
        self.bundle = bundle
        self.selection = selection
        self.options = options
        self.cache = cache
        self.compiled = selection.provider.builds
        """Whether the provider needs engines, and thus the cache."""
        ranges = dimension_ranges(bundle.manifest, options)
        self.ranges = engine_ranges(ranges) if self.compiled else ranges
        self.cuda_graph = _wants_cuda_graph(bundle.manifest, selection, options, self.ranges)
        """Whether steps are to be recorded as CUDA graphs, where there is room for them."""
        self._gpu = cast(Gpu, selection.gpu)  # only used where there is one
        self._builder = TensorRTBuilder(bundle, self.ranges, options.provider_options, self._gpu)
        if notice := eight_bit_notice(bundle.manifest, selection):
            cache.on_notice(notice)

    def variant(self, graph: str) -> GraphVariant:
        """Returns the variant of a graph to open: that for the provider, if the bundle has it."""
        variant = self.selection.provider.graph_variant
        forms = self.bundle.manifest.graphs[graph].forms
        if self.options.graph_variant == "auto" and variant in forms:
            return variant
        return "portable"

    def key(self, graph: str) -> EngineKey:
        """Returns the cache key of a graph's engine."""
        manifest = self.bundle.manifest
        ranges = ranges_of_graph(manifest.graphs[graph], self.ranges)
        return EngineKey(
            bundle=manifest.name,
            graph=graph,
            graph_sha256=self.bundle.graph_hash(graph),
            provider=self.selection.name,
            options={"optimization_level": str(self._builder.level)},
            precision=manifest.precision,
            profile={name: astuple(span) for name, span in ranges.items()},
            versions={"onnxruntime": onnxruntime_version(), "tensorrt": tensorrt_version()},
            gpu=self._gpu.name,
            compute_capability=self._gpu.compute_capability,
        )

    def missing(self, graphs: Sequence[str]) -> tuple[str, ...]:
        """Returns those of `graphs` whose engines must be built; raises `BundleError` if the bundle
        lacks one of them.
        """
        for graph in graphs:
            self.bundle.graph_path(graph)
        if not self.compiled:
            return ()
        with ThreadPoolExecutor(_HASHING_THREADS) as threads:  # each reads an engine of gigabytes
            entries = list(threads.map(self.cache.find, map(self.key, graphs)))
        return tuple(graph for graph, entry in zip(graphs, entries, strict=True) if entry is None)

    def memory_bytes(self, graphs: Iterable[str]) -> int | None:
        """Returns the GPU memory that the engines of `graphs` take together, weights and runs; None
        if that is not known of all.
        """
        total_bytes = 0
        for graph in graphs:
            entry = self.cache.find(self.key(graph))
            if entry is None or entry.device_memory_bytes is None:
                return None
            total_bytes += entry.size_bytes + entry.device_memory_bytes
        return total_bytes

    def build(self, graph: str) -> Entry:
        """Builds the engine of a graph unless the cache has it. Raises as `open`."""
        return self.cache.obtain(self.key(graph), partial(self._builder.build, graph))

    def open(self, graph: str, *, cuda_graph: bool = False) -> OpenedEngine:
        """Opens a graph, with `cuda_graph` so that its runs can be recorded; builds its engine
        first where that is missing.

        Raises `EngineBuildError` if the provider cannot compile it or runs too few of its nodes,
        `OutOfMemory`, and `OutputError` if the cache cannot be written.
        """
        start_s = time.perf_counter()
        built = False
        build_s = 0.0
        size_bytes = 0
        if self.compiled:
            build = partial(self._builder.build, graph)
            load = partial(self._builder.open, graph, cuda_graph=cuda_graph)
            entry, session = self.cache.load(self.key(graph), build, load)
            built = entry.folder.name in self.cache.built
            build_s = entry.build_s or 0.0
            size_bytes = entry.size_bytes
            if entry.built:
                start_s += build_s
        else:
            session = self._open_directly(graph, cuda_graph=cuda_graph)
        open_s = time.perf_counter() - start_s
        share = self._node_share(session)
        costs = EngineTime(graph, self.selection.name, share, built, build_s, open_s)
        return OpenedEngine(session, costs, size_bytes)

    def _open_directly(self, graph: str, *, cuda_graph: bool) -> Session:
        variant = self.variant(graph)
        path = self.bundle.graph_path(graph, variant)
        ranges = ranges_of_graph(self.bundle.manifest.graphs[graph], self.ranges)
        is_for_cuda = variant == CUDA.graph_variant
        providers = CPU_ONLY
        if self.selection.gpu is not None:
            options = cuda_options(
                self._gpu.index,
                cuda_graph=cuda_graph,
                fused_bias=is_for_cuda,
                cudnn_attention=is_for_cuda and self._gpu.capability >= CUDNN_ATTENTION_FROM,
            )
            options |= options_for(CUDA, self.options.provider_options)
            providers = ((CUDA.ort_name, options), *CPU_ONLY)
        settings = SessionSettings(
            name=path.stem,
            providers=providers,
            dimensions={name: span.optimum for name, span in ranges.items() if span.fixed},
            optimize=not is_for_cuda,  # it has the operators that an optimization would choose
        )
        return Session(path, settings)

    def _node_share(self, session: Session) -> float:
        """Returns the share of nodes on the chosen provider; closes the session and raises
        `EngineBuildError` if it is too small.
        """
        provider = self.selection.provider
        counts = session.nodes_by_provider()
        total = sum(counts.values())
        share = 1.0
        if total:
            share = counts.get(provider.ort_name, 0) / total
        if session.provider == provider.ort_name and share >= LEAST_NODE_SHARE:
            return share
        session.close()
        where = ", ".join(f"{count} on {name}" for name, count in sorted(counts.items()))
        raise EngineBuildError(
            f"{session.name}: {provider.name} runs {share:.0%} of its nodes, and at least "
            f"{LEAST_NODE_SHARE:.0%} are expected ({where}); "
            "export the model again with this version, or choose another --provider"
        )


def _wants_cuda_graph(
    manifest: Manifest, selection: Selection, options: RuntimeOptions, ranges: DimensionRanges
) -> bool:
    """Returns whether steps are to be recorded: by default at low resolutions, with fixed shapes,
    and with CUDA where the graphs have a variant for it.
    """
    fixed = all(span.fixed for span in ranges.values())
    if options.cuda_graph:
        if selection.gpu is None:
            raise InputError(f"--cuda-graph: not with provider {selection.name}, only on a GPU")
        if not fixed:
            raise InputError("--cuda-graph goes with fixed shapes: use --static")
    if options.cuda_graph is not None:
        return options.cuda_graph
    if not fixed or manifest.resolution_px > _RECORDED_UP_TO_PX:
        return False
    if selection.provider.builds:
        return True
    if selection.provider is not CUDA or options.graph_variant != "auto":
        return False
    steps = [manifest.graphs[graph] for graph in STEP_GRAPHS if graph in manifest.graphs]
    return all(CUDA.graph_variant in step.forms for step in steps)


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """The engines that a child process is to build."""

    bundle_folder: Path
    selection: Selection
    options: RuntimeOptions
    cache_folder: Path
    graphs: Sequence[str]


class BackgroundBuild:
    """Builds the engines of `graphs` in a child process; raises `OSError` if it cannot be
    started. `error` becomes why the build has failed, or empty.
    """

    def __init__(self, factory: SessionFactory, graphs: Sequence[str]) -> None:
        order = BuildOrder(
            bundle_folder=factory.bundle.folder.resolve(),
            selection=factory.selection,
            options=factory.options,
            cache_folder=factory.cache.folder,
            graphs=tuple(graphs),
        )
        self._child = Child(ChildProcess(build_in_child))
        self.error = Future[str]()
        threading.Thread(target=self._build, args=(order,), name="build", daemon=True).start()

    def stop(self) -> None:
        """Ends the process; an unfinished engine is never used."""
        self._child.end()

    def _build(self, order: BuildOrder) -> None:
        problem = ""
        try:
            self._child.call(order)
        except LatentSyncError as error:
            problem = str(error)
        self._child.end()
        self.error.set_result(problem)


def build_in_child(order: BuildOrder, _: OnProgress) -> None:
    """Builds engines one after another, in a child."""
    bundle = Bundle.load(order.bundle_folder)
    cache = EngineCache(order.cache_folder)
    factory = SessionFactory(bundle, order.selection, order.options, cache)
    for graph in order.graphs:
        factory.build(graph)
