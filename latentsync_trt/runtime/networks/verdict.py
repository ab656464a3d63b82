"""Whether `--provider auto` uses a provider that builds engines, by its values and its time.

<engine cache>/.verdicts/<digest>.json      one bundle on one GPU, with all versions on which it depends
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from latentsync_trt.bundle.manifest import STEP_GRAPHS, Manifest
from latentsync_trt.errors import (
    EngineBuildError,
    GraphRefused,
    InputError,
    OutOfMemory,
    ProviderUnavailable,
)
from latentsync_trt.files import whole_file
from latentsync_trt.runtime.cache import Notice
from latentsync_trt.runtime.entries import DIGEST_LENGTH
from latentsync_trt.runtime.providers.select import Selection, next_provider
from latentsync_trt.runtime.sessions.engines import Engines
from latentsync_trt.runtime.sessions.session import Array
from latentsync_trt.runtime.sessions.trial import difference, provider_limit, run_and_close
from latentsync_trt.validation import from_json

FOLDER = ".verdicts"

_RUNS = 6
"""Of a step: enough for clocks to rise."""


@dataclass(frozen=True, slots=True)
class GraphResult:
    """One graph on the same random inputs.

    `difference`: to the outputs of the reference, relative to their largest value. `ms`,
    `reference_ms`: mean duration of a denoising step; 0 for other graphs.
    """

    difference: float
    ms: float
    reference_ms: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of `provider`, for one bundle on one GPU.

    `problem`: why `auto` does not use it; empty if it does, as far as was measured. `reference`: the provider that it
    was compared with. `results`: by graph.
    """

    provider: str
    bundle: str
    gpu: str
    problem: str = ""
    reference: str = ""
    results: Mapping[str, GraphResult] = field(default_factory=dict)

    @property
    def step_ms(self) -> tuple[float, float]:
        """Mean duration of denoising steps on the provider and on the reference; 0 if there are none."""
        steps = [result for graph, result in self.results.items() if graph in STEP_GRAPHS]
        count = max(len(steps), 1)
        return sum(step.ms for step in steps) / count, sum(step.reference_ms for step in steps) / count

    def __str__(self) -> str:
        ours, theirs = self.step_ms
        worst = max((result.difference for result in self.results.values()), default=0.0)
        measured = (
            f"a step takes {ours:.1f} ms, with {self.reference} {theirs:.1f} ms; values differ by {worst:.1e} at most"
        )
        return f"{self.provider}, {self.bundle} on {self.gpu}: {self.problem or measured}"


class Judge:
    """Measures providers that build engines for `auto`, once for each GPU, bundle and version.

    Args:
        engines_of: engines of another provider. again: measure, although an earlier run did.
            notice: gets a sentence with the numbers.
    """

    def __init__(self, engines_of: Callable[[Selection], Engines], notice: Notice, *, again: bool) -> None:
        self._engines_of, self._notice, self._again = engines_of, notice, again
        self._known: dict[str, Verdict] = {}

    def problem(self, engines: Engines) -> str:
        """Why the provider of `engines` should not be used; empty if none is known."""
        problem = self._verdict(engines).problem if engines.compiled else ""
        return f"{problem} (found before; latentsync-trt setup tries again)" if problem else ""

    def examine(self, engines: Engines, graphs: tuple[str, ...], build: Callable[[tuple[str, ...]], None]) -> None:
        """Builds engines by `build`, and compares those of `graphs` that were not compared yet.

        Raises:
            GraphRefused: the compiler does not accept a graph; the next run will know.
            EngineBuildError: an engine does not run, has wrong values, or is slower.
        """
        try:
            build(graphs)
        except GraphRefused as error:
            self._keep(engines, replace(self._verdict(engines), problem=str(error)))
            raise
        self._compare(engines, graphs)

    def _compare(self, engines: Engines, graphs: Iterable[str]) -> None:
        known = self._verdict(engines)
        new = [graph for graph in graphs if graph not in known.results]
        try:
            other = self._engines_of(next_provider(engines.selection)) if new else None
            if other is None or other.selection.gpu is None:  # the CPU would take minutes
                return
            verdict = _measured(known, engines, other, new)
        except (OutOfMemory, ProviderUnavailable, InputError) as error:
            self._notice(f"{engines.selection.name} was not compared with another provider: {error}")
            return
        self._keep(engines, verdict)
        self._notice(f"compared once: {verdict}")
        if verdict.problem:
            raise EngineBuildError(verdict.problem)

    def _verdict(self, engines: Engines) -> Verdict:
        name = engines.selection.name
        if name not in self._known:
            earlier = None if self._again else _read(_path(engines))
            self._known[name] = earlier or Verdict(name, engines.bundle.manifest.name, str(engines.selection.gpu))
        return self._known[name]

    def _keep(self, engines: Engines, verdict: Verdict) -> None:
        """For later runs, too; where the cache cannot be written, they measure again."""
        self._known[verdict.provider] = verdict
        path = _path(engines)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as part:
                part.write_text(json.dumps(asdict(verdict), indent=1), encoding="utf-8")


