"""Opens and checks the graphs of one bundle on one provider, directly or as engines from the cache."""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self, cast

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, GraphVariant
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError
from latentsync_trt.runtime.engines.builders import (
    CUDNN_ATTENTION_FROM,
    TensorRTBuilder,
    cuda_options,
    own_options,
)
from latentsync_trt.runtime.engines.cache import EngineCache, Notice
from latentsync_trt.runtime.engines.entries import EngineKey, Entry
from latentsync_trt.runtime.engines.profiles import dimension_ranges, engine_ranges, fixed_sizes, spans_of
from latentsync_trt.runtime.engines.session import CPU, Providers, Session, SessionSettings
from latentsync_trt.runtime.providers.gpu import Gpu
from latentsync_trt.runtime.providers.libraries import onnxruntime_version, tensorrt_version
from latentsync_trt.runtime.providers.select import Selection, eight_bit_notice
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.types import EngineTime

LEAST_NODE_SHARE = 0.9
"""Minimum share of a graph's nodes on the chosen provider; below it, copies between devices cost more than nodes."""

_RECORDED_UP_TO_PX = 256
"""Resolution up to which steps are recorded as CUDA graphs by default: 9 % more frames there, none more at 512 px."""

_HASHERS = 4


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A session and its costs.

    `node_share`: on the chosen provider. `built`: whether this run built the engine. `build_s`: of
    that or an earlier build. `size_bytes`: of the engine in the cache. Without an engine, `build_s`
    and `size_bytes` are 0.
    """

    session: Session
    node_share: float
    open_s: float
    built: bool = False
    build_s: float = 0.0
    size_bytes: int = 0

    def after(self, before: Self | None) -> Self:
        """This session, which goes on with the times of one that was closed, if there was one."""
        if before is None:
            return self
        self.session.clock = before.session.clock
        return replace(self, built=self.built or before.built, open_s=self.open_s + before.open_s)

    def times(self, graph: str, provider: str) -> EngineTime:
        clock = self.session.clock
        return EngineTime(
            graph=graph,
            provider=provider,
            node_share=self.node_share,
            built=self.built,
            build_s=self.build_s,
            open_s=self.open_s,
            runs=clock.runs,
            first_ms=1000 * clock.first_run_s,
            mean_ms=clock.mean_ms,
        )


class SessionFactory:
    """Opens the graphs of a bundle, and finds and builds their engines where the provider needs them.

    `on_notice` receives a sentence about builds, waits and damaged engines. Raises `InputError` if
    bundle or provider do not support `options`.
    """

    def __init__(
        self, bundle: Bundle, selection: Selection, options: RuntimeOptions, cache: EngineCache, on_notice: Notice
    ) -> None:
        self.bundle, self.selection, self.options, self.cache = bundle, selection, options, cache
        self.compiled = selection.provider.builds
        """Whether the provider needs engines, and thus the cache."""
        ranges = dimension_ranges(bundle.manifest, options)
        self.ranges = engine_ranges(ranges, options.windows_per_batch) if self.compiled else ranges
        self._notice = on_notice
        self.cuda_graph = self._wants_cuda_graph()
        """Whether steps are to be recorded as CUDA graphs, where there is room for them."""
        precision_notice = eight_bit_notice(bundle.manifest, selection)
        if precision_notice:
            on_notice(precision_notice)

    def variant(self, graph: str) -> GraphVariant:
        """The variant of a graph to open: that for the provider, if the bundle has it."""
        variant = self.selection.provider.graph_variant
        has_it = variant in self.bundle.manifest.graphs[graph].forms
        return variant if has_it and self.options.graph_variant == "auto" else "portable"

    def check(self, **sizes: int) -> None:
        """Raises `InputError`, naming the range, if the engines do not support one of `sizes`, as in `windows=2`."""
        for name, size in sizes.items():
            span = self.ranges.get(name)
            if span is not None and not span.minimum <= size <= span.maximum:
                allowed = f"{span.minimum}" if span.fixed else f"{span.minimum} to {span.maximum}"
                raise InputError(f"{size} {name}: the engines take {allowed}; build or export for a wider range")

    def key(self, graph: str) -> EngineKey:
        """All on which it depends what a graph computes on a GPU; the cache key of its engine."""
        manifest, variant = self.bundle.manifest, self.variant(graph)
        builder = self._builder(graph) if self.compiled else None
        return EngineKey(
            bundle=manifest.name,
            graph=graph,
            graph_sha256=self.bundle.graph_hash(graph, variant),
            provider=self.selection.name,
            options=builder.options() if builder else self._cuda_options(variant),
            precision=manifest.precision,
            profile={name: astuple(span) for name, span in spans_of(manifest.graphs[graph], self.ranges).items()},
            versions={"onnxruntime": onnxruntime_version(), **({"tensorrt": builder.version} if builder else {})},
            gpu=self._gpu.name,
            compute_capability=self._gpu.compute_capability,
        )

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` whose engines must be built; raises `BundleError` if the bundle lacks one of them."""
        for graph in graphs:
            self.bundle.graph_path(graph)
        if not self.compiled:
            return ()
        with ThreadPoolExecutor(_HASHERS) as hashers:  # each reads an engine of gigabytes
            entries = list(hashers.map(lambda graph: self.cache.find(self.key(graph)), graphs))
        return tuple(graph for graph, entry in zip(graphs, entries, strict=True) if entry is None)

    def memory_bytes(self, graphs: Iterable[str]) -> int | None:
        """GPU memory that the engines of `graphs` take together, weights and runs; None if one is
        not in the cache, or its provider does not say."""
        entries = [self.cache.find(self.key(graph)) for graph in graphs]
        sizes = [
            each.size_bytes + each.device_memory_bytes
            for each in entries
            if each is not None and each.device_memory_bytes is not None
        ]
        return sum(sizes) if len(sizes) == len(entries) else None

    def build(self, graph: str) -> Entry:
        """Builds the engine of a graph unless the cache has it.

        Raises:
            EngineBuildError, OutOfMemory: the provider cannot compile the graph. OutputError: the
            cache cannot be written.
        """
        return self.cache.obtain(self.key(graph), partial(self._build, graph))

    def open(self, graph: str, *, cuda_graph: bool = False) -> OpenedEngine:
        """A session of a graph; builds its engine first if the provider needs one that the cache lacks.

        `cuda_graph`: it may record a CUDA graph.

        Raises:
            EngineBuildError: the provider cannot compile the graph, or runs too few of its nodes.
            OutOfMemory: there is too little memory. OutputError: the cache cannot be written.
        """
        start_s = time.perf_counter()
        if not self.compiled:
            session = self._open_variant(graph, self.variant(graph), cuda_graph=cuda_graph)
            return OpenedEngine(session, self._node_share(session), time.perf_counter() - start_s)
        load = partial(self._builder(graph, cuda_graph=cuda_graph).open, self.bundle.graph_path(graph))
        engine, session = self.cache.load(self.key(graph), partial(self._build, graph), load)
        build_s = engine.build_s or 0.0
        open_s = time.perf_counter() - start_s - (build_s if engine.built else 0.0)
        built = self.cache.has_built(engine)
        return OpenedEngine(session, self._node_share(session), open_s, built, build_s, engine.size_bytes)

    def _open_variant(self, graph: str, variant: GraphVariant, *, cuda_graph: bool) -> Session:
        path = self.bundle.graph_path(graph, variant)
        settings = SessionSettings(
            name=path.stem,
            providers=self._providers(variant, cuda_graph=cuda_graph),
            dimensions=fixed_sizes(self.bundle.manifest.graphs[graph], self.ranges),
            as_it_is=variant == CUDA.graph_variant,  # it has the operators that an optimization would choose
        )
        return Session(path, settings)

    def _build(self, graph: str, folder: Path) -> int | None:
        self._notice(f"{graph}: no engine for {self.selection.name} yet; building it, once")
        start_s = time.perf_counter()
        device_memory_bytes = self._builder(graph).build(self.bundle.graph_path(graph), folder)
        self._notice(f"{graph}: built in {time.perf_counter() - start_s:.1f} s")
        return device_memory_bytes

    def _node_share(self, session: Session) -> float:
        """Share of nodes on the chosen provider; raises `EngineBuildError` if it is too small."""
        name, wanted = self.selection.name, self.selection.provider.ort_name
        counts = session.nodes_by_provider()
        total = sum(counts.values())
        share = counts.get(wanted, 0) / total if total else 1.0
        if wanted not in session.ort.get_providers() or share < LEAST_NODE_SHARE:
            session.close()
            where = ", ".join(f"{count} on {provider}" for provider, count in sorted(counts.items()))
            raise EngineBuildError(
                f"{session.name}: {name} runs {share:.0%} of its nodes, and at least {LEAST_NODE_SHARE:.0%} are "
                f"expected ({where}); export the model again with this version, or choose another --provider"
            )
        return share

    @property
    def _gpu(self) -> Gpu:
        return cast(Gpu, self.selection.gpu)  # only called for GPU providers, for which `select_provider` sets it

    def _providers(self, variant: GraphVariant, *, cuda_graph: bool) -> Providers:
        if self.selection.gpu is None:
            return CPU
        return (CUDA.ort_name, self._cuda_options(variant, cuda_graph=cuda_graph)), *CPU

    def _cuda_options(self, variant: GraphVariant, *, cuda_graph: bool = False) -> dict[str, str]:
        made_for_cuda = variant == CUDA.graph_variant
        options = cuda_options(
            self._gpu.index,
            cuda_graph=cuda_graph,
            fused_bias=made_for_cuda,
            cudnn_attention=made_for_cuda and self._gpu.capability >= CUDNN_ATTENTION_FROM,
        )
        return {**options, **own_options(CUDA, self.options.provider_options)}

    def _builder(self, graph: str, *, cuda_graph: bool = False) -> TensorRTBuilder:
        return TensorRTBuilder(
            entry=self.bundle.manifest.graphs[graph],
            ranges=self.ranges,
            given=self.options.provider_options,
            gpu=self._gpu,
            version=tensorrt_version(),
            precision=self.bundle.manifest.precision,
            cuda_graph=cuda_graph,
        )

    def _wants_cuda_graph(self) -> bool:
        """By default at low resolutions, with fixed shapes, and with CUDA where the graphs have a variant for it."""
        asked, provider, manifest = self.options.cuda_graph, self.selection.provider, self.bundle.manifest
        if asked and self.selection.gpu is None:
            raise InputError(f"--cuda-graph: not with provider {provider.name}, only on a GPU")
        fixed = all(span.fixed for span in self.ranges.values())
        if asked and not fixed:
            raise InputError("--cuda-graph goes with fixed shapes: use --static")
        if asked is None:
            steps = manifest.graphs.keys() & set(STEP_GRAPHS)
            suits = provider.builds or {*map(self.variant, steps)} == {CUDA.graph_variant}
            return fixed and suits and manifest.resolution_px <= _RECORDED_UP_TO_PX
        return asked
