"""Opens and checks the graphs of one bundle on one provider, directly or as engines from the cache."""

import copy
import hashlib
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from latentsync_trt.bundle.manifest import FULL_STEP, STEP_GRAPHS, Bundle, DimensionRange, GraphForm, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, OutOfMemory, OutputError
from latentsync_trt.remembered import Key, known, remember
from latentsync_trt.runtime.cache.entry import EngineKey, Entry
from latentsync_trt.runtime.cache.store import SHARED_FOLDER, EngineCache, Notice
from latentsync_trt.runtime.compiler.layers import LayerSummary, summarize
from latentsync_trt.runtime.compiler.profiles import check_sizes, dimension_ranges, engine_ranges, input_shapes
from latentsync_trt.runtime.providers.diagnose import rtx_devices
from latentsync_trt.runtime.providers.gpu import Gpu, driver_version
from latentsync_trt.runtime.providers.libraries import (
    cuda_version,
    cudnn_version,
    onnxruntime_version,
    rtx_version,
    tensorrt_version,
)
from latentsync_trt.runtime.providers.select import Selection, eight_bit_notice
from latentsync_trt.runtime.providers.table import CUDA, PROVIDERS, RTX, TENSORRT
from latentsync_trt.runtime.sessions.builders import (
    LAYERS,
    Builder,
    DirectOpen,
    GraphSource,
    Opener,
    RtxBuilder,
    TensorRTBuilder,
)
from latentsync_trt.runtime.sessions.cuda_form import check_form, compare_forms
from latentsync_trt.runtime.sessions.options import cuda_form_options, own_options, rtx_options
from latentsync_trt.runtime.sessions.session import CPU, Session
from latentsync_trt.types import EngineTime

CUDA_FORM_FACT = "cuda-form"
"""Kind of the remembered fact that the CUDA form of a graph computes the values of the portable one."""

