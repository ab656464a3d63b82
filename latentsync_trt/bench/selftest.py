"""Checks whether a provider works completely on this machine. Each part runs in a child process,
which may crash.

1. first start: every graph is built into an empty engine cache, opened and run, and windows are
painted 2. second start: the same from that cache, which must build nothing 3. reference: the same
on another provider, to compare outputs and pictures with
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from latentsync_trt.audio.encoder import encode_audio
from latentsync_trt.audio.mel import filters_of
from latentsync_trt.bench.rows import bundle_facts, environment, to_json
from latentsync_trt.bundle.manifest import DEMO_NAME, STEP_GRAPHS, Bundle, Manifest
from latentsync_trt.child import ChildLost, run_child
from latentsync_trt.child_main import OnProgress
from latentsync_trt.config import RuntimeOptions, SyncOptions
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.pictures import decibels, generated_part
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.demo_clip import SPEECH, portrait
from latentsync_trt.option_fields import command_line
from latentsync_trt.runtime.engines.buffers import give_back_gpu_memory
from latentsync_trt.runtime.engines.cache import EngineCache, cache_folder
from latentsync_trt.runtime.engines.output_comparison import BoundRun, difference, provider_limit
from latentsync_trt.runtime.engines.session_factory import SessionFactory
from latentsync_trt.runtime.model import open_model
from latentsync_trt.runtime.providers.choice import select_provider
from latentsync_trt.runtime.providers.diagnosis import diagnose_provider
from latentsync_trt.runtime.providers.remembered_tests import TestResult
from latentsync_trt.runtime.providers.table import CPU, CUDA, PROVIDERS
from latentsync_trt.sync.inpainter import make_inpainter, paint_window
from latentsync_trt.sync.model_slot import graphs_for
from latentsync_trt.types import UInt16Array
from latentsync_trt.unexpected import redacted

LEAST_DB: Mapping[str, float] = {"fp32": 60.0, "fp16": 45.0, "int8": 35.0, "fp8": 35.0}
"""Least PSNR to the reference's pictures by the bundle's precision. Weights of 10 bits of mantissa
gave 73 dB and of 7 bits 56 in float32; in float16, 8 bits gave 62 and 3 bits 41.
"""

GPU_RUNS = 20
CPU_RUNS = 3
"""Runs per graph: on a GPU enough for clocks to rise and a CUDA graph to be replayed, which a CPU
does not need.
"""

PICTURES = "pictures.npy"
_FIRST = "first start"
_SECOND = "second start"
_REFERENCE = "reference"

Say = Callable[[str], None]
Carry = Callable[["Part", Say], "Part"]


@dataclass(slots=True)
class GraphRow:
    """One graph at one start; None if unknown.

    `nodes`: number assigned to each provider; a compiled part is one. `built`: at this start;
    `build_s`: now or earlier; `engine_bytes`: in the cache. `first_ms`: the first run; `mean_ms`:
    the others. `difference`: see the function. `reference_ms`: `mean_ms` there.
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
    reference_ms: float | None = None


