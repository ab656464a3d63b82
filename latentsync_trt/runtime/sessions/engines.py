"""Opens and checks the graphs of one bundle on one provider, directly or as engines from the cache."""

import copy
import threading
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self, cast

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, GraphForm
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, OutOfMemory
from latentsync_trt.remembered import Key, known, remember
from latentsync_trt.runtime.cache import EngineCache, Notice
from latentsync_trt.runtime.entries import EngineKey, Entry
from latentsync_trt.runtime.providers.gpu import Gpu, driver_version
from latentsync_trt.runtime.providers.libraries import (
    cuda_version,
    cudnn_version,
    onnxruntime_version,
    tensorrt_version,
)
from latentsync_trt.runtime.providers.select import Selection, eight_bit_notice
from latentsync_trt.runtime.providers.table import CUDA, TENSORRT
from latentsync_trt.runtime.sessions.builders import (
    CUDNN_ATTENTION_FROM,
    TensorRTBuilder,
    cuda_options,
    own_options,
)
from latentsync_trt.runtime.sessions.profiles import dimension_ranges, engine_ranges, fixed_sizes, spans_of
from latentsync_trt.runtime.sessions.session import CPU, Providers, Session, SessionSettings
from latentsync_trt.runtime.sessions.trial import FORM_LIMIT, difference, run_and_close
from latentsync_trt.types import EngineTime

CUDA_FORM_FACT = "cuda-form"
"""Kind of the remembered fact that the CUDA form of a graph computes the values of the portable one."""

LEAST_NODE_SHARE = 0.9
"""Minimum share of a graph's nodes on the chosen provider; below it, copies between devices cost more than nodes."""


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

    def after(self, before: Self) -> Self:
        """This session, which goes on with the times of one that was closed."""
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


