"""`latentsync-trt export`: makes a bundle of ONNX graphs from published checkpoints."""

from typing import Any

import rich_click as click

from latentsync_trt.bundle.manifest import read_manifest, tool_versions
from latentsync_trt.cli.options import build, options_from
from latentsync_trt.export.export_options import EXTRA, TOOLS, ExportOptions
from latentsync_trt.types import Progress


@click.command("export")
@options_from(ExportOptions)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def command(quiet: bool, **fields: Any) -> None:
    """Export LatentSync's checkpoints to a bundle that `sync` runs without PyTorch."""
    # What is missing is reported before torch is imported, which takes seconds.
    tool_versions(TOOLS, extra=EXTRA)
    options = build(ExportOptions, fields)
    from latentsync_trt.cli.show import progress_bar
    from latentsync_trt.cli.use import note_on_default
    from latentsync_trt.export.exporter import export_bundle

    with progress_bar(hidden=quiet) as move:
        folder = export_bundle(options, lambda stage, share: move(Progress(stage, round(100 * share), 100)))
    if quiet:
        return
    manifest = read_manifest(folder)
    size_bytes = sum(entry.bytes for entry in manifest.files.values())
    worst = max(manifest.verification.values(), default=None)
    verdict = "not verified" if worst is None else f"within {worst:.1e} of PyTorch"
    click.echo(f"{folder}: {len(manifest.graphs)} graphs, {manifest.precision}, {size_bytes / 1e9:.2f} GB, {verdict}")
    for note in (*manifest.notes, note_on_default(folder)):
        if note:
            click.echo(f"note: {note}", err=True)