@dataclass(slots=True)
class Part:
    """What one child process is asked for, and what it has found so far.

    It opens and runs the graphs `tested`, paints in so many `steps` if all work, and leaves outputs
    and pictures in `folder`. `provider`: the active one, empty if none loaded. `graphs`: those
    reached. `failures`: those of no single graph. `log`: messages about engines. `doing`: the
    current step, empty at the end.
    """

    requested: str
    bundle: Path
    options: RuntimeOptions
    folder: Path
    tested: tuple[str, ...]
    steps: int = 6
    provider: str = ""
    graphs: dict[str, GraphRow] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    doing: str = "starting"

    def problems(self) -> Iterator[str]:
        """What failed; the second start must not build engines."""
        yield from self.failures
        for name, row in self.graphs.items():
            if row.error:
                yield row.error if name in row.error else f"{name}: {row.error}"
            elif PROVIDERS[self.provider].builds and [*row.nodes] != [
                PROVIDERS[self.provider].ort_name
            ]:
                yield (
                    f"{name}: {self.provider} was not assigned all of its nodes ({dict(row.nodes)})"
                )
            if row.built and self.folder.name == _SECOND:
                why = "".join(f"; {text}" for text in self.log if name in text)
                yield f"{name}: its engine was not found in the cache, and was built again{why}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result, with all that a bug report needs.

    `requested`, `provider`: the provider asked for, and the one that ran (empty if none).
    `options`: flags given. `stages`: the failures of each. `graphs`: at the last start that reached
    them. `pictures`: how near the reference's.
    """

    requested: str
    provider: str
    bundle: Mapping[str, Any]
    options: tuple[str, ...]
    reference: str
    stages: Mapping[str, tuple[str, ...]]
    graphs: tuple[GraphRow, ...]
    pictures: str
    notices: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def passed(self) -> bool:
        return not any(self.stages.values())

    @property
    def result(self) -> TestResult:
        """Slower: denoising steps take longer than on the reference provider, if that is another
        one.
        """
        # with the portable variant of the graphs
        if not self.passed or self.reference == self.provider:
            if self.passed:
                return "passed"
            return "failed"
        steps = [row for row in self.graphs if row.graph in STEP_GRAPHS]
        longer_ms = sum(
            row.mean_ms - row.reference_ms for row in steps if row.mean_ms and row.reference_ms
        )
        if longer_ms > 0:
            return "slower"
        return "passed"

    def to_json(self) -> str:
        return to_json("selftest", 9, {"passed": self.passed, **asdict(self)})


def try_part(part: Part, on_progress: OnProgress) -> Part:
    """Does what `part` asks for, in a child; reports it at each step, so that a crash loses no
    earlier results.
    """

    def begin(doing: str) -> None:
        part.doing = doing
        on_progress(part)

    begin(f"loading provider {part.requested}")
    try:
        selection = select_provider(part.requested, part.options.one_device)
        part.provider = selection.name
        part.notices = selection.notices()
        part.folder.mkdir()
        folder = cache_folder(part.options.engine_cache, used=selection.provider.builds)
        cache = EngineCache(folder, part.log.append)
        bundle = Bundle.load(part.bundle, verify=False)
        engines = SessionFactory(bundle, selection, part.options, cache)
        for graph in part.tested:
            part.graphs[graph] = row = GraphRow(graph)
            try:
                _try_graph(part, engines, row, begin)
            except LatentSyncError as error:
                row.error = str(error)
            give_back_gpu_memory(selection)
        if not any(row.error for row in part.graphs.values()):
            begin("painting")
            _paint(part, engines)
    except LatentSyncError as error:
        part.failures.append(str(error))
    part.doing = ""
    return part


def _try_graph(part: Part, engines: SessionFactory, row: GraphRow, begin: Say) -> None:
    """Builds the engine of a graph unless it is in the cache, opens and runs it."""
    begin(f"building and opening {row.graph}")
    opened = engines.open(row.graph)
    row.nodes = opened.session.nodes_by_provider()
    row.open_s = opened.costs.open_s
    if engines.compiled:
        row.built = opened.costs.built
        row.build_s = opened.costs.build_s
        row.engine_bytes = opened.size_bytes
    begin(f"running {row.graph}")
    with closing(opened.session) as session:
        run = BoundRun(session, engines.ranges, engines.selection)
        for _ in range(GPU_RUNS if engines.selection.gpu else CPU_RUNS):
            run()
        np.savez(part.folder / f"{row.graph}.npz", *run.outputs())
        row.first_ms = 1000 * session.clock.first_run_s
        row.mean_ms = session.clock.mean_ms


def _paint(part: Part, engines: SessionFactory) -> None:
    """Paints windows into `PICTURES`: the generated part of the faces, uint16 `(n, h, w, 3)`."""
    manifest = engines.bundle.manifest
    options = SyncOptions(preset="balanced", steps=part.steps)
    side_px = manifest.resolution_px
    frames = manifest.frames
    # As an aligned face is cut out.
    face = np.asarray(cv2.resize(portrait()[60:220, 150:310], (side_px, side_px)), np.uint8)
    faces = np.stack([face] * frames)
    painted = list[UInt16Array]()
    selection = replace(engines.selection, is_named=True)
    with closing(
        open_model(engines.bundle, selection, engines.options, graphs_for(options), part.log.append)
    ) as model:
        audio = encode_audio(
            partial(read_audio_blocks, SPEECH), model.audio_encoder, filters_of(model.bundle)
        ).windows
        inpainter = make_inpainter(model, options)
        for start in (0, frames):  # the second window reuses buffers that the first has filled
            painted += paint_window(inpainter, faces, audio[start : start + frames])
        part.notices += model.notices
    np.save(part.folder / PICTURES, np.stack(painted)[:, *generated_part(side_px)])


def run_part(part: Part, say: Say) -> Part:
    """Carries out `part` in a child process, and returns what it found; `say` gets its current
    step.
    """

    def take(reached: Part) -> None:
        nonlocal part
        part = reached
        say(part.doing)

    try:
        part = run_child(try_part, part, take)
    except ChildLost as lost:
        line = lost.ended.last_error_line or "–"
        part.failures.append(f"the process died with {lost.ended} while {part.doing}: {line}")
    return part


def self_test(
    bundle: Bundle,
    provider: str,
    options: RuntimeOptions,
    say: Say,
    tested: Sequence[str],
    carry: Carry = run_part,
) -> Report:
    """Tests the graphs `tested` and painting, each part by `carry`; `say` is called with lines
    about progress. Raises `InputError` if `options` name several GPUs.
    """
    device = options.one_device
    given = [Path(each) for each in (bundle.folder, options.engine_cache) if each]
    hide = partial(redacted, folders=given)
    parts = dict[str, Part]()
    with temporary_folder() as folder:

        def run(name: str, provider: str, options: RuntimeOptions, graphs: Iterable[str]) -> Part:
            asked = Part(provider, bundle.folder, options, folder / name, tuple(graphs))
            return parts.setdefault(name, carry(asked, lambda text: say(f"{name}: {text}")))

        cached = replace(options, engine_cache=options.engine_cache or f"{folder / 'engines'}")
        first = run(_FIRST, provider, cached, tested)
        rows = {graph: GraphRow(graph, error="not reached") for graph in tested} | first.graphs
        reference = reference_of(bundle.manifest, first.provider)
        pictures = ""
        usable = [graph for graph, row in first.graphs.items() if not row.error]
        if usable:
            rows |= run(_SECOND, first.provider, cached, usable).graphs
        if usable and reference:
            # CUDA's own variant of the graphs is what auto would run instead of TensorRT, so that
            # times compare.
            portable = reference == CUDA.name == first.provider
            own = RuntimeOptions(device=device, engine_cache=f"{folder / 'other engines'}")
            own = replace(own, graph_variant="portable" if portable else "auto")
            pictures = _compare(bundle.manifest, rows, run(_REFERENCE, reference, own, usable))
    return Report(
        requested=provider,
        provider=first.provider,
        bundle=bundle_facts(bundle.manifest),
        options=tuple(command_line(options, leave_out=("engine_cache",))),
        reference=reference,
        stages={
            name: tuple(dict.fromkeys(map(hide, part.problems()))) for name, part in parts.items()
        },
        graphs=tuple(
            replace(row, error=hide(row.error)) for row in rows.values() if first.provider
        ),
        pictures=pictures,
        notices=tuple(
            dict.fromkeys(hide(text) for part in parts.values() for text in part.notices)
        ),
        environment=environment((), (), device),
    )


def reference_of(manifest: Manifest, provider: str) -> str:
    """Whose results are taken as correct: the CPU's for the built-in model, else those of CUDA's
    portable form, as the CPU takes hours with the published one; empty where there are none, or the
    CPU itself is tested.
    """
    if provider == CPU.name or (manifest.name != DEMO_NAME and diagnose_provider(CUDA) is not None):
        return ""
    if manifest.name == DEMO_NAME:
        return CPU.name
    return CUDA.name


def _compare(manifest: Manifest, rows: Mapping[str, GraphRow], other: Part) -> str:
    """Adds to the rows how far they are from the reference `other`, to whose failures it adds what
    is too far; returns the PSNR of the second start's pictures to the reference's, in words.
    """
    ours = other.folder.with_name(_SECOND)
    least_db = LEAST_DB[manifest.precision]
    for name, theirs in other.graphs.items():
        row = rows[name]
        file = f"{name}.npz"
        row.reference_ms = theirs.mean_ms
        if row.error or not (ours / file).exists() or not (other.folder / file).exists():
            continue
        with np.load(ours / file) as found, np.load(other.folder / file) as expected:
            row.difference = difference(
                *([arrays[key] for key in expected.files] for arrays in (found, expected))
            )
        limit = provider_limit(manifest, name)
        if row.difference > limit:
            far = (
                f"by {row.difference:.1e} of the largest (inf: "
                f"NaN or infinity), at most {limit:.1e} is allowed"
            )
            other.failures.append(f"{name}: its values differ from those of {other.provider} {far}")
    files = ours / PICTURES, other.folder / PICTURES
    if not all(file.exists() for file in files):
        return ""
    a, b = (np.load(file) / np.float64(257) for file in files)
    psnr_db = decibels(float(np.mean((a - b) ** 2)))
    shown = "equal" if psnr_db is None else f"{psnr_db:.1f} dB"
    text = f"{shown} beside {other.provider} (at least {least_db:.0f} dB)"
    if psnr_db is not None and psnr_db < least_db:
        other.failures.append(f"pictures: {text}")
    return text