class Engines:
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
        self._settled: dict[str, GraphForm] = {}
        self._comparing = {graph: threading.Lock() for graph in bundle.manifest.graphs}
        self._notice = on_notice
        self.cuda_graph = self._uses_cuda_graph()
        precision_notice = eight_bit_notice(bundle.manifest, selection)
        if precision_notice:
            on_notice(precision_notice)

    def form(self, graph: str) -> GraphForm:
        """The form of a graph to open: that for the provider, if the bundle has it and it runs here."""
        form = self.selection.provider.form
        if self.options.graph_form == "portable" or form not in self.bundle.manifest.graphs[graph].forms:
            return "portable"
        return self._settled.get(graph, form)

    def without_cuda_graph(self) -> "Engines":
        made = copy.copy(self)
        made.options, made.cuda_graph = replace(self.options, cuda_graph=False), False
        return made

    def fact(self, *graphs: str) -> Key | None:
        """All on which it depends how `graphs` run on this GPU; None on the CPU."""
        gpu = self.selection.gpu
        if gpu is None:
            return None
        return {
            "graphs": [self.key(graph).digest for graph in graphs],
            "gpu": [gpu.name, gpu.compute_capability],  # not which of several
            "versions": [cuda_version(), cudnn_version(), driver_version()],
        }

    def check(self, **sizes: int) -> None:
        """Raises `InputError`, naming the range, if the engines do not support one of `sizes`, as in `windows=2`."""
        for name, size in sizes.items():
            span = self.ranges.get(name)
            if span is not None and not span.minimum <= size <= span.maximum:
                allowed = f"{span.minimum}" if span.fixed else f"{span.minimum} to {span.maximum}"
                raise InputError(f"{size} {name}: the engines take {allowed}; build or export for a wider range")

    def key(self, graph: str) -> EngineKey:
        """All on which it depends what a graph computes on a GPU; the cache key of its engine."""
        manifest, form = self.bundle.manifest, self.form(graph)
        builder = self._builder(graph) if self.compiled else None
        return EngineKey(
            bundle=manifest.name,
            graph=graph,
            graph_sha256=self.bundle.graph_hash(graph, form),
            provider=self.selection.name,
            options=builder.options() if builder else self._cuda_options(graph, form),
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
        return tuple(graph for graph in graphs if self.compiled and self.cache.find(self.key(graph)) is None)

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

    def open(self, graph: str) -> OpenedEngine:
        """A session of a graph; builds its engine first if the provider needs one that the cache lacks.

        Raises:
            EngineBuildError: the provider cannot compile the graph, or runs too few of its nodes.
            OutOfMemory: there is too little memory. OutputError: the cache cannot be written.
        """
        self.settle_form(graph)
        start_s = time.perf_counter()
        if not self.compiled:
            session = self._open_form(graph, self.form(graph))
            return OpenedEngine(session, self._node_share(session), time.perf_counter() - start_s)
        load = partial(self._builder(graph).open, self.bundle.graph_path(graph))
        engine, session = self.cache.load(self.key(graph), partial(self._build, graph), load)
        build_s = engine.build_s or 0.0
        open_s = time.perf_counter() - start_s - (build_s if engine.built else 0.0)
        built = self.cache.has_built(engine)
        return OpenedEngine(session, self._node_share(session), open_s, built, build_s, engine.size_bytes)

    def settle_form(self, graph: str) -> None:
        """Compares the CUDA form of a graph with the portable one, once for each GPU, driver and bundle.

        The portable one is opened from then on, with a notice, where the CUDA form does not run or
        values differ. Where memory is too short for the comparison, it is left to the next run.
        Best called while no other session is open, as it needs memory for each form in turn.
        """
        if self.form(graph) != CUDA.form:
            return
        with self._comparing[graph]:
            if graph in self._settled:
                return
            settled: GraphForm = CUDA.form
            try:
                self._compare_forms(graph)
            except OutOfMemory:
                pass
            except EngineBuildError as error:
                self._notice(f"{graph}: the CUDA form does not run here, continuing with the portable one: {error}")
                settled = "portable"
            self._settled[graph] = settled

    def _compare_forms(self, graph: str) -> None:
        plain = self.without_cuda_graph()
        fact = plain.fact(graph)
        if known(CUDA_FORM_FACT, fact):
            return
        if not self._settled:
            self._notice("comparing the CUDA form of this bundle with the portable one, once for this GPU")
        forms: tuple[GraphForm, ...] = (CUDA.form, "portable")
        ours, theirs = (run_and_close(plain._open_form(graph, form), self.ranges, self.selection) for form in forms)
        apart = difference(ours, theirs)
        if apart > FORM_LIMIT:
            raise EngineBuildError(
                f"its values differ from those of the portable form by {apart:.1e} of the largest, at most "
                f"{FORM_LIMIT} is allowed; please report this GPU with `latentsync-trt selftest --json`"
            )
        remember(CUDA_FORM_FACT, fact)

    def _open_form(self, graph: str, form: GraphForm) -> Session:
        path, fixed = self.bundle.graph_path(graph, form), fixed_sizes(self.bundle.manifest.graphs[graph], self.ranges)
        settings = SessionSettings(
            name=path.stem,
            providers=self._providers(graph, form),
            dimensions=fixed,
            as_it_is=form == CUDA.form,  # it has the operators that an optimization would choose
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

    def _recorded(self, graph: str) -> bool:
        return self.cuda_graph and graph in STEP_GRAPHS

    def _providers(self, graph: str, form: GraphForm) -> Providers:
        if self.selection.gpu is None:
            return CPU
        return (CUDA.ort_name, self._cuda_options(graph, form)), *CPU

    def _cuda_options(self, graph: str, form: GraphForm) -> dict[str, str]:
        made_for_cuda = form == CUDA.form
        options = cuda_options(
            self._gpu.index,
            cuda_graph=self._recorded(graph),
            fused_bias=made_for_cuda,
            cudnn_attention=made_for_cuda and self._gpu.capability >= CUDNN_ATTENTION_FROM,
        )
        return {**options, **own_options(CUDA, self.options.provider_options)}

    def _builder(self, graph: str) -> TensorRTBuilder:
        return TensorRTBuilder(
            entry=self.bundle.manifest.graphs[graph],
            ranges=self.ranges,
            given=self.options.provider_options,
            gpu=self._gpu,
            version=tensorrt_version(),
            precision=self.bundle.manifest.precision,
            cuda_graph=self._recorded(graph),
        )

    def _uses_cuda_graph(self) -> bool:
        """Default, with fixed shapes: TensorRT, and CUDA where the graphs have a form for it."""
        asked, provider = self.options.cuda_graph, self.selection.provider
        if asked and self.selection.gpu is None:
            raise InputError(f"--cuda-graph: not with provider {provider.name}, only on a GPU")
        fixed = all(span.fixed for span in self.ranges.values())
        if asked and not fixed:
            raise InputError("--cuda-graph goes with fixed shapes: use --static")
        if asked is None:
            steps = self.bundle.manifest.graphs.keys() & set(STEP_GRAPHS)
            return fixed and (provider is TENSORRT or {*map(self.form, steps)} == {CUDA.form})
        return asked
