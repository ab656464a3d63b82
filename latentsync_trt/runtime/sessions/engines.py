"""The engines of one bundle on one provider: found in the cache, or built, opened, and looked at before they count."""

import hashlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

from latentsync_trt.bundle.manifest import EIGHT_BIT_PRECISIONS, Bundle, DimensionRange, GraphForm, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import EngineBuildError, InputError, OutputError
from latentsync_trt.runtime.cache.engine_cache import Engine, EngineCache, Notice
from latentsync_trt.runtime.cache.key import EngineKey
from latentsync_trt.runtime.cache.store import SHARED_FOLDER
from latentsync_trt.runtime.compiler.profiles import (
    InputShapes,
    check_sizes,
    dimension_ranges,
    input_shapes,
    with_sizes,
)
from latentsync_trt.runtime.providers.gpu import Gpu, driver_version
from latentsync_trt.runtime.providers.libraries import cuda_version, rtx_version, tensorrt_version
from latentsync_trt.runtime.providers.select import ORT_NAMES, Selection, eight_bit_notice, rtx_devices
from latentsync_trt.runtime.sessions.forms import check_form, chosen_form
from latentsync_trt.runtime.sessions.options import BuildOptions, CudaOptions, RtxOptions, TensorRTOptions
from latentsync_trt.runtime.sessions.recipes import (
    OptimizedGraph,
    Place,
    Recipe,
    RtxEngine,
    TensorRTEngine,
    cuda_recipe,
)
from latentsync_trt.runtime.sessions.session import Session
from latentsync_trt.types import EngineTime

T = TypeVar("T")

COMPILING_PROVIDERS = ("tensorrt", "rtx")
"""Those whose builds take minutes."""

