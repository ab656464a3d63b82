"""`latentsync-trt selftest`: whether a provider works completely on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from latentsync_trt.bundle import find
from latentsync_trt.bundle.manifest import DEMO_NAME, Bundle, manifest_sha256
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import notices_to, print_table
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.providers.table import PROVIDERS

if TYPE_CHECKING:
    from latentsync_trt.bench.selftest import SelftestReport
    from latentsync_trt.bench.trial import GraphRow

_GRAPH_HEADS = (
    *("graph", "nodes", "build s", "engine MB"),
    *("open s", "first ms", "mean ms", "difference"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestRequest:
    bundle: str = flags.command_field(DEMO_NAME, "A path, or a name below checkpoints/.")
    provider: str = flags.provider_option()
    runtime: RuntimeOptions = flags.options_of(
        leave_out=("build", "engine_cache", "syncnet", "verify")
    )
    engine_cache: Path | None = flags.command_field(
        None, "Folder of engines to test, and kept; else a temporary one.", folder=True
    )
    as_json: bool = flags.json_option()


@click.command("selftest")
@flags.takes(SelftestRequest)
def selftest(request: SelftestRequest) -> None:
    """Prints PASS, or FAIL with the reasons and exit code 1. What --json prints has no paths and
    names.
    """
    bundle = Bundle.load(find.find_bundle(request.bundle)[0])
    graphs = tuple(bundle.manifest.graphs)
    options = replace(request.runtime, engine_cache=request.engine_cache)
    report = test_provider(bundle, request.provider, options, graphs, as_json=request.as_json)
    if not report.passed:
        raise SystemExit(1)


def test_provider(
    bundle: Bundle,
    provider: str,
    options: RuntimeOptions,
    graphs: Sequence[str],
    *,
    as_json: bool = False,
) -> "SelftestReport":
    """Runs a self-test and prints its report, whose result `--provider auto` follows from then
    on.
    """
    from latentsync_trt.bench.selftest import self_test
    from latentsync_trt.runtime.providers.choice import select_provider
    from latentsync_trt.runtime.providers.remembered_tests import remember_test

    report = self_test(bundle, provider, options, notices_to(silent=as_json), graphs)
    if as_json:
        click.echo(report.to_json())
    else:
        _print_report(report)
    if report.provider:
        selection = select_provider(report.provider, options.one_device)
        remember_test(selection, manifest_sha256(bundle.folder), report.result)
    return report


def _print_report(report: "SelftestReport") -> None:
    if report.graphs:
        print_table(_GRAPH_HEADS, [_cells_of_graph(row, report.provider) for row in report.graphs])
    for notice in report.notices:
        echo(f"note: {notice}")
    if report.pictures:
        echo(f"pictures: {report.pictures}")
    for stage, failures in report.stages.items():
        verdict = "FAIL" if failures else "PASS"
        echo("\n  - ".join([f"{stage}: {verdict}", *failures]))
    if report.result == "slower":
        echo(
            f"note: steps take longer than with {report.reference}, so --provider auto does not "
            "take it"
        )
    bundle = "bundle {name}, {precision}, {resolution_px} px".format_map(report.bundle)
    tested = f"{report.provider or report.requested}, {bundle}"
    if report.passed:
        echo(f"PASS: {tested}", fg="green")
    else:
        echo(f"FAIL: {tested}", fg="red")


def _cells_of_graph(row: "GraphRow", provider: str) -> list[object]:
    """Returns a row of the table below `_GRAPH_HEADS`."""
    nodes = None
    if row.nodes:
        on_provider = row.nodes.get(PROVIDERS[provider].ort_name, 0)
        nodes = f"{on_provider}/{sum(row.nodes.values())}"
    size_mb = None if row.engine_bytes is None else row.engine_bytes / 1e6
    times = [row.open_s, row.first_ms, row.mean_ms]
    return [row.graph, nodes, row.build_s, size_mb, *times, row.difference]
