"""Checks whether a provider works completely on this machine. Each part runs in a child process, which may crash.

1. first start: every graph is built into an empty engine cache, opened and run, and windows are
painted 2. second start: the same from that cache, which must build nothing 3. reference: the same
on another provider, to compare outputs and pictures with
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from latentsync_trt.bench.rows import BundleFacts, bundle_facts, environment, library_versions, to_json
from latentsync_trt.bench.run import first_window
from latentsync_trt.bundle.manifest import DEMO_NAME, STEP_GRAPHS, Bundle, Manifest
from latentsync_trt.child import Emit, Event, run_child
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.pictures import decibels, generated_part
from latentsync_trt.media.demo_clip import choose_clip
from latentsync_trt.option_fields import command_line
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.output_comparison import BoundRun, difference, provider_limit
from latentsync_trt.runtime.engines.session import give_back_gpu_memory
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.model import open_model
from latentsync_trt.runtime.providers.diagnose import diagnose_provider
from latentsync_trt.runtime.providers.gpu import gpus
from latentsync_trt.runtime.providers.select import TestResult, select_provider
from latentsync_trt.runtime.providers.table import CPU, CUDA, PROVIDERS
from latentsync_trt.sync.inpaint import graphs_for, make_inpainter, paint_window
from latentsync_trt.types import UInt16Array
from latentsync_trt.unexpected import redacted

LEAST_DB: Mapping[str, float] = {"fp32": 60.0, "fp16": 45.0, "int8": 35.0, "fp8": 35.0}
"""Least PSNR to the reference's pictures by the bundle's precision; docs/selftest.md has measurements."""

STEPS = 6
"""Denoising steps of a window, by preset `balanced`, which computes two of them in full."""

WINDOWS = 2
"""Two, because the second reuses buffers that the first has filled."""

PICTURES = "pictures.npy"
GPU_RUNS, CPU_RUNS = 20, 3
"""Runs per graph: on a GPU enough for clocks to rise and a CUDA graph to be replayed, which a CPU does not need."""

_FIRST, _SECOND, _REFERENCE = "first start", "second start", "reference"
_PEAK = 65535.0
"""The largest level of a 16-bit picture."""


@dataclass(slots=True)
class GraphRow:
    """One graph at one start; None if unknown.

    `nodes`: number of nodes assigned to each provider in the graph that ONNX Runtime runs; a
    compiled part is one node. `built`: whether its engine was built at this start; `build_s`:
    duration of the build, now or earlier; `engine_bytes`: size in the cache. `first_ms`: the first
    run on device inputs; `mean_ms`: the mean of the others. `difference`: the largest to the
    reference's outputs, divided by their largest value; right up to `limit`. `reference_ms`: as `mean_ms`, there.
    """

    graph: str
    error: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    built: bool = False
    build_s: float | None = None
    open_s: float | None = None
    engine_bytes: int | None = None
    first_ms: float | None = None
    mean_ms: float | None = None
    difference: float | None = None
    limit: float | None = None
    reference_ms: float | None = None


@dataclass(slots=True)
class Part:
    """What one child process is asked for, and what it has found so far.

    It opens and runs the graphs `tested` one by one, then paints `windows` of the built-in clip. `folder`: receives
    outputs and pictures; the clip is written beside it, unless it exists. `provider`: the active one, empty if none
    loaded. `graphs`: those reached. `failures`: those of no single graph, including a crash.
    `log`: messages about engines. `doing`: the current step, empty at the end.
    """

    requested: str
    bundle: Path
    options: RuntimeOptions
    folder: Path
    tested: tuple[str, ...]
    windows: int
    steps: int
    environment: dict[str, str] = field(default_factory=dict)
    provider: str = ""
    graphs: dict[str, GraphRow] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    doing: str = "starting"

    def carry_out(self, emit: Emit) -> None:
        """In the child: does what is asked; sends itself at each step, so that a crash loses no earlier results."""

        def begin(doing: str) -> None:
            self.doing = doing
            emit(part=self)

        def note(text: str) -> None:
            self.log.append(text)
            emit(part=self)

        begin("reading the versions of libraries")
        device = self.options.one_device
        self.environment = library_versions(next((gpu for gpu in gpus() if gpu.index == device), None))
        begin(f"loading provider {self.requested}")
        try:
            selection = select_provider(self.requested, device)
            self.provider, self.notices = selection.name, selection.notices()
            self.folder.mkdir()
            cache = EngineCache(cache_folder(self.options.engine_cache), note)
            engines = SessionFactory(Bundle.load(self.bundle, verify=False), selection, self.options, cache, note)
            for graph in self.tested:
                self.graphs[graph] = row = GraphRow(graph)
                try:
                    self._try_graph(engines, row, begin)
                except LatentSyncError as error:
                    row.error = str(error)
                give_back_gpu_memory(selection)
            self._paint(engines, begin, note)
        except LatentSyncError as error:
            self.failures.append(str(error))
        begin("")

    def _try_graph(self, engines: SessionFactory, row: GraphRow, begin: Callable[[str], None]) -> None:
        """Builds the engine of a graph unless it is in the cache, opens and runs it."""
        begin(f"building and opening {row.graph}")
        opened = engines.open(row.graph)
        row.nodes, row.open_s = opened.session.nodes_by_provider(), opened.open_s
        if engines.compiled:
            row.built, row.build_s, row.engine_bytes = opened.built, opened.build_s, opened.size_bytes
        begin(f"running {row.graph}")
        with closing(opened.session) as session:
            run = BoundRun(session, engines.ranges, engines.selection)
            for _ in range(GPU_RUNS if engines.selection.gpu else CPU_RUNS):
                run()
            np.savez(self.folder / f"{row.graph}.npz", *run.outputs())
            row.first_ms, row.mean_ms = 1000 * session.clock.first_run_s, session.clock.mean_ms

    def _paint(self, engines: SessionFactory, begin: Callable[[str], None], note: Callable[[str], None]) -> None:
        """Paints windows into `PICTURES`: the generated part of the faces, uint16 `(n, h, w, 3)`."""
        manifest, options = engines.bundle.manifest, SyncOptions(preset="balanced", steps=self.steps)
        graphs = graphs_for(options)
        # A retry could take minutes and would fail again.
        missing = ", ".join(graph for graph in graphs if graph in self.graphs and self.graphs[graph].error)
        if missing:
            self.failures.append(f"not painted, as {missing} cannot be used")
            return
        begin("painting")
        named = replace(engines.selection, is_named=True)
        with closing(open_model(engines.bundle, named, engines.options, graphs, note)) as model:
            clip, count = choose_clip(None, None, self.folder.parent), self.windows * manifest.frames
            faces, audio = first_window(clip, count, model, manifest.resolution_px)
            inpainter = make_inpainter(model, options)
            painted = list[UInt16Array]()
            for start in range(0, count, manifest.frames):
                cut = slice(start, start + manifest.frames)
                painted += paint_window(inpainter, faces[cut], audio[cut])
            self.notices += model.notices
        rows, columns = generated_part(manifest.resolution_px)
        np.save(self.folder / PICTURES, np.stack([face[rows, columns] for face in painted]))

    def problems(self, provider: str, *, again: bool) -> Iterator[str]:
        """What failed on `provider`; `again`: at the second start, which must not build engines."""
        yield from self.failures
        for name, row in self.graphs.items():
            if row.error:
                yield row.error if name in row.error else f"{name}: {row.error}"
            elif PROVIDERS[provider].builds and [*row.nodes] != [PROVIDERS[provider].ort_name]:
                counts = ", ".join(f"{count} on {other}" for other, count in sorted(row.nodes.items()))
                yield f"{name}: {provider} was not assigned all of its nodes ({counts})"
            if again and row.built:
                why = "".join(f"; {text}" for text in self.log if name in text)
                yield f"{name}: its engine was not found in the cache, and was built again{why}"


@dataclass(frozen=True, slots=True)
class Pictures:
    """Windows of the second start against the reference's: PSNR over the generated part of the faces, None if equal."""

    psnr_db: float | None
    least_db: float


