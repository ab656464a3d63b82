"""One trial of a self-test, in a process of its own, which may crash: graphs are opened and run,
and windows are painted.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from latentsync_trt.bench.run import Setting
from latentsync_trt.bench.sample_faces import write_sample_faces
from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.child import ChildLost, run_child
from latentsync_trt.child_main import OnProgress
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.engines.buffers import give_back_gpu_memory
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.output_comparison import BoundRun
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.table import PROVIDERS
from latentsync_trt.types import NoticeCallback

GPU_RUNS = 20
CPU_RUNS = 3
"""Runs per graph: on a GPU enough for clocks to rise and a CUDA graph to be replayed, which a CPU
does not need.
"""


@dataclass(frozen=True, slots=True)
class GraphRow:
    """What was measured of one graph; None where that is unknown."""

    graph: str
    error: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes assigned to each provider; a compiled part is one."""
    built: bool = False
    """Whether the engine was built at this start."""
    build_s: float | None = None
    """Of the engine, now or earlier."""
    open_s: float | None = None
    engine_bytes: int | None = None
    """In the cache."""
    first_ms: float | None = None
    """Of the first run."""
    mean_ms: float | None = None
    """Of the other runs."""
    difference: float | None = None
    """From the reference's outputs, as `difference` in `output_comparison` measures it."""
    reference_ms: float | None = None
    """`mean_ms` of the reference."""


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """What is tried."""

    provider: str
    bundle: Path
    options: RuntimeOptions
    folder: Path
    """New folder for outputs and pictures; it has the name of the trial."""
    graphs: tuple[str, ...]
    steps: int = 6
    """Denoising steps of the pictures, which are painted where all graphs work."""

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(slots=True)
class TrialResult:
    """What was found so far; it grows while the trial runs, and a crash leaves the last state."""

    provider: str = ""
    """The active one; empty if none loaded."""
    graphs: dict[str, GraphRow] = field(default_factory=dict)
    """Those that were reached."""
    failures: list[str] = field(default_factory=list)
    """Those that are of no single graph."""
    notices: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    """Messages about engines."""
    doing: str = "starting"

    def graph_failures(self) -> list[str]:
        """Returns what failed with single graphs; also where nodes run on another provider."""
        failures = []
        for graph, row in self.graphs.items():
            provider = PROVIDERS[self.provider]
            if row.error:
                failure = row.error
                if graph not in failure:
                    failure = f"{graph}: {failure}"
                failures.append(failure)
            elif provider.builds and [*row.nodes] != [provider.ort_name]:
                nodes = dict(row.nodes)
                failures.append(
                    f"{graph}: {self.provider} was not assigned all of its nodes ({nodes})"
                )
        return failures


@dataclass(frozen=True, slots=True)
class Trial:
    spec: TrialSpec
    result: TrialResult

    def has(self, file: str) -> bool:
        """Whether it has written the file in its folder."""
        return (self.spec.folder / file).exists()


def run_trial(spec: TrialSpec, on_notice: NoticeCallback) -> TrialResult:
    """Runs a trial in a child process; `on_notice` gets what it does."""
    result = TrialResult()

    def on_progress(reached: TrialResult) -> None:
        nonlocal result
        result = reached
        on_notice(result.doing)

    try:
        return run_child(carry_out_trial, spec, on_progress)
    except ChildLost as lost:
        line = lost.ended.last_error_line or "–"
        result.failures.append(f"the process died with {lost.ended} while {result.doing}: {line}")
    return result


def carry_out_trial(spec: TrialSpec, on_progress: OnProgress) -> TrialResult:
    """Runs a trial in this process; reports its state before each step."""
    result = TrialResult()

    def begin(doing: str) -> None:
        result.doing = doing
        on_progress(result)

    begin(f"loading provider {spec.provider}")
    try:
        selection = select_provider(spec.provider, spec.options.one_device)
        result.provider = selection.name
        result.notices = selection.notices()
        spec.folder.mkdir()
        folder = cache_folder(spec.options.engine_cache, used=selection.provider.builds)
        cache = EngineCache(folder, result.log.append)
        bundle = Bundle.load(spec.bundle, verify=False)
        factory = SessionFactory(bundle, selection, spec.options, cache)
        for graph in spec.graphs:
            _try_graph(graph, spec, factory, result, begin)
            give_back_gpu_memory(selection)
        if not any(row.error for row in result.graphs.values()):
            begin("painting")
            setting = Setting(
                bundle,
                replace(selection, is_named=True),  # no other takes its place
                spec.options,
                bundle.manifest.resolution_px,
                free_before_bytes=None,
                on_notice=result.log.append,
                runs=1,
                warm_up=0,
            )
            result.notices += write_sample_faces(setting, spec.steps, spec.folder)
    except LatentSyncError as error:
        result.failures.append(str(error))
    return result


def _try_graph(
    graph: str,
    spec: TrialSpec,
    factory: SessionFactory,
    result: TrialResult,
    begin: Callable[[str], None],
) -> None:
    """Builds the engine of a graph unless it is in the cache, opens and runs it."""
    row = GraphRow(graph)
    result.graphs[graph] = row
    begin(f"building and opening {graph}")
    try:
        engine = factory.open(graph)
        costs = engine.costs
        with closing(engine.session) as session:
            nodes = session.nodes_by_provider()
            row = replace(row, nodes=nodes, built=costs.built, open_s=costs.open_s)
            if factory.compiled:
                row = replace(row, build_s=costs.build_s, engine_bytes=engine.size_bytes)
            result.graphs[graph] = row
            begin(f"running {graph}")
            run = BoundRun(session, factory.ranges, factory.selection)
            for _ in range(GPU_RUNS if factory.selection.gpu else CPU_RUNS):
                run()
            np.savez(spec.folder / f"{graph}.npz", *run.outputs())
            first_ms = 1000 * session.clock.first_run_s
            row = replace(row, first_ms=first_ms, mean_ms=session.clock.mean_ms)
    except LatentSyncError as error:
        row = replace(row, error=str(error))
    result.graphs[graph] = row
