"""Opens and checks the graphs of one bundle on one provider, directly or as engines from the cache,
and builds engines: in this run, or in a child process for the next one, while this one uses another
provider.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, GraphVariant
from latentsync_trt.child import Child, ChildProcess
from latentsync_trt.child_main import OnProgress
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, LatentSyncError
from latentsync_trt.runtime.engines.builders import (
    CUDNN_ATTENTION_FROM,
    TensorRTBuilder,
    cuda_options,
    dimension_ranges,
    engine_ranges,
    own_options,
    spans_of,
)
from latentsync_trt.runtime.engines.cache import EngineCache
from latentsync_trt.runtime.engines.entries import EngineKey, Entry
from latentsync_trt.runtime.engines.session import CPU, Session, SessionSettings
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

_HASHERS = 4


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A session, what it cost until it was open, and the size of its engine in the cache."""

    session: Session
    costs: EngineTime
    size_bytes: int = 0

    def times(self) -> EngineTime:
        """The costs, and its runs so far."""
        clock = self.session.clock
        return replace(
            self.costs, runs=clock.runs, first_ms=1000 * clock.first_run_s, mean_ms=clock.mean_ms
        )


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
        self._gpu = cast(Gpu, selection.gpu)  # only used where there is one
        self._builder = TensorRTBuilder(bundle, self.ranges, options.provider_options, self._gpu)
        self.cuda_graph = _wants_cuda_graph(self)
        """Whether steps are to be recorded as CUDA graphs, where there is room for them."""
        if notice := eight_bit_notice(bundle.manifest, selection):
            cache.notice(notice)

    def variant(self, graph: str) -> GraphVariant:
        """The variant of a graph to open: that for the provider, if the bundle has it."""
        variant = self.selection.provider.graph_variant
        has_it = variant in self.bundle.manifest.graphs[graph].forms
        if has_it and self.options.graph_variant == "auto":
            return variant
        return "portable"

    def check(self, **sizes: int) -> None:
        """Raises `InputError`, naming the range, if the engines do not support one of `sizes`, as
        in `frames=16`.
        """
        for name, size in sizes.items():
            span = self.ranges.get(name)
            if span is not None and not span.minimum <= size <= span.maximum:
                if span.fixed:
                    allowed = f"{span.minimum}"
                else:
                    allowed = f"{span.minimum} to {span.maximum}"
                raise InputError(
                    f"{size} {name}: the engines take {allowed}; build or export for a wider range"
                )

    def key(self, graph: str) -> EngineKey:
        """The cache key of a graph's engine."""
        manifest = self.bundle.manifest
        return EngineKey(
            bundle=manifest.name,
            graph=graph,
            graph_sha256=self.bundle.graph_hash(graph),
            provider=self.selection.name,
            options={"optimization_level": str(self._builder.level)},
            precision=manifest.precision,
            profile={
                name: astuple(span)
                for name, span in spans_of(manifest.graphs[graph], self.ranges).items()
            },
            versions={"onnxruntime": onnxruntime_version(), "tensorrt": tensorrt_version()},
            gpu=self._gpu.name,
            compute_capability=self._gpu.compute_capability,
        )

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` whose engines must be built; raises `BundleError` if the bundle lacks
        one of them.
        """
        for graph in graphs:
            self.bundle.graph_path(graph)
        if not self.compiled:
            return ()
        with ThreadPoolExecutor(_HASHERS) as hashers:  # each reads an engine of gigabytes
            entries = list(hashers.map(lambda graph: self.cache.find(self.key(graph)), graphs))
        return tuple(graph for graph, entry in zip(graphs, entries, strict=True) if entry is None)

    def memory_bytes(self, graphs: Iterable[str]) -> int | None:
        """GPU memory that the engines of `graphs` take together, weights and runs; None if that is
        not known of all.
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
        """A session of a graph, which with `cuda_graph` may record one; builds its engine first
        where that is missing.

        Raises `EngineBuildError` if the provider cannot compile it or runs too few of its nodes,
        `OutOfMemory`, and `OutputError` if the cache cannot be written.
        """
        start_s = time.perf_counter()
        built = False
        build_s = 0.0
        size_bytes = 0
        if self.compiled:
            load = partial(self._builder.open, graph, cuda_graph=cuda_graph)
            engine, session = self.cache.load(
                self.key(graph), partial(self._builder.build, graph), load
            )
            built = engine.folder.name in self.cache.built
            size_bytes = engine.size_bytes
            build_s = engine.build_s or 0.0
            start_s += build_s if engine.built else 0.0
        else:
            session = self._open_directly(graph, cuda_graph=cuda_graph)
        open_s = time.perf_counter() - start_s
        costs = EngineTime(
            graph, self.selection.name, self._node_share(session), built, build_s, open_s
        )
        return OpenedEngine(session, costs, size_bytes)

    def _open_directly(self, graph: str, *, cuda_graph: bool) -> Session:
        variant = self.variant(graph)
        path = self.bundle.graph_path(graph, variant)
        spans = spans_of(self.bundle.manifest.graphs[graph], self.ranges)
        made_for_cuda = variant == CUDA.graph_variant
        providers = CPU
        if self.selection.gpu is not None:
            options = cuda_options(
                self._gpu.index,
                cuda_graph=cuda_graph,
                fused_bias=made_for_cuda,
                cudnn_attention=made_for_cuda and self._gpu.capability >= CUDNN_ATTENTION_FROM,
            )
            providers = (
                (CUDA.ort_name, {**options, **own_options(CUDA, self.options.provider_options)}),
                *CPU,
            )
        settings = SessionSettings(
            name=path.stem,
            providers=providers,
            dimensions={name: span.optimum for name, span in spans.items() if span.fixed},
            as_it_is=made_for_cuda,  # it has the operators that an optimization would choose
        )
        return Session(path, settings)

    def _node_share(self, session: Session) -> float:
        """Share of nodes on the chosen provider; raises `EngineBuildError` if it is too small."""
        name = self.selection.name
        wanted = self.selection.provider.ort_name
        counts = session.nodes_by_provider()
        total = sum(counts.values())
        share = counts.get(wanted, 0) / total if total else 1.0
        if session.provider != wanted or share < LEAST_NODE_SHARE:
            session.close()
            where = ", ".join(
                f"{count} on {provider}" for provider, count in sorted(counts.items())
            )
            what = (
                f"{name} runs {share:.0%} of its nodes, and at "
                f"least {LEAST_NODE_SHARE:.0%} are expected ({where})"
            )
            cure = "export the model again with this version, or choose another --provider"
            raise EngineBuildError(f"{session.name}: {what}; {cure}")
        return share


def _wants_cuda_graph(factory: SessionFactory) -> bool:
    """By default at low resolutions, with fixed shapes, and with CUDA where the graphs have a
    variant for it.
    """
    asked = factory.options.cuda_graph
    selection = factory.selection
    manifest = factory.bundle.manifest
    if asked and selection.gpu is None:
        raise InputError(f"--cuda-graph: not with provider {selection.name}, only on a GPU")
    fixed = all(span.fixed for span in factory.ranges.values())
    if asked and not fixed:
        raise InputError("--cuda-graph goes with fixed shapes: use --static")
    if asked is None:
        steps = manifest.graphs.keys() & set(STEP_GRAPHS)
        suits = factory.compiled or {*map(factory.variant, steps)} == {CUDA.graph_variant}
        return fixed and suits and manifest.resolution_px <= _RECORDED_UP_TO_PX
    return asked


class BackgroundBuild:
    """Starts building `graphs` of `factory`; raises `OSError` if the process cannot be started."""

    def __init__(self, factory: SessionFactory, graphs: Sequence[str]) -> None:
        folder = factory.bundle.folder.resolve()
        cache = factory.cache.folder
        order = BuildOrder(folder, factory.selection, factory.options, cache, tuple(graphs))
        self._child = Child(ChildProcess(build))
        self._error = Future[str]()
        threading.Thread(target=self._build, args=(order,), name="build", daemon=True).start()

    def wait(self) -> str:
        """Waits for the end; returns the error, empty if none."""
        return self._error.result()

    def stop(self) -> None:
        """Ends the process; an unfinished engine is never used."""
        self._child.end()

    def _build(self, order: "BuildOrder") -> None:
        error = ""
        try:
            self._child.call(order)
        except LatentSyncError as failure:
            error = str(failure)
        self._child.end()
        self._error.set_result(error)


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """What a child builds, one graph after another."""

    bundle: Path
    selection: Selection
    options: RuntimeOptions
    cache: Path
    graphs: tuple[str, ...]


def build(order: BuildOrder, _: OnProgress) -> None:
    """Builds engines, in a child."""
    bundle = Bundle.load(order.bundle)
    cache = EngineCache(order.cache, print)
    factory = SessionFactory(bundle, order.selection, order.options, cache)
    for graph in order.graphs:
        factory.build(graph)
