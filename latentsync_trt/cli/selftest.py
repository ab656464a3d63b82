"""`latentsync-trt selftest`: whether a provider builds, runs and paints correctly. Run it first on new hardware."""

from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME, Bundle
from latentsync_trt.cli.options import LocalPath, build, options_from, provider_option
from latentsync_trt.cli.show import notices_to, print_table
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.runtime.providers.table import CPU, CUDA, PROVIDERS

if TYPE_CHECKING:
    from latentsync_trt.bench.selftest import GraphRow, Reference, Report

_LEFT_OUT = ("build", "engine_cache", "engine_store", "verify", "windows_per_batch")
"""Fixed in a self-test: it verifies all, builds engines first, in a temporary folder, and paints windows singly."""


@click.command("selftest")
@click.option(
    "--bundle",
    default=DEMO_NAME,
    show_default=True,
    help="Exported model: a path, a name below checkpoints/, or demo, the built-in one.",
)
@provider_option
@click.option(
    "--reference",
    type=click.Choice((CPU.name, CUDA.name, "none")),
    default=CPU.name,
    show_default=True,
    help="Provider whose results are taken as correct; the CPU takes hours with the published model.",
)
@click.option("--graph", "graphs", multiple=True, help="Only this graph; may be given several times.  [default: all]")
@options_from(RuntimeOptions, leave_out=_LEFT_OUT)
@click.option(
    "--engine-cache",
    type=LocalPath(folder=True, as_text=True),
    help="Folder of engines to test and to keep.  [default: a temporary one]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for a bug report; without paths and names."
)
def command(
    bundle: str, provider: str, reference: "Reference", graphs: tuple[str, ...], as_json: bool, **fields: Any
) -> None:
    """Build, run and reopen every graph of a bundle on a provider, and compare its results with the CPU's.

    Prints PASS, or FAIL with the reasons and exit code 1.
    """
    from latentsync_trt.bench.selftest import self_test
    from latentsync_trt.remembered import forget
    from latentsync_trt.runtime.sessions.profiles import check_graphs

    options = build(RuntimeOptions, fields)
    forget()
    opened = Bundle.load(find_bundle(bundle)[0])
    check_graphs(opened.manifest, graphs)
    tested, say = graphs or tuple(opened.manifest.graphs), notices_to(silent=as_json)
    report = self_test(opened, provider, options, reference, say, tested)
    if as_json:
        click.echo(report.to_json())
    else:
        _show(report)
    if not report.passed:
        raise SystemExit(1)


def _show(report: "Report") -> None:
    if report.graphs:
        heads = "graph", "nodes", "build s", "engine MB", "open s", "first ms", "mean ms", "difference"
        print_table(heads, (_cells(row, report.provider) for row in report.graphs))
    for notice in report.notices:
        click.echo(f"note: {notice}")
    for found in report.pictures:
        psnr = "equal" if found.psnr_db is None else f"{found.psnr_db:.1f} dB"
        click.echo(f"pictures, {found.case}: {psnr} beside {report.reference} (at least {found.least_db:.0f} dB)")
    for stage, failures in report.stages.items():
        click.echo("\n  - ".join((f"{stage}: {'FAIL' if failures else 'PASS'}", *failures)))
    bundle = f"bundle {report.bundle.name}, {report.bundle.precision}, {report.bundle.resolution_px} px"
    verdict, color = ("PASS", "green") if report.passed else ("FAIL", "red")
    click.secho(f"{verdict}: {report.provider or report.requested}, {bundle}", fg=color)


def _cells(row: "GraphRow", provider: str) -> tuple[str, ...]:
    size_mb = None if row.engine_bytes is None else row.engine_bytes / 1e6
    numbers = (row.build_s, size_mb, row.open_s, row.first_ms, row.mean_ms, row.difference)
    forms = (".2f", ".1f", ".2f", ".1f", ".1f", ".1e")
    return (
        row.graph,
        f"{row.nodes.get(PROVIDERS[provider].ort_name, 0)}/{sum(row.nodes.values())}" if row.nodes else "–",
        *("–" if value is None else format(value, form) for value, form in zip(numbers, forms, strict=True)),
    )