@dataclass(frozen=True, slots=True)
class Report:
    """The result, with all that a bug report needs.

    `requested`, `provider`: the provider asked for, and the one that ran (empty if none).
    `options`: flags given. `stages`: the failures of each stage; none means passed. `graphs`: those
    reached at the second start.
    """

    requested: str
    provider: str
    bundle: BundleFacts
    options: tuple[str, ...]
    reference: str
    stages: Mapping[str, tuple[str, ...]]
    graphs: tuple[GraphRow, ...]
    pictures: Pictures | None
    notices: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def passed(self) -> bool:
        return not any(self.stages.values())

    @property
    def result(self) -> TestResult:
        return "slower" if self.passed and self.is_slower else "passed" if self.passed else "failed"

    @property
    def is_slower(self) -> bool:
        """Whether denoising steps take longer than on the reference provider, if that is another one."""
        if self.reference == self.provider:  # with the portable variant of the graphs
            return False
        steps = [row for row in self.graphs if row.graph in STEP_GRAPHS and row.mean_ms and row.reference_ms]
        return sum(row.mean_ms or 0.0 for row in steps) > sum(row.reference_ms or 0.0 for row in steps)

    def to_json(self) -> str:
        return to_json("selftest", 8, {"passed": self.passed, **asdict(self)})


