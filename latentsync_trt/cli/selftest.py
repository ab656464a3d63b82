"""`latentsync-trt selftest`: does a provider build, run and paint correctly here? Run it first on new hardware."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from latentsync_trt.bundle.find import find_bundle
from latentsync_trt.bundle.manifest import DEMO_NAME, Bundle
from latentsync_trt.cli.options import build, options_from, provider_option
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.errors import LatentSyncError

if TYPE_CHECKING:
    from latentsync_trt.bench.selftest.report import GraphResult, PictureResult, Report
    from latentsync_trt.bench.selftest.run import Reference

_LEFT_OUT = ("build", "engine_cache", "profile", "windows_per_batch")
"""Fixed in a self-test: engines are built first, in a temporary folder, and windows painted one by one."""

_UNKNOWN = "–"


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
    type=click.Choice(("cpu", "cuda", "none")),
    default="cpu",
    show_default=True,
    help="Provider whose pictures are taken as correct; the CPU takes hours with the published model.",
)
@options_from(RuntimeOptions, leave_out=_LEFT_OUT)
@click.option("--engine-cache", help="Folder of engines to test and to keep.  [default: a temporary one]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for a bug report; without paths and names."
)
def command(bundle: str, provider: str, reference: "Reference", as_json: bool, **fields: Any) -> None:
    """Build, run and reopen every graph of a bundle on a provider, and compare the pictures with the CPU's.

    Prints PASS, or FAIL with the reasons and exit code 1.
    """
    from latentsync_trt.bench.selftest.run import self_test
    from latentsync_trt.cli.show import say

    options = build(RuntimeOptions, fields)
    with _without_paths(bundle, hidden=as_json):
        opened = Bundle.load(find_bundle(bundle)[0])
        report = self_test(opened, provider, options, reference, _ignore if as_json else say)
    if as_json:
        click.echo(report.to_json())
    else:
        _show(report)
    if not report.passed:
        raise SystemExit(1)


@contextmanager
def _without_paths(bundle: str, *, hidden: bool) -> Iterator[None]:
    """Removes paths from an error that precedes the report, where it goes into a bug report."""
    from latentsync_trt.bench.selftest.privacy import Privacy

    try:
        yield
    except LatentSyncError as error:
        if not hidden:
            raise
        raise LatentSyncError(Privacy([Path(bundle)]).clean(str(error))) from error


def _show(report: "Report") -> None:
    """Prints the table, what was measured beside it, and the verdict with its reasons."""
    from latentsync_trt.bench.table import console, plain_table

    if report.graphs:
        heads = ("graph", "nodes", "build s", "open s", "engine MB", "run ms", "cuda ms")
        table = plain_table(*heads)
        for graph in report.graphs:
            table.add_row(graph.graph, *_cells(graph, report.provider))
        console().print(table)
    for line in _lines(report):
        click.echo(line)
    what = f"bundle {report.bundle.name}, {report.bundle.precision}, {report.bundle.resolution_px} px"
    if report.passed:
        click.secho(f"PASS: {report.provider}, {what}", fg="green")
        return
    click.secho(f"FAIL: {report.provider or report.requested}, {what}", fg="red")
    for reason in report.reasons:
        click.echo(f"  - {reason}")


def _cells(graph: "GraphResult", provider: str) -> tuple[str, ...]:
    nodes = _UNKNOWN
    if graph.nodes is not None:
        assigned, total = graph.nodes_on(provider), sum(graph.nodes.values())
        nodes = "1 engine" if assigned == total == 1 else f"{assigned}/{total}"  # no graph itself has only one node
    size_mb = None if graph.engine_bytes is None else graph.engine_bytes / 1e6
    numbers = ((graph.build_s, 2), (graph.open_s, 2), (size_mb, 1), (graph.run_ms, 1), (graph.cuda_ms, 1))
    return (nodes, *(_UNKNOWN if value is None else f"{value:.{digits}f}" for value, digits in numbers))


def _lines(report: "Report") -> Iterator[str]:
    """The lines below the table."""
    yield f"machine: {_machine(report)}"
    if report.memory is not None:
        device = report.memory.device_bytes
        on_device = "" if device is None else f"device {device / 1e9:.2f} GB, "
        yield f"peak memory: {on_device}host {report.memory.host_bytes / 1e9:.2f} GB"
    if report.pictures:
        least_db = report.pictures[0].least_db
        what = f"generated part of the faces, {report.steps} steps, compared with provider {report.reference}"
        yield f"pictures: {what}; at least {least_db:.0f} dB expected"
        yield from (f"  {found.case}: {_distance(found)}" for found in report.pictures)
    elif report.provider:
        yield "pictures: not compared"
    yield from (f"note: {notice}" for notice in report.notices)


def _machine(report: "Report") -> str:
    """The main facts of the environment; the rest is in the JSON."""
    on_gpu = ("gpu", "compute_capability", "driver", "tensorrt", "tensorrt_rtx_plugin", "cuda", "cudnn")
    names = on_gpu if "gpu" in report.environment else ("cpu", "cpu_cores")
    found = (f"{name.replace('_', ' ')} {report.environment[name]}" for name in names if name in report.environment)
    always = (f"{name.replace('_', '-')} {report.environment[name]}" for name in ("onnxruntime", "latentsync_trt"))
    return ", ".join((*found, *always))


def _distance(found: "PictureResult") -> str:
    near = "equal" if found.psnr_db is None else f"{found.psnr_db:.1f} dB"
    return (
        f"{near}, {'1 window' if found.windows == 1 else f'{found.windows} windows'} painted in {found.paint_s:.1f} s"
    )


def _ignore(_: str) -> None:
    """With --json there is no progress."""
