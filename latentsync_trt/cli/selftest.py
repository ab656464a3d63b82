"""`latentsync-trt selftest`: whether a provider works completely on this machine."""

from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bundle import find
from latentsync_trt.bundle.manifest import DEMO_NAME, Bundle, manifest_sha256
from latentsync_trt.cli import echo
from latentsync_trt.cli import options as flags
from latentsync_trt.cli.show import notices_to, print_table
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.providers.table import (
    PROVIDERS,
)

if TYPE_CHECKING:
    from latentsync_trt.bench.selftest import Report


@click.command("selftest")
@click.option(
    "--bundle", default=DEMO_NAME, show_default=True, help="A path, or a name below checkpoints/."
)
@flags.provider_option
@flags.options_from(RuntimeOptions, leave_out=("build", "engine_cache", "syncnet", "verify"))
@flags.path_option(
    "--engine-cache", folder=True, help="Folder of engines to test, and kept; else a temporary one."
)
@flags.json_option
def selftest(bundle: str, provider: str, as_json: bool, **fields: Any) -> None:
    """Prints PASS, or FAIL with the reasons and exit code 1. What --json prints has no paths and
    names.
    """
    options = flags.build(RuntimeOptions, fields)
    opened = Bundle.load(find.find_bundle(bundle)[0])
    report = test_provider(
        opened, provider, options, tuple(opened.manifest.graphs), as_json=as_json
    )
    if not report.passed:
        raise SystemExit(1)


def test_provider(
    bundle: Bundle,
    provider: str,
    options: RuntimeOptions,
    graphs: tuple[str, ...],
    *,
    as_json: bool = False,
) -> "Report":
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
        _show_report(report)
    if report.provider:
        selection = select_provider(report.provider, options.one_device)
        remember_test(selection, manifest_sha256(bundle.folder), report.result)
    return report


def _show_report(report: "Report") -> None:
    if report.graphs:
        heads = (
            "graph",
            "nodes",
            "build s",
            "engine MB",
            "open s",
            "first ms",
            "mean ms",
            "difference",
        )
        rows = []
        for row in report.graphs:
            ours = row.nodes and row.nodes.get(PROVIDERS[report.provider].ort_name, 0)
            nodes = f"{ours}/{sum(row.nodes.values())}" if row.nodes else None
            size_mb = None if row.engine_bytes is None else row.engine_bytes / 1e6
            rows.append(
                (
                    row.graph,
                    nodes,
                    row.build_s,
                    size_mb,
                    row.open_s,
                    row.first_ms,
                    row.mean_ms,
                    row.difference,
                )
            )
        print_table(heads, rows)
    for notice in report.notices:
        echo(f"note: {notice}")
    if report.pictures:
        echo(f"pictures: {report.pictures}")
    for stage, failures in report.stages.items():
        echo("\n  - ".join((f"{stage}: {'FAIL' if failures else 'PASS'}", *failures)))
    if report.result == "slower":
        echo(
            "note: steps take longer than with "
            f"{report.reference}, so --provider auto does not take it"
        )
    bundle = "bundle {name}, {precision}, {resolution_px} px".format_map(report.bundle)
    verdict, color = ("PASS", "green") if report.passed else ("FAIL", "red")
    echo(f"{verdict}: {report.provider or report.requested}, {bundle}", fg=color)