def self_test(
    bundle: Bundle, provider: str, options: RuntimeOptions, say: Callable[[str], None], tested_graphs: Sequence[str]
) -> Report:
    """Runs all parts; the report contains every failure of the provider.

    Args:
        say: called with a line about progress. tested_graphs: names of graphs.

    Raises:
        InputError: `options` name several GPUs.
    """
    device, given = options.one_device, [bundle.folder, *([Path(options.engine_cache)] if options.engine_cache else [])]
    hide, parts = partial(redacted, folders=given), dict[str, Part]()
    with temporary_folder() as folder:

        def run(name: str, provider: str, options: RuntimeOptions, graphs: Iterable[str]) -> Part:
            asked = Part(provider, bundle.folder, options, folder / name, tuple(graphs), WINDOWS, STEPS)
            parts[name] = run_part(asked, lambda text: say(f"{name}: {hide(text)}"))
            return parts[name]

        tested = replace(options, engine_cache=options.engine_cache or f"{folder / 'engines'}")
        first = run(_FIRST, provider, tested, tested_graphs)
        reference = reference_of(bundle.manifest, first.provider)
        usable = [graph for graph, row in first.graphs.items() if not row.error]
        if usable:
            run(_SECOND, first.provider, tested, usable)
        if usable and reference:
            # CUDA's own variant of the graphs is what auto would run instead of TensorRT, so that times compare.
            portable = reference == CUDA.name == first.provider
            variant: Literal["portable", "auto"] = "portable" if portable else "auto"
            other = RuntimeOptions(device=device, engine_cache=f"{folder / 'other engines'}", graph_variant=variant)
            run(_REFERENCE, reference, other, usable)
        graphs = tuple(_graphs(bundle.manifest, tested_graphs, parts, folder)) if first.provider else ()
        pictures = _pictures(folder, LEAST_DB[bundle.manifest.precision])
    stages = dict[str, tuple[str, ...]]()
    for name, part in parts.items():
        problems = [*part.problems(reference if name == _REFERENCE else first.provider, again=name == _SECOND)]
        if name == _REFERENCE:
            problems += _differences(graphs, pictures, reference)
        said = stages[_FIRST] if name == _SECOND else ()  # which it does not repeat
        stages[name] = tuple(text for text in dict.fromkeys(map(hide, problems)) if text not in said)
    for row in graphs:
        row.error = hide(row.error)
    notices = [hide(text) for name, part in parts.items() if name != _REFERENCE for text in part.notices]
    return Report(
        requested=provider,
        provider=first.provider,
        bundle=bundle_facts(bundle.manifest),
        options=tuple(command_line(options, leave_out=("engine_cache",))),
        reference=reference,
        stages=stages,
        graphs=graphs,
        pictures=pictures,
        notices=tuple(dict.fromkeys(notices)),
        environment={**environment((), ()), "os": platform.platform(), **first.environment},
    )


