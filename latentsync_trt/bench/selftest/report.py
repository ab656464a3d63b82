"""Results of the self-test, and the verdict. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from latentsync_trt.bench.rows import BundleFacts, Memory
from latentsync_trt.runtime.providers.diagnose import ORT_NAMES
from latentsync_trt.runtime.sessions.engines import COMPILING_PROVIDERS

KIND = "latentsync-trt selftest"
FORMAT = 2

LEAST_DB: Mapping[str, float] = {"fp32": 60.0, "fp16": 45.0, "int8": 35.0, "fp8": 35.0}
"""Least PSNR to the reference's pictures, by the bundle's precision; docs/selftest.md has the measurements for it."""

REPLAY_NOTICE = "CUDA graphs:"
"""Start of the notice of `runtime.networks` that replays of a provider differ."""


@dataclass(frozen=True, slots=True)
class GraphResult:
    """One graph; None for what is not known.

    `nodes`: how many nodes of the graph, as ONNX Runtime runs it, each of its providers was assigned; a compiled part
    is one node. `built`: whether its engine was built at this start; `build_s`: how long that took, now or earlier;
    `engine_bytes`: in the cache; None for providers without engines. `run_ms`: median of runs on inputs on the device.

    In a report, `open_s` and `run_ms` are of the second start, from the cache, and `cuda_ms` is a run on provider cuda.
    """

    graph: str
    error: str = ""
    nodes: Mapping[str, int] | None = None
    built: bool = False
    build_s: float | None = None
    open_s: float | None = None
    engine_bytes: int | None = None
    run_ms: float | None = None
    built_again: bool = False
    cuda_ms: float | None = None

    def nodes_on(self, provider: str) -> int:
        """How many nodes `provider` was assigned."""
        return (self.nodes or {}).get(ORT_NAMES[provider], 0)


@dataclass(slots=True)
class Outcome:
    """What one child process has reported so far; see `worker.carry_out`.

    `provider`: the one that runs, empty if none loaded. `passed_over`: notices of better ones. `paint_s`, `painted_on`:
    by preset. `failures`: all that do not belong to one graph, and how the process died. `notices`: of `Networks`,
    while painting. `doing`: its current step.
    """

    environment: dict[str, str] = field(default_factory=dict)
    provider: str = ""
    passed_over: list[str] = field(default_factory=list)
    graphs: dict[str, GraphResult] = field(default_factory=dict)
    paint_s: dict[str, float] = field(default_factory=dict)
    painted_on: dict[str, list[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    all_notices: list[str] = field(default_factory=list)
    memory: Memory | None = None
    doing: str = "starting"
    done: bool = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes an event: lists and dicts grow, everything else is replaced."""
        for name, value in event.items():
            known = getattr(self, name)
            if name == "graphs":
                self.graphs |= {graph: GraphResult(**fields) for graph, fields in value.items()}
            elif name == "memory":
                self.memory = Memory(**value)
            elif isinstance(known, dict):
                known.update(value)
            elif isinstance(known, list):
                known.extend(value)
            else:
                setattr(self, name, value)


@dataclass(frozen=True, slots=True)
class PictureResult:
    """Painted windows compared with those of the reference.

    `psnr_db`: over the generated part of the faces, None where they are equal; at least `least_db` is expected.
    """

    case: str
    windows: int
    paint_s: float
    psnr_db: float | None
    least_db: float

    @property
    def near(self) -> bool:
        """Whether the pictures are as near as expected."""
        return self.psnr_db is None or self.psnr_db >= self.least_db


@dataclass(frozen=True, slots=True)
class Report:
    """All that a bug report needs: `provider` that ran, empty if none did, for `requested`; `reasons` of a failure.

    `reference`: the provider whose pictures are compared with, "none" for none. `options`: flags that were given.
    """

    requested: str
    provider: str
    reasons: tuple[str, ...]
    bundle: BundleFacts
    options: tuple[str, ...]
    steps: int
    reference: str
    graphs: tuple[GraphResult, ...]
    pictures: tuple[PictureResult, ...]
    memory: Memory | None
    notices: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.reasons

    def to_json(self) -> str:
        """One JSON object."""
        content = {"kind": KIND, "format": FORMAT, "passed": self.passed, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False)


def graph_result(graph: str, first: Outcome, again: Outcome, cuda: Outcome) -> GraphResult:
    """Both starts of a graph, and its time on CUDA, in one row."""
    found = first.graphs.get(graph, GraphResult(graph, error="not reached"))
    second = again.graphs.get(graph)
    if second is None:
        return replace(found, open_s=None)
    return replace(
        found,
        error=second.error,
        open_s=second.open_s,
        built_again=second.built,
        run_ms=second.run_ms,
        cuda_ms=cuda.graphs[graph].run_ms if graph in cuda.graphs else None,
    )


def failures(first: Outcome, again: Outcome, graphs: Sequence[GraphResult]) -> Iterator[str]:
    """Everything that failed, except for pictures that differ."""
    yield from first.failures
    for graph in graphs:
        if graph.graph in first.graphs:
            yield from _graph_failures(graph, first, again)
    yield from (f"second start: {problem}" for problem in again.failures)
    for part in (first, again):
        for preset, providers in part.painted_on.items():
            others = [name for name in providers if name != first.provider]
            if others:
                yield f"{preset}: painted on {', '.join(others)} instead of {first.provider}"
    yield from dict.fromkeys(text for text in (*first.notices, *again.notices) if text.startswith(REPLAY_NOTICE))


def _graph_failures(graph: GraphResult, first: Outcome, again: Outcome) -> Iterator[str]:
    if graph.error:
        start = "" if first.graphs[graph.graph].error else "second start: "
        where = "" if graph.graph in graph.error else f"{graph.graph}: "
        yield f"{start}{where}{graph.error}"
    nodes = graph.nodes or {}
    if first.provider in COMPILING_PROVIDERS and graph.nodes_on(first.provider) != sum(nodes.values()):
        counts = ", ".join(f"{count} on {name}" for name, count in sorted(nodes.items()))
        yield f"{graph.graph}: {first.provider} was not assigned all of its nodes ({counts})"
    if graph.built_again:
        why = "".join(f"; {text}" for text in again.all_notices if graph.graph in text)
        yield f"{graph.graph}: the second start did not find its engine in the cache, and built it again{why}"


def picture_failures(pictures: Iterable[PictureResult], reference: str) -> Iterator[str]:
    """Pictures that are too far from the reference's."""
    for found in pictures:
        if not found.near:
            distance = f"{found.psnr_db:.1f} dB to those of {reference}"
            yield f"pictures, {found.case}: {distance}, at least {found.least_db:.0f} are expected"
