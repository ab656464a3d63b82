"""Whether `--provider auto` uses a provider that builds engines, by its values and its time.

<engine cache>/.verdicts/<digest>.json      one bundle on one GPU, with all versions on which it depends
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
class Verdict:
    """What is known of `provider`, for one bundle on one GPU.

    `problem`: why `auto` does not use it; empty if it does, as far as was measured. `graphs`: those whose values were
    compared with the provider `reference`; `difference`: the largest, relative to an output's largest value. `step_ms`,
    `reference_ms`: mean duration of a denoising step on both.
    """

    provider: str
    bundle: str
    gpu: str
    problem: str = ""
    reference: str = ""
    graphs: tuple[str, ...] = ()
    difference: float = 0.0
    step_ms: float = 0.0
    reference_ms: float = 0.0

    @property
    def times(self) -> str:
        return f"a step takes {self.step_ms:.1f} ms, with {self.reference} {self.reference_ms:.1f} ms"

    def __str__(self) -> str:
        measured = f"{self.times}; values differ by {self.difference:.1e} at most"
        return f"{self.provider}, {self.bundle} on {self.gpu}: {self.problem or measured}"


class Judge:
    """Measures providers that build engines for `auto`, once for each GPU, bundle and version.

    Args:
        engines_of: engines of another provider. again: measure, although an earlier run did.
            notice: gets a sentence with the numbers.
    """

    def __init__(self, engines_of: Callable[[Selection], Engines], notice: Notice, *, again: bool) -> None:
        self._engines_of, self._notice, self._again = engines_of, notice, again
        self._known: Verdict | None = None

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
        wanted = dict.fromkeys((*known.graphs, *graphs))
        try:
            other = self._engines_of(next_provider(engines.selection)) if len(wanted) > len(known.graphs) else None
            if other is None or other.selection.gpu is None:  # the CPU would take minutes
                return
            verdict = _measured(known, engines, other, tuple(wanted))
        except (OutOfMemory, ProviderUnavailable, InputError) as error:
            self._notice(f"{engines.selection.name} was not compared with another provider: {error}")
            return
        self._keep(engines, verdict)
        self._notice(f"compared once: {verdict}")
        if verdict.problem:
            raise EngineBuildError(verdict.problem)

    def _verdict(self, engines: Engines) -> Verdict:
        if self._known is None:
            earlier = None if self._again else _read(_path(engines))
            new = Verdict(engines.selection.name, engines.bundle.manifest.name, str(engines.selection.gpu))
            self._known = earlier or new
        return self._known

    def _keep(self, engines: Engines, verdict: Verdict) -> None:
        """For later runs, too; where the cache cannot be written, they measure again."""
        self._known = verdict
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


def _measured(known: Verdict, engines: Engines, reference: Engines, graphs: tuple[str, ...]) -> Verdict:
    """Returns `known` with what was found of `graphs`; raises also where the reference fails."""
    manifest, name, problem, largest = engines.bundle.manifest, reference.selection.name, "", 0.0
    times_ms = [(0.0, 0.0)]
    for graph in graphs:
        ours, ms = _run(engines, graph)
        try:
            theirs, reference_ms = _run(reference, graph)
        except EngineBuildError as error:
            raise ProviderUnavailable(f"{name}: {error}") from error
        apart = difference(ours, theirs)
        largest, problem = max(largest, apart), problem or values_problem(manifest, graph, apart, name)
        times_ms += [(ms, reference_ms)] if graph in STEP_GRAPHS else []
    steps = max(len(times_ms) - 1, 1)
    step_ms, reference_ms = (round(sum(each_ms) / steps, 3) for each_ms in zip(*times_ms, strict=True))
    made = replace(known, reference=name, graphs=graphs, difference=largest, step_ms=step_ms, reference_ms=reference_ms)
    return replace(made, problem=problem or (made.times if step_ms > reference_ms else ""))


def values_problem(manifest: Manifest, graph: str, apart: float, reference: str) -> str:
    """What is wrong with a graph's values, with the cure; empty if nothing."""
    limit = provider_limit(manifest, graph)
    if apart <= limit:
        return ""
    return (
        f"{graph}: its values differ from those of {reference} by {apart:.1e} of the largest, at most {limit:.1e} is "
        "allowed; report it with `latentsync-trt selftest --json`"
    )


def _run(engines: Engines, graph: str) -> tuple[tuple[Array, ...], float]:
    # Without CUDA graphs, whose replays are compared elsewhere.
    session, step = engines.without_cuda_graph().open(graph).session, graph in STEP_GRAPHS
    outputs = run_and_close(session, engines.ranges, engines.selection, runs=_RUNS if step else 1)
    return outputs, session.clock.mean_ms


def _path(engines: Engines) -> Path:
    fact = engines.fact(*engines.bundle.manifest.graphs)
    digest = sha256(json.dumps(fact, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
    return engines.cache.folder / FOLDER / f"{digest}.json"