def reference_of(manifest: Manifest, provider: str) -> str:
    """Whose results are taken as correct: the CPU's for the built-in model, else those of CUDA's portable form, as
    the CPU takes hours with the published one; empty where there are none, or the CPU itself is tested."""
    if provider == CPU.name or (manifest.name != DEMO_NAME and diagnose_provider(CUDA) is not None):
        return ""
    return CPU.name if manifest.name == DEMO_NAME else CUDA.name


def carry_out(orders: Iterator[Part], emit: Emit) -> None:
    next(orders).carry_out(emit)


def run_part(part: Part, say: Callable[[str], None]) -> Part:
    """Carries out `part` in a child process, and returns what it found; `say` gets its current step."""

    def take(event: Event) -> None:
        nonlocal part
        before, part = part, event["part"]
        for text in filter(None, part.log[len(before.log) :] or [part.doing]):
            say(text)

    ended = run_child(carry_out, part, take)
    if part.doing:
        why = ended.last_error_line or "no message"
        part.failures.append(f"the process died with {ended} while {part.doing}: {why}")
    return part


def _graphs(manifest: Manifest, graphs: Sequence[str], parts: Mapping[str, Part], folder: Path) -> Iterator[GraphRow]:
    rows = {name: row for part in (_FIRST, _SECOND) if part in parts for name, row in parts[part].graphs.items()}
    for name in graphs:
        row = rows.get(name, GraphRow(name, error="not reached"))
        if _REFERENCE in parts and name in parts[_REFERENCE].graphs:
            row.reference_ms = parts[_REFERENCE].graphs[name].mean_ms
        ours, theirs = (folder / part / f"{name}.npz" for part in (_SECOND, _REFERENCE))
        if not row.error and ours.exists() and theirs.exists():
            with np.load(ours) as found, np.load(theirs) as expected:
                row.difference = difference(*([arrays[key] for key in expected.files] for arrays in (found, expected)))
                row.limit = provider_limit(manifest, name)
        yield row


def _pictures(folder: Path, least_db: float) -> Pictures | None:
    painted = [folder / name / PICTURES for name in (_SECOND, _REFERENCE)]
    if not all(path.exists() for path in painted):
        return None
    a, b = (np.load(path).astype(np.float64) for path in painted)
    return Pictures(decibels(_PEAK**2, float(np.mean((a - b) ** 2))), least_db)


def _differences(graphs: Iterable[GraphRow], pictures: Pictures | None, reference: str) -> Iterator[str]:
    for row in graphs:
        if row.difference == np.inf:
            yield f"{row.graph}: its outputs, or those of {reference}, are not finite numbers"
        elif row.difference is not None and row.limit is not None and row.difference > row.limit:
            yield (
                f"{row.graph}: its values differ from those of {reference} by {row.difference:.1e} of the largest, at "
                f"most {row.limit:.1e} is allowed; report it with `latentsync-trt selftest --json`"
            )
    if pictures is not None and pictures.psnr_db is not None and pictures.psnr_db < pictures.least_db:
        distance = f"{pictures.psnr_db:.1f} dB to those of {reference}, at least {pictures.least_db:.0f} are expected"
        yield f"pictures: {distance}"
