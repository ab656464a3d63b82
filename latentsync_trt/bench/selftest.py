"""Checks whether a provider works completely on this machine. Each part runs in a child process, which may crash.

1. first start: every graph is built into an empty engine cache, opened and run, and windows are
painted 2. second start: the same from that cache, which must build nothing 3. reference: the same
on another provider, the CPU by default, to compare outputs and pictures with
"""

import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from latentsync_trt.bench.rows import BundleFacts, bundle_facts, environment
from latentsync_trt.bench.selftest_worker import PICTURES, Order
from latentsync_trt.bundle.manifest import Bundle, Manifest
from latentsync_trt.child import Event, run_child
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.measure.pictures import decibels
from latentsync_trt.option_fields import command_line
from latentsync_trt.privacy import redacted
from latentsync_trt.runtime.networks.verdict import values_problem
from latentsync_trt.runtime.providers.table import CUDA, PROVIDERS
from latentsync_trt.runtime.sessions.trial import difference, provider_limit

Reference = Literal["cpu", "cuda", "none"]

LEAST_DB: Mapping[str, float] = {"fp32": 60.0, "fp16": 45.0, "int8": 35.0, "fp8": 35.0}
"""Least PSNR to the reference's pictures by the bundle's precision; docs/selftest.md has measurements."""

REPLAY_NOTICE = "CUDA graphs:"
"""Start of the notice from `runtime.networks` that a provider's replays differ."""

STEPS = 6
"""Denoising steps of a window, by preset `balanced`, which computes two of them in full."""

WINDOWS = 2
"""Two, because the second reuses buffers that the first has filled."""

_WORKER = "latentsync_trt.bench.selftest_worker"
_FIRST, _SECOND, _REFERENCE = "first start", "second start", "reference"
# Largest level of a 16-bit picture.
_PEAK = 65535.0


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One graph at one start; None if unknown.

    `nodes`: number of nodes assigned to each provider in the graph that ONNX Runtime runs; a
    compiled part is one node. `built`: whether its engine was built at this start; `build_s`:
    duration of the build, now or earlier; `engine_bytes`: size in the cache. `first_ms`: the first
    run on device inputs; `mean_ms`: the mean of the others. `difference`: the largest to the
    reference's outputs, divided by their largest value; right up to `limit`.
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


