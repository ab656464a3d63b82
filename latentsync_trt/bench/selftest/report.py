"""What the self-test found, and the verdict. Pure."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from latentsync_trt.bench.rows import BundleFacts, Memory
from latentsync_trt.bench.selftest.process import Outcome
from latentsync_trt.bench.selftest.worker import GraphRun
from latentsync_trt.runtime.providers.select import ORT_NAMES
from latentsync_trt.runtime.sessions.engines import COMPILING_PROVIDERS

KIND = "latentsync-trt selftest"
FORMAT = 1

LEAST_DB: Mapping[str, float] = {"fp32": 60.0, "fp16": 45.0, "int8": 35.0, "fp8": 35.0}
"""Least PSNR to the reference's pictures, by the bundle's precision.

Measured on the CPU with the tests' float32 bundle: weights rounded to TF32's 10 bits of mantissa, which GPUs compute
float32 with, read 73 dB, to 7 bits 56. With the built-in float16 model: 8 bits 62 dB, 5 bits 55, 3 bits 43, and cached
steps in the place of full ones 41. Its INT8 and FP8 bundles lie at 54 and 51 dB from it (docs/demo.md), and a GPU that
rounds some values to the next step differs by less than quantization itself does.
"""

REPLAY_NOTICE = "CUDA graphs:"
"""What the notice of `runtime.pooled` begins with, of a provider whose replays differ."""

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class GraphResult:
    """One graph; what is not known is None.

    `nodes` of the graph as ONNX Runtime runs it, a compiled part being one; `nodes_on_provider`: those that the tested
    provider was assigned. `build_s`: at the first start; `open_s`, `run_ms`: at the second, from the cache; `cuda_ms`:
    a run on the CUDA provider. `engine_bytes`: in the cache.
    """

    graph: str
    error: str = ""
    nodes_on_provider: int | None = None
    nodes: int | None = None
    build_s: float | None = None
    open_s: float | None = None
    built_again: bool = False
    engine_bytes: int | None = None
    run_ms: float | None = None
    cuda_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PictureResult:
    """Painted windows beside those of the reference.

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

    `reference`: the provider whose pictures are compared with, empty for none. `options`: flags that were given.
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
        """Whether the provider does the whole job."""
        return not self.reasons

    def to_json(self) -> str:
        """One JSON object."""
        content = {"kind": KIND, "format": FORMAT, "passed": self.passed, **asdict(self)}
        return json.dumps(_rounded(content), indent=1, allow_nan=False, ensure_ascii=False)


def graph_results(graphs: Iterable[str], first: Outcome, again: Outcome, cuda: Outcome) -> tuple[GraphResult, ...]:
    """A line for each of `graphs`, of the first and the second start, and of CUDA."""
    wanted = ORT_NAMES.get(first.provider, "")
    return tuple(
        _graph_result(graph, wanted, *(part.graphs.get(graph) for part in (first, again, cuda))) for graph in graphs
    )


def _graph_result(
    graph: str, wanted: str, first: GraphRun | None, again: GraphRun | None, cuda: GraphRun | None
) -> GraphResult:
    if first is None:
        return GraphResult(graph, error="not reached")
    if first.error or first.nodes is None:
        return GraphResult(graph, error=first.error)
    second = again or GraphRun(graph)
    return GraphResult(
        graph,
        error=second.error,
        nodes_on_provider=first.nodes.get(wanted, 0),
        nodes=sum(first.nodes.values()),
        build_s=first.build_s,
        open_s=None if again is None or second.error else second.open_s,
        built_again=second.built,
        engine_bytes=first.engine_bytes,
        run_ms=second.run_ms,
        cuda_ms=None if cuda is None else cuda.run_ms,
    )


def failures(first: Outcome, again: Outcome, graphs: Sequence[GraphResult]) -> Iterator[str]:
    """Why the provider does not do the whole job, but for its pictures."""
    yield from first.problems
    for graph in graphs:
        if graph.graph in first.graphs:
            yield from _graph_failures(graph, first.graphs[graph.graph], first.provider)
        if graph.built_again:
            why = "".join(f"; {text}" for text in again.said if graph.graph in text)
            yield f"{graph.graph}: the second start did not find its engine in the cache, and built it again{why}"
    yield from (f"second start: {problem}" for problem in again.problems)
    for part in (first, again):
        for painted in part.painted.values():
            others = [name for name in painted.providers if name != first.provider]
            if others:
                yield f"{painted.preset}: painted on {', '.join(others)} instead of {first.provider}"
    yield from dict.fromkeys(text for text in (*first.notices, *again.notices) if text.startswith(REPLAY_NOTICE))


def _graph_failures(graph: GraphResult, first: GraphRun, provider: str) -> Iterator[str]:
    if graph.error:
        start = "" if first.error else "second start: "
        where = "" if graph.graph in graph.error else f"{graph.graph}: "
        yield f"{start}{where}{graph.error}"
    if provider in COMPILING_PROVIDERS and graph.nodes_on_provider != graph.nodes:
        counts = ", ".join(f"{count} on {name}" for name, count in sorted((first.nodes or {}).items()))
        yield f"{graph.graph}: {provider} was not assigned all of its nodes ({counts})"


def picture_failures(pictures: Iterable[PictureResult], reference: str) -> Iterator[str]:
    """Which pictures are too far from the reference's."""
    for found in pictures:
        if not found.near:
            distance = f"{found.psnr_db:.1f} dB to those of {reference}"
            yield f"pictures, {found.case}: {distance}, at least {found.least_db:.0f} are expected"


def _rounded(value: Any) -> Any:
    """The same with floats of six significant digits; what is no number becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