LEAST_NODE_SHARE = {"tensorrt": 0.9, "rtx": 0.9, "cuda": 0.9, "cpu": 1.0}
"""Smallest share of a graph's nodes that must be on the provider which was chosen. Below it the run would be slower
than its name says: copies between devices cost more than the nodes."""


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """A session, the share of its nodes on the chosen provider, whether it was built for this, and the seconds that
    building (then or earlier) and opening took; `size_bytes` of its files, 0 if it was kept nowhere."""

    session: Session
    node_share: float
    built: bool
    build_s: float
    open_s: float
    size_bytes: int

    def times(self, graph: str, provider: str) -> EngineTime:
        """What it cost so far."""
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
    """Finds, builds and opens the engines of a bundle.

    Args:
        selection: the provider. options: see `RuntimeOptions`. cache: where engines are kept.
        on_notice: told, in a sentence, about builds, waits and what is discarded.

    Raises:
        InputError: the options ask for shapes that the bundle does not have, or for what the provider cannot do.
    """

    def __init__(
        self, bundle: Bundle, selection: Selection, options: RuntimeOptions, cache: EngineCache, on_notice: Notice
    ) -> None:
        self.bundle = bundle
        self.selection = selection
        self.options = options
        self.cache = cache
        self.ranges = dimension_ranges(bundle.manifest, options)
        self.cuda_graph = self._uses_cuda_graph()
        check_form(bundle.manifest, selection.name, options.graph_form)
        self._refused: set[str] = set()
        self._notice = on_notice
        self._unwritable: OutputError | None = None
        told = eight_bit_notice(bundle.manifest, selection)
        if told:
            on_notice(told)

    @property
    def fixed(self) -> bool:
        """Whether every dimension has one value."""
        return all(span.fixed for span in self.ranges.values())

    def key(self, graph: str) -> EngineKey:
        """What an engine of `graph` is found by."""
        recipe, gpu = self._recipe(graph), self.selection.gpu
        return EngineKey(
            bundle=self.bundle.manifest.name,
            graph=graph,
            graph_sha256=self.bundle.graph_hash(graph, self.form(graph)),
            provider=self.selection.name,
            options=recipe.options(),
            precision=self.bundle.manifest.precision,
            profile={
                name: (span.minimum, span.optimum, span.maximum) for name, span in sorted(self._spans(graph).items())
            },
            versions=recipe.versions(),
            # What is kept for CPUs does not depend on their instruction set; see `SessionSettings.optimized_copy`.
            gpu=gpu.name if gpu else platform.machine(),
            compute_capability=gpu.compute_capability if gpu else "",
            form=self.form(graph),
        )

    def form(self, graph: str) -> GraphForm:
        """The form of a graph that is used."""
        if graph in self._refused:
            return "portable"
        return chosen_form(self.bundle.manifest, graph, self.selection.name, self.options.graph_form)

    def without_cuda_graph(self) -> "Engines":
        """The same engines, run kernel by kernel."""
        options = replace(self.options, cuda_graph=False)
        made = Engines(self.bundle, self.selection, options, self.cache, self._notice)
        made._refused = self._refused
        return made

    def missing(self, graphs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `graphs` that have no engine in the cache."""
        return tuple(graph for graph in graphs if self.cache.find(self.key(graph)) is None)

    def build(self, graph: str, *, force: bool = False) -> Engine:
        """Builds the engine of a graph unless the cache has it; `force` builds anyway.

        Raises:
            EngineBuildError, OutOfMemory: the provider cannot compile the graph. OutputError: the cache cannot be
            written.
        """
        return self._in_either_form(graph, lambda: self._build(graph, force=force))

    def _build(self, graph: str, *, force: bool) -> Engine:
        key = self.key(graph)
        try:
            return self.cache.obtain(key, self._maker(graph, key), force=force)
        except OutputError as error:
            self._unwritable = error
            raise

    def open(self, graph: str, *, profile_prefix: Path | None = None) -> OpenedEngine:
        """A session of a graph, built first if the cache lacks it.

        Where the cache cannot be written the engine is built in memory, for this run only, with a notice.

        Raises:
            EngineBuildError: the provider cannot compile the graph, or leaves too much of it to another.
            OutOfMemory: there is too little memory.
        """
        return self._in_either_form(graph, lambda: self._open(graph, profile_prefix))

    def _in_either_form(self, graph: str, action: Callable[[], T]) -> T:
        """`action`; once more in the portable form where the provider refuses another, and that was not demanded."""
        try:
            return action()
        except EngineBuildError as error:
            if self.form(graph) == "portable" or self.options.graph_form != "auto":
                raise
            self._notice(f"{graph}: the CUDA form does not open here, going on with the portable one: {error}")
            self._refused.add(graph)
        return action()

    def _open(self, graph: str, profile_prefix: Path | None) -> OpenedEngine:
        key, recipe = self.key(graph), self._recipe(graph)
        place = self._place(graph, key, profile_prefix)
        start_s = time.perf_counter()
        try:
            self._check_writable(key)
            engine, session = self.cache.load(key, self._maker(graph, key), lambda folder: recipe.open(place, folder))
        except OutputError as error:
            self._unwritable = error
            self._notice(f"{error}; {graph} is built for this run only")
            session = recipe.open(place, None)
            open_s = time.perf_counter() - start_s
            share = self._node_share(session)
            return OpenedEngine(session, share, built=True, build_s=open_s, open_s=open_s, size_bytes=0)
        open_s = time.perf_counter() - start_s - (engine.build_s if engine.built else 0.0)
        size_bytes = sum(path.stat().st_size for path in engine.folder.rglob("*") if path.is_file())
        return OpenedEngine(session, self._node_share(session), engine.built, engine.build_s, open_s, size_bytes)

    def _check_writable(self, key: EngineKey) -> None:
        """Raises what kept an earlier build out of the cache, if a build would now be lost the same way."""
        if self._unwritable is not None and self.cache.find(key) is None:
            raise self._unwritable

    def check(self, **sizes: int) -> None:
        """Raises `InputError`, naming what the engines take, if a run is to have other `windows` or `frames`."""
        check_sizes(self.ranges or _sizes_of(self.bundle.manifest), sizes)

    def _maker(self, graph: str, key: EngineKey) -> Callable[[Path], None]:
        """Builds into the folder it is given, and says so."""

        def make(folder: Path) -> None:
            self._notice_of_build(f"{graph}: no engine for {self.selection.name} yet; building it, once")
            start_s = time.perf_counter()
            self._recipe(graph).make(self._place(graph, key), folder)
            self._notice_of_build(f"{graph}: built in {time.perf_counter() - start_s:.1f} s")

        return make

    def _notice_of_build(self, text: str) -> None:
        """Tells of builds that take minutes; those of ONNX Runtime's own providers take less than telling is worth."""
        if self.selection.name in COMPILING_PROVIDERS:
            self._notice(text)

    def _node_share(self, session: Session) -> float:
        """Share of nodes on the chosen provider.

        Raises:
            EngineBuildError: another provider runs the session, or the share is below the floor.
        """
        name = self.selection.name
        wanted = ORT_NAMES[name]
        counts = session.nodes_by_provider()
        total = sum(counts.values())
        share = counts.get(wanted, 0) / total if total else 1.0
        if wanted not in session.ort.get_providers() or share < LEAST_NODE_SHARE[name]:
            session.close()
            where = ", ".join(f"{count} on {provider}" for provider, count in sorted(counts.items()))
            raise EngineBuildError(
                f"{session.name}: {name} runs {share:.0%} of its nodes, and at least {LEAST_NODE_SHARE[name]:.0%} are "
                f"expected ({where}); export the model again with this version, or choose another --provider"
            )
        return share

    def _place(self, graph: str, key: EngineKey, profile_prefix: Path | None = None) -> Place:
        return Place(
            graph=self.bundle.graph_path(graph, self.form(graph)),
            shared=self.cache.folder / SHARED_FOLDER / _machine_digest(key),
            dimensions={name: span.optimum for name, span in self._spans(graph).items() if span.fixed},
            profile_prefix=profile_prefix,
        )

    def _spans(self, graph: str) -> dict[str, DimensionRange]:
        names = {size for tensor in self.bundle.manifest.graphs[graph].inputs for size in tensor.shape}
        return {name: span for name, span in self.ranges.items() if name in names}

    def _shapes(self, graph: str) -> dict[str, InputShapes]:
        """Profile of a graph's inputs; empty if all are fixed."""
        entry = self.bundle.manifest.graphs[graph]
        spans = self._spans(graph)
        return {} if all(span.fixed for span in spans.values()) else input_shapes(entry, spans)

    def _recipe(self, graph: str) -> Recipe:
        options, name = self.options, self.selection.name
        replayed = self.cuda_graph and graph.startswith("denoise_step")
        if name == "tensorrt":
            return self._tensorrt_recipe(graph, replayed=replayed)
        if name == "rtx":
            rtx = RtxOptions(shapes=self._shapes(graph), workspace_gb=options.workspace_gb)
            return RtxEngine(rtx, tuple(rtx_devices(options.device)), rtx_version())
        if name == "cuda":
            cuda = CudaOptions(options.device, cuda_graph=replayed)
            return self._folded(cuda_recipe(cuda, self.form(graph), self.selection.gpu))
        return self._folded(OptimizedGraph(ORT_NAMES[name]))

    def _tensorrt_recipe(self, graph: str, *, replayed: bool) -> TensorRTEngine:
        options, entry = self.options, self.bundle.manifest.graphs[graph]
        gpu = cast(Gpu, self.selection.gpu)  # which `select_provider` gives every provider but the CPU's
        fixed = {name: span.optimum for name, span in self.ranges.items() if span.fixed}
        inputs, outputs = (
            tuple(with_sizes(tensor, fixed) for tensor in side) for side in (entry.inputs, entry.outputs)
        )
        return TensorRTEngine(
            BuildOptions(input_shapes(entry, self._spans(graph)), options.workspace_gb, options.optimization_level),
            TensorRTOptions(options.device, cuda_graph=replayed),
            tensorrt_version(),
            gpu,
            inputs,
            outputs,
            self._notice,
        )

    def _folded(self, recipe: OptimizedGraph) -> OptimizedGraph:
        """The recipe that leaves weights in eight bits to whoever opens the copy, which would hold them in 16 or 32."""
        quantized = self.bundle.manifest.precision in EIGHT_BIT_PRECISIONS
        return replace(recipe, fold_constants=False) if quantized else recipe

    def _uses_cuda_graph(self) -> bool:
        """TensorRT replays a graph where shapes are fixed; CUDA only if asked: 2 % at 512 px for 3.5 GB more memory."""
        asked, name = self.options.cuda_graph, self.selection.name
        if asked and name not in ("tensorrt", "cuda"):
            raise InputError(f"--cuda-graph: not with provider {name}; tensorrt and cuda have it")
        if asked and not self.fixed:
            raise InputError("--cuda-graph goes with fixed shapes: use --static")
        return self.fixed and (name == "tensorrt" if asked is None else asked)


def _sizes_of(manifest: Manifest) -> dict[str, DimensionRange]:
    """What the graphs of a bundle with fixed shapes take."""
    latents = next(tensor for tensor in manifest.graphs["denoise_step"].inputs if tensor.name == "latents")
    windows, frames = int(latents.shape[0]), int(latents.shape[2])
    return {"windows": DimensionRange(windows, windows, windows), "frames": DimensionRange(frames, frames, frames)}


def _machine_digest(key: EngineKey) -> str:
    """A name for what all engines of one provider, GPU, driver and version share: kernel timings."""
    of_gpu = [driver_version(), cuda_version()] if key.compute_capability else []
    content = json.dumps([key.provider, key.gpu, key.compute_capability, dict(key.versions), of_gpu], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