LEAST_NODE_SHARE = 0.9
"""Minimum share of a graph's nodes on the chosen provider; below it, copies between devices cost more than nodes."""


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A session and its costs.

    `node_share`: on the chosen provider. `built`: whether this call built the engine. `build_s`: of that or an earlier
    build. `size_bytes`: of the engine in the cache. Without an engine, `build_s` and `size_bytes` are 0.
    """

    session: Session
    node_share: float
    built: bool
    build_s: float
    open_s: float
    size_bytes: int

    def times(self, graph: str, provider: str) -> EngineTime:
        """Time spent on it so far."""
        session = self.session
        later = session.runs - 1
        return EngineTime(
            graph=graph,
            provider=provider,
            node_share=self.node_share,
            built=self.built,
            build_s=self.build_s,
            open_s=self.open_s,
            runs=session.runs,
            first_ms=1000 * session.first_run_s,
            mean_ms=1000 * (session.later_runs_s / later if later > 0 else session.first_run_s),
        )


class Engines:
    """Opens the graphs of a bundle, and finds and builds their engines where the provider needs them.

    `on_notice` receives a sentence about builds, waits and damaged engines. Raises `InputError` if bundle or provider
    do not support `options`.
    """

    def __init__(
        self, bundle: Bundle, selection: Selection, options: RuntimeOptions, cache: EngineCache, on_notice: Notice
    ) -> None:
        self.bundle = bundle
        self.selection = selection
        self.options = options
        self.cache = cache
        ranges = dimension_ranges(bundle.manifest, options)
        self.ranges = engine_ranges(ranges, options.windows_per_batch) if self.compiled else ranges
        self._refused: set[str] = set()
        self.cuda_graph = self._uses_cuda_graph()
        check_form(bundle.manifest, selection.name, options.graph_form)
        self._compared: set[str] = set()
        self._comparing = threading.Lock()
        self._notice = on_notice
        self._unwritable: OutputError | None = None
        self._announced: OutputError | None = None
        precision_notice = eight_bit_notice(bundle.manifest, selection)
        if precision_notice:
            on_notice(precision_notice)

    @property
    def compiled(self) -> bool:
        """Whether the provider needs engines, and thus the cache."""
        return self.selection.provider.builds

    def form(self, graph: str) -> GraphForm:
        """The form of a graph to open: that for the provider, if the bundle has it and it runs here."""
        form = self.selection.provider.form
        if self.options.graph_form == "portable" or graph in self._refused:
            return "portable"
        return form if form in self.bundle.manifest.graphs[graph].forms else "portable"

    def retry_cache(self) -> None:
        """Uses the cache again after it could not be written: a disk may have room by now."""
        self._unwritable = None

    def without_cuda_graph(self) -> "Engines":
        """The same engines with CUDA graphs disabled."""
        made = copy.copy(self)
        made.options, made.cuda_graph = replace(self.options, cuda_graph=False), False
        return made

    def fact(self, *graphs: str) -> Key | None:
        """All on which it depends how `graphs` run on this GPU; None on the CPU."""
        if self.selection.gpu is None:
            return None
        versions = [onnxruntime_version(), cuda_version(), cudnn_version(), driver_version()]
        if self.compiled:
            versions.append(rtx_version() if self.selection.provider is RTX else tensorrt_version())
        return {
            "graphs": [self.bundle.graph_hash(graph, self.form(graph)) for graph in graphs],
            "spans": [{name: astuple(span) for name, span in sorted(self._spans(graph).items())} for graph in graphs],
            "provider": self.selection.name,
            "options": [
                self._builder(graph).options() if self.compiled else self._cuda_options(graph) for graph in graphs
            ],
            "gpu": asdict(self._gpu),
            "versions": versions,
        }

    def check(self, **sizes: int) -> None:
        """Raises `InputError`, naming the range, if the engines do not support one of `sizes`, as in `windows=2`."""
        check_sizes(self.ranges or _sizes_of(self.bundle.manifest), sizes)

    def key(self, graph: str) -> EngineKey:
        """The cache key of a graph's engine; only for a provider that is `compiled`."""
        builder = self._builder(graph)
        return EngineKey(
            bundle=self.bundle.manifest.name,
            graph=graph,
            graph_sha256=self.bundle.graph_hash(graph),
            provider=self.selection.name,
            options=builder.options(),
            precision=self.bundle.manifest.precision,
            profile={name: astuple(span) for name, span in sorted(self._spans(graph).items())},
            versions=builder.versions(),
            gpu=self._gpu.name,
            compute_capability=self._gpu.compute_capability,
        )

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` whose engines must be built."""
        return tuple(graph for graph in graphs if self.compiled and self.cache.find(self.key(graph)) is None)

    def memory_bytes(self, graphs: Iterable[str]) -> int | None:
        """GPU memory that the engines of `graphs` take together, weights and runs; None if one is not in the cache, or
        its provider does not say."""
        total = 0
        for graph in graphs:
            entry = self.cache.find(self.key(graph))
            if entry is None or entry.device_memory_bytes is None:
                return None
            total += entry.size_bytes + entry.device_memory_bytes
        return total

    def layers(self, graph: str) -> LayerSummary | None:
        """What a graph's engine consists of; None if not built, or if the provider does not say."""
        entry = self.cache.find(self.key(graph)) if self.compiled else None
        return summarize(entry.folder / LAYERS) if entry else None

    def build(self, graph: str, *, force: bool = False) -> Entry:
        """Builds the engine of a graph unless the cache has it; `force` builds anyway.

        Raises:
            EngineBuildError, OutOfMemory: the provider cannot compile the graph. OutputError: the cache cannot be
            written.
        """
        key = self.key(graph)
        old = self.cache.find(key) if force else None
        try:
            return self.cache.obtain(key, partial(self._build, graph), other_than=old.built_at if old else None)
        except OutputError as error:
            self._unwritable = error
            raise

    def open(self, graph: str) -> OpenedEngine:
        """A session of a graph; builds its engine first if the provider needs one that the cache lacks.

        If the cache cannot be written, the engine is built for this run only, with a notice, and so are later ones
        until `retry_cache`.

        Raises:
            EngineBuildError: the provider cannot compile the graph, or runs too few of its nodes.
            OutOfMemory: there is too little memory.
        """
        if self.compiled:
            return self._open_built(graph)
        self.settle_form(graph)
        try:
            return self._open_directly(graph)
        except EngineBuildError as error:
            self._refuse_form(graph, error)
        return self._open_directly(graph)

    def settle_form(self, graph: str) -> None:
        """Compares the CUDA form of a graph with the portable one, once for each GPU, driver and bundle.

        The portable one is opened from then on, with a notice, where values differ. Where memory is too short for the
        comparison, it is left to the next run. Best called while no other session is open, as it needs memory for each
        form in turn.

        Raises:
            EngineBuildError: values differ, and `--graph-form cuda` forbids the portable form.
        """
        if self.form(graph) != CUDA.form:
            return
        with self._comparing:
            if graph in self._compared:
                return
            try:
                self._compare_forms(graph)
            except EngineBuildError as error:
                self._refuse_form(graph, error)
            self._compared.add(graph)

    def _compare_forms(self, graph: str) -> None:
        fact, plain = self.fact(graph), self.without_cuda_graph()
        if known(CUDA_FORM_FACT, fact):
            return
        if not self._compared:
            self._notice("comparing the CUDA form of this bundle with the portable one, once for this GPU")
        portable = copy.copy(plain)
        portable.options = replace(plain.options, graph_form="portable")
        cuda, other = (partial(each._opener(graph).open, each._source(graph)) for each in (plain, portable))
        try:
            compare_forms(cuda, other, self.ranges)
        except OutOfMemory:
            return
        remember(CUDA_FORM_FACT, fact)

    def _refuse_form(self, graph: str, error: EngineBuildError) -> None:
        """Opens the portable form of a graph from now on, with a notice; raises `error` where that is no choice."""
        form = self.form(graph)
        if form == "portable" or self.options.graph_form != "auto":
            raise error
        self._notice(f"{graph}: the {form.upper()} form does not run here, continuing with the portable one: {error}")
        self._refused.add(graph)

    def _open_directly(self, graph: str) -> OpenedEngine:
        start_s = time.perf_counter()
        session = self._opener(graph).open(self._source(graph))
        share = self._node_share(session)
        open_s = time.perf_counter() - start_s
        return OpenedEngine(session, share, built=False, build_s=0.0, open_s=open_s, size_bytes=0)

    def _open_built(self, graph: str) -> OpenedEngine:
        key, builder, source = self.key(graph), self._builder(graph), self._source(graph)
        start_s = time.perf_counter()
        try:
            if self._unwritable is not None and self.cache.find(key) is None:
                raise self._unwritable
            engine, session = self.cache.load(key, partial(self._build, graph), partial(builder.open_built, source))
        except OutputError as error:
            self._unwritable = self._unwritable or error
            if self._announced is not self._unwritable:
                self._announced = self._unwritable
                self._notice(f"{self._unwritable}; engines are built for this run only")
            session = builder.open(source)
            open_s = time.perf_counter() - start_s
            share = self._node_share(session)
            return OpenedEngine(session, share, built=True, build_s=open_s, open_s=open_s, size_bytes=0)
        build_s = engine.build_s or 0.0
        open_s = time.perf_counter() - start_s - (build_s if engine.built else 0.0)
        return OpenedEngine(session, self._node_share(session), engine.built, build_s, open_s, engine.size_bytes)

    def _build(self, graph: str, folder: Path) -> int | None:
        self._notice(f"{graph}: no engine for {self.selection.name} yet; building it, once")
        start_s = time.perf_counter()
        device_memory_bytes = self._builder(graph).build(self._source(graph), folder)
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

    def _source(self, graph: str) -> GraphSource:
        return GraphSource(
            path=self.bundle.graph_path(graph, self.form(graph)),
            dimensions={name: span.optimum for name, span in self._spans(graph).items() if span.fixed},
        )

    def _spans(self, graph: str) -> dict[str, DimensionRange]:
        names = {size for tensor in self.bundle.manifest.graphs[graph].inputs for size in tensor.shape}
        return {name: span for name, span in self.ranges.items() if name in names}

    @property
    def _gpu(self) -> Gpu:
        return cast(Gpu, self.selection.gpu)  # only called for GPU providers, for which `select_provider` sets it

    def _recorded(self, graph: str) -> bool:
        return self.cuda_graph and graph in STEP_GRAPHS

    def _opener(self, graph: str) -> Opener:
        if self.selection.gpu is None:
            return DirectOpen(CPU)
        return DirectOpen(((CUDA.ort_name, self._cuda_options(graph)), *CPU))

    def _cuda_options(self, graph: str) -> dict[str, str]:
        own = own_options("cuda", self.options.provider_options)
        return {**cuda_form_options(self.form(graph), self._gpu, cuda_graph=self._recorded(graph)), **own}

    def _builder(self, graph: str) -> Builder:
        entry, options = self.bundle.manifest.graphs[graph], self.options
        if self.selection.provider is RTX:
            own = own_options("rtx", options.provider_options)
            plugin_options = {**rtx_options(input_shapes(entry, self.ranges)), **own}
            version = rtx_version()
            return RtxBuilder(plugin_options, tuple(rtx_devices(self._gpu.index)), version, self._shared(version))
        return TensorRTBuilder(
            entry,
            self.ranges,
            options,
            self._gpu,
            tensorrt_version(),
            self._shared(tensorrt_version()),
            self._recorded(graph),
            self._notice,
            self.bundle.manifest.precision,
        )

    def _shared(self, version: str) -> Path:
        """The folder of kernel timings, shared by all engines of one provider, GPU, driver and version."""
        gpu = self._gpu
        content = [self.selection.name, gpu.name, gpu.compute_capability, version, driver_version(), cuda_version()]
        return self.cache.folder / SHARED_FOLDER / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def _uses_cuda_graph(self) -> bool:
        """Default, with fixed shapes: TensorRT, and CUDA where the graphs have a form for it."""
        asked, provider = self.options.cuda_graph, self.selection.provider
        if asked and not provider.cuda_graphs:
            able = " and ".join(each.name for each in PROVIDERS.values() if each.cuda_graphs)
            raise InputError(f"--cuda-graph: not with provider {provider.name}; {able} have it")
        fixed = all(span.fixed for span in self.ranges.values())
        if asked and not fixed:
            raise InputError("--cuda-graph goes with fixed shapes: use --static")
        if asked is None:
            steps = self.bundle.manifest.graphs.keys() & set(STEP_GRAPHS)
            return fixed and (provider is TENSORRT or {*map(self.form, steps)} == {CUDA.form})
        return asked


def _sizes_of(manifest: Manifest) -> dict[str, DimensionRange]:
    """The sizes of a bundle with fixed shapes, as ranges."""
    latents = next(tensor for tensor in manifest.graphs[FULL_STEP].inputs if tensor.name == "latents")
    sizes = {"windows": int(latents.shape[0]), "frames": int(latents.shape[2])}
    return {name: DimensionRange(size, size, size) for name, size in sizes.items()}
