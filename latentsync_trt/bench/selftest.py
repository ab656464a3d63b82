"""Checks whether a provider works completely on this machine, in up to three trials.

1. first start: every graph is built into an empty engine cache, opened and run, and windows are
   painted
2. second start: the same from that cache, which must build nothing
3. reference: the same on another provider, to compare outputs and pictures with
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from latentsync_trt.bench.reference_comparison import compare_with_reference, reference_of
from latentsync_trt.bench.rows import bundle_facts, environment, to_json
from latentsync_trt.bench.trial import GraphRow, Trial, TrialResult, TrialSpec, run_trial
from latentsync_trt.bundle.manifest import STEP_GRAPHS, Bundle, Manifest
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.files import temporary_folder
from latentsync_trt.option_fields import command_line
from latentsync_trt.runtime.providers.remembered_tests import TestResult
from latentsync_trt.runtime.providers.table import CUDA
from latentsync_trt.types import NoticeCallback
from latentsync_trt.unexpected import redacted

FIRST_START = "first start"
SECOND_START = "second start"
REFERENCE_TRIAL = "reference"

TrialRunner = Callable[[TrialSpec, NoticeCallback], TrialResult]


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """The result of a self-test, with all that a bug report needs, and no paths."""

    requested: str
    """The provider asked for."""
    provider: str
    """The provider that ran; empty if none loaded."""
    bundle: Mapping[str, Any]
    options: tuple[str, ...]
    """Flags given."""
    reference: str
    """The provider whose results are taken as correct; empty if none."""
    stages: Mapping[str, tuple[str, ...]]
    """The failures of each trial, by its name."""
    graphs: tuple[GraphRow, ...]
    """At the last start that reached them."""
    pictures: str
    """How near the pictures are to the reference's."""
    notices: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def passed(self) -> bool:
        return not any(self.stages.values())

    @property
    def result(self) -> TestResult:
        """The result that later runs follow: "slower" where denoising steps take longer than on the
        reference, if that is another provider rather than the portable variant of the graphs.
        """
        if not self.passed:
            return "failed"
        if self.reference == self.provider:
            return "passed"
        longer_ms = 0.0
        for row in self.graphs:
            if row.graph in STEP_GRAPHS and row.mean_ms and row.reference_ms:
                longer_ms += row.mean_ms - row.reference_ms
        return "slower" if longer_ms > 0 else "passed"

    def to_json(self) -> str:
        return to_json("selftest", 9, {"passed": self.passed, **asdict(self)})


def self_test(
    bundle: Bundle,
    provider: str,
    options: RuntimeOptions,
    on_notice: NoticeCallback,
    graphs: Sequence[str],
    run: TrialRunner = run_trial,
) -> SelftestReport:
    """Tests the `graphs` and painting; `on_notice` gets lines about progress. Raises `InputError`
    if `options` name several GPUs.
    """
    facts = environment((), (), options.one_device)

    def carry_out(spec: TrialSpec) -> Trial:
        return Trial(spec, run(spec, lambda text: on_notice(f"{spec.name}: {text}")))

    with temporary_folder() as folder:
        cached = replace(options, engine_cache=options.engine_cache or folder / "engines")
        first = carry_out(
            TrialSpec(provider, bundle.folder, cached, folder / FIRST_START, tuple(graphs))
        )
        reference = reference_of(bundle.manifest, first.result.provider)
        trials = [first, *map(carry_out, later_specs(first, reference))]
        return _report_of(trials, bundle.manifest, reference, facts)


def later_specs(first: Trial, reference: str) -> list[TrialSpec]:
    """Returns what is tried after the first start, beside the provider `reference`; nothing where
    no graph works.
    """
    spec = first.spec
    provider = first.result.provider
    usable = tuple(graph for graph, row in first.result.graphs.items() if not row.error)
    if not usable:
        return []
    folder = spec.folder.with_name(SECOND_START)
    second = replace(spec, provider=provider, folder=folder, graphs=usable)
    if not reference:
        return [second]
    # CUDA's variant of the graphs is what auto would run instead of TensorRT, so that times
    # compare.
    is_portable = reference == CUDA.name == provider
    options = RuntimeOptions(
        device=spec.options.device,
        engine_cache=spec.folder.with_name("other engines"),
        graph_variant="portable" if is_portable else "auto",
    )
    folder = spec.folder.with_name(REFERENCE_TRIAL)
    return [second, replace(second, provider=reference, options=options, folder=folder)]


def _report_of(
    trials: Sequence[Trial], manifest: Manifest, reference: str, facts: Mapping[str, str]
) -> SelftestReport:
    """Returns what the trials have shown, which are one, two or all three; `facts` are those of the
    machine.
    """
    spec = trials[0].spec
    provider = trials[0].result.provider
    rows: Mapping[str, GraphRow] = {}
    if provider:
        rows = {graph: GraphRow(graph, error="not reached") for graph in spec.graphs}
    for trial in trials[:2]:
        rows = {**rows, **trial.result.graphs}
    folders = [spec.bundle, Path(spec.options.engine_cache or "")]
    hide = partial(redacted, folders=folders)
    failures = {trial.spec.name: tuple(map(hide, _failures_of(trial))) for trial in trials}
    pictures = ""
    if len(trials) == 3:
        comparison = compare_with_reference(manifest, rows, trials[1], trials[2])
        rows = comparison.rows
        failures[REFERENCE_TRIAL] += tuple(map(hide, comparison.failures))
        pictures = comparison.pictures
    notices = [hide(text) for trial in trials for text in trial.result.notices]
    return SelftestReport(
        requested=spec.provider,
        provider=provider,
        bundle=bundle_facts(manifest),
        options=tuple(command_line(spec.options, leave_out=("engine_cache",))),
        reference=reference,
        stages=failures,
        graphs=tuple(replace(row, error=hide(row.error)) for row in rows.values()),
        pictures=pictures,
        notices=tuple(dict.fromkeys(notices)),
        environment=facts,
    )


def _failures_of(trial: Trial) -> Iterator[str]:
    """Yields what failed in a trial; the second start must not build engines."""
    result = trial.result
    yield from dict.fromkeys([*result.failures, *result.graph_failures()])
    if trial.spec.name != SECOND_START:
        return
    for graph, row in result.graphs.items():
        if row.built:
            why = "".join(f"; {text}" for text in result.log if graph in text)
            yield f"{graph}: its engine was not found in the cache, and was built again{why}"