def kept(cache: Path) -> list[Verdict]:
    return [verdict for path in sorted((cache / FOLDER).glob("*.json")) if (verdict := _read(path))]


def _read(path: Path) -> Verdict | None:
    with suppress(OSError, ValueError):
        return from_json(Verdict, path.read_bytes(), path)
    return None


def _measured(known: Verdict, engines: Engines, reference: Engines, graphs: Iterable[str]) -> Verdict:
    """Returns `known` with results of `graphs`; raises also where the reference fails."""
    manifest, results = engines.bundle.manifest, dict(known.results)
    for graph in graphs:
        ours, ms = _run(engines, graph)
        try:
            theirs, reference_ms = _run(reference, graph)
        except EngineBuildError as error:
            raise ProviderUnavailable(f"{reference.selection.name}: {error}") from error
        results[graph] = GraphResult(difference(ours, theirs), round(ms, 3), round(reference_ms, 3))
    made = replace(known, reference=reference.selection.name, results=results)
    return replace(made, problem=_problem(made, manifest))


def values_problem(manifest: Manifest, graph: str, apart: float, reference: str) -> str:
    """What is wrong with a graph's values, with the cure; empty if nothing."""
    limit = provider_limit(manifest, graph)
    if apart <= limit:
        return ""
    cure = "report it with `latentsync-trt selftest --json`"
    if manifest.attention == "fused" and manifest.arithmetic == "fp16":
        cure = "export the model with --attention matmul, which computes the softmax in float32"
    return (
        f"{graph}: its values differ from those of {reference} by {apart:.1e} of the largest, at most {limit:.1e} is "
        f"allowed; {cure}"
    )


def _problem(verdict: Verdict, manifest: Manifest) -> str:
    for graph, result in verdict.results.items():
        if problem := values_problem(manifest, graph, result.difference, verdict.reference):
            return problem
    ours, theirs = verdict.step_ms
    return f"a step takes {ours:.1f} ms, with {verdict.reference} {theirs:.1f} ms" if ours > theirs else ""


def _run(engines: Engines, graph: str) -> tuple[tuple[Array, ...], float]:
    # Without CUDA graphs, whose replays are compared elsewhere.
    session, step = engines.without_cuda_graph().open(graph).session, graph in STEP_GRAPHS
    outputs = run_and_close(session, engines.ranges, engines.selection, runs=_RUNS if step else 1)
    return outputs, session.clock.mean_ms if step else 0.0


def _path(engines: Engines) -> Path:
    fact = engines.fact(*engines.bundle.manifest.graphs)
    digest = sha256(json.dumps(fact, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
    return engines.cache.folder / FOLDER / f"{digest}.json"