@dataclass(slots=True)
class Part:
    """What one child process has reported so far; see `selftest_worker.carry_out`.

    `provider`: the active one, empty if none loaded. `graphs`: fields of `GraphRow`. `painted_on`:
    providers. `failures`: those that belong to no single graph, including a crash. `log`: messages
    about engines. `doing`: the current step.
    """

    environment: dict[str, str] = field(default_factory=dict)
    provider: str = ""
    graphs: dict[str, dict[str, Any]] = field(default_factory=dict)
    painted_on: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    doing: str = "starting"
    done: bool = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event: lists and dicts grow, everything else is replaced."""
        for name, value in event.items():
            known = getattr(self, name)
            if isinstance(known, dict):
                known.update(value)
            elif isinstance(known, list):
                known.extend(value)
            else:
                setattr(self, name, value)

    def rows(self) -> dict[str, GraphRow]:
        """The graphs that the process reached."""
        return {name: GraphRow(name, **fields) for name, fields in self.graphs.items()}


@dataclass(frozen=True, slots=True)
class Pictures:
    """Painted windows of a start against the reference's: PSNR over the generated part of the faces, None if equal."""

    case: str
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
    pictures: tuple[Pictures, ...]
    notices: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether there are no failures."""
        return not any(self.stages.values())

    def to_json(self) -> str:
        """One JSON object."""
        content = {"kind": "latentsync-trt selftest", "format": 5, "passed": self.passed, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False)


def self_test(
    bundle: Bundle,
    provider: str,
    options: RuntimeOptions,
    reference: Reference,
    say: Callable[[str], None],
    tested_graphs: Sequence[str],
) -> Report:
    """Runs all parts; the report contains every failure of the provider.

    Args:
        reference: the provider whose results are taken as correct; with "cuda", those of its
        portable form. say: called with a line about progress. tested_graphs: names of graphs.

    Raises:
        InputError: `options` name several GPUs.
    """
    device = options.one_device
    given = [bundle.folder, *([Path(options.engine_cache)] if options.engine_cache else [])]
    with temporary_folder() as folder:

        def run(part: str, provider: str, options: RuntimeOptions, graphs: Iterable[str]) -> Part:
            fields = str(bundle.folder), asdict(options), str(folder / part), tuple(graphs)
            order = Order(provider, *fields, windows=WINDOWS, steps=STEPS)
            return run_part(order, lambda text: say(f"{part}: {redacted(text, given)}"))

        tested = replace(options, engine_cache=options.engine_cache or f"{folder / 'engines'}")
        parts = {_FIRST: run(_FIRST, provider, tested, tested_graphs)}
        first = parts[_FIRST]
        usable = [graph for graph, row in first.rows().items() if not row.error]
        if usable:
            parts[_SECOND] = run(_SECOND, first.provider, tested, usable)
        if usable and reference != "none":
            other = RuntimeOptions(
                device=device,
                engine_cache=f"{folder / 'other engines'}",
                graph_form="portable" if reference == CUDA.name else "auto",
            )
            parts[_REFERENCE] = run(_REFERENCE, reference, other, usable)
        graphs = tuple(_graphs(bundle.manifest, tested_graphs, parts, folder)) if first.provider else ()
        pictures = tuple(_pictures(folder, LEAST_DB[bundle.manifest.precision]))
    differences = _differences(bundle.manifest, graphs, pictures, reference)
    notices = [text for name, part in parts.items() if name != _REFERENCE for text in part.notices]
    return Report(
        requested=provider,
        provider=first.provider,
        bundle=bundle_facts(bundle.manifest),
        options=tuple(command_line(options, leave_out=("engine_cache",))),
        reference=reference,
        stages=_stages(parts, reference, differences, given),
        graphs=tuple(
            replace(row, error=redacted(row.error, given), difference=_finite(row.difference)) for row in graphs
        ),
        pictures=pictures,
        notices=tuple(dict.fromkeys(redacted(text, given) for text in notices)),
        environment={**environment((), ()), "os": platform.platform(), **first.environment},
    )


def _stages(
    parts: Mapping[str, Part], reference: Reference, differences: Iterable[str], given: Sequence[Path]
) -> dict[str, tuple[str, ...]]:
    """What failed in each part, without paths `given` by the user; the second start repeats nothing of the first."""
    stages: dict[str, tuple[str, ...]] = {}
    for name, part in parts.items():
        found = list(
            _failures(part, reference if name == _REFERENCE else parts[_FIRST].provider, again=name == _SECOND)
        )
        if name == _REFERENCE:
            found += differences
        texts = (redacted(text, given) for text in found)
        stages[name] = tuple(text for text in dict.fromkeys(texts) if name != _SECOND or text not in stages[_FIRST])
    return stages


def _finite(value: float | None) -> float | None:
    return None if value == np.inf else value  # JSON has no infinity, and the failures report it


def run_part(order: Order, say: Callable[[str], None]) -> Part:
    """Runs `order` in a child process; `say` gets its current step."""
    part = Part()

    def take(event: Event) -> None:
        part.add(event)
        for text in [event["doing"]] if "doing" in event else event.get("log", ()):
            say(text)

    ended = run_child(_WORKER, asdict(order), take)
    if not part.done:
        why = ended.last_error_line or "no message"
        part.failures.append(f"the process died with {ended} while {part.doing}: {why}")
    return part


def _graphs(manifest: Manifest, graphs: Sequence[str], parts: Mapping[str, Part], folder: Path) -> Iterator[GraphRow]:
    """All tested graphs, with the differences between the outputs of the second start and the reference's."""
    rows = {name: row for part in (_FIRST, _SECOND) if part in parts for name, row in parts[part].rows().items()}
    for name in graphs:
        row = rows.get(name, GraphRow(name, error="not reached"))
        ours, theirs = (folder / part / f"{name}.npz" for part in (_SECOND, _REFERENCE))
        if not row.error and ours.exists() and theirs.exists():
            with np.load(ours) as found, np.load(theirs) as expected:
                apart = difference(*([arrays[key] for key in expected.files] for arrays in (found, expected)))
                row = replace(row, difference=apart, limit=provider_limit(manifest, name))
        yield row


def _pictures(folder: Path, least_db: float) -> Iterator[Pictures]:
    """Compares each start's pictures with the reference's; yields nothing without a reference."""
    for start in (_FIRST, _SECOND):
        painted = [folder / name / PICTURES for name in (start, _REFERENCE)]
        if all(path.exists() for path in painted):
            a, b = (np.load(path).astype(np.float64) for path in painted)
            yield Pictures(start, decibels(_PEAK**2, float(np.mean((a - b) ** 2))), least_db)


def _failures(part: Part, provider: str, *, again: bool = False) -> Iterator[str]:
    """What failed at a start; `again`: the second start, which must not build engines."""
    yield from part.failures
    for name, row in part.rows().items():
        if row.error:
            yield row.error if name in row.error else f"{name}: {row.error}"
        elif PROVIDERS[provider].builds and row.nodes.get(PROVIDERS[provider].ort_name, 0) != sum(row.nodes.values()):
            counts = ", ".join(f"{count} on {other}" for other, count in sorted(row.nodes.items()))
            yield f"{name}: {provider} was not assigned all of its nodes ({counts})"
        if again and row.built:
            why = "".join(f"; {text}" for text in part.log if name in text)
            yield f"{name}: its engine was not found in the cache, and was built again{why}"
    if part.painted_on not in ([], [provider]):
        yield f"painted on {', '.join(part.painted_on)} instead of {provider} alone"
    yield from (text for text in part.notices if text.startswith(REPLAY_NOTICE))


def _differences(
    manifest: Manifest, graphs: Iterable[GraphRow], pictures: Iterable[Pictures], reference: str
) -> Iterator[str]:
    for row in graphs:
        if row.difference == np.inf:
            yield f"{row.graph}: its outputs, or those of {reference}, are not finite numbers"
        elif row.difference is not None:
            yield from filter(None, [values_problem(manifest, row.graph, row.difference, reference)])
    for found in pictures:
        if found.psnr_db is not None and found.psnr_db < found.least_db:
            distance = f"{found.psnr_db:.1f} dB to those of {reference}, at least {found.least_db:.0f} are expected"
            yield f"pictures, {found.case}: {distance}"
